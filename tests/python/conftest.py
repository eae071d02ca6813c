"""Tests capture anew each time; those of the cache choose a folder of their own."""

import os

os.environ["DEEPWELL_CACHE"] = ""
