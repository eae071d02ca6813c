"""examples/pytorch.py runs where the wheel is installed, and its types are those of the stubs."""
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "pytorch.py"


@pytest.mark.long
def test_the_example_runs(tmp_path):
    done = subprocess.run([sys.executable, EXAMPLE, tmp_path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for told in ("Model: all of it on Deepwell, 100.0 %", "[('ids', 'i64[b,s]')]", "cost most alone", "True True", "NOT_FOUND: precision"):
        assert told in done.stdout, done.stdout
    assert (tmp_path / "model.dw").exists() and (tmp_path / "model.txt").read_text().startswith("graph ")


@pytest.mark.long
def test_the_example_is_typed(tmp_path):
    pytest.importorskip("mypy")
    done = subprocess.run([sys.executable, "-m", "mypy", "--strict", "--cache-dir", tmp_path / "cache", EXAMPLE], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
