"""Tests capture anew each time; those of the cache choose a folder of their own. With --part I/N every N-th of the tests marked as long, from the I-th on, and all others: what a commit takes."""

import os

os.environ["DEEPWELL_CACHE"] = ""


def pytest_addoption(parser):
    parser.addoption("--part", default="0/1", help="I/N: every N-th of the long tests, from the I-th on")


def pytest_configure(config):
    config.addinivalue_line("markers", "long: takes more than three seconds; each commit runs some of them (--part)")


def pytest_collection_modifyitems(config, items):
    part, parts = map(int, config.getoption("--part").split("/"))
    long = [item for item in items if item.get_closest_marker("long")]
    left = set(long) - set(long[part::parts])
    config.hook.pytest_deselected(items=sorted(left, key=items.index))
    items[:] = [item for item in items if item not in left]
