"""A model that transformers has made parallel (tp_plan="auto"), over two processes of torch.distributed with gloo: what PyTorch gives under the same ranks. Others are in test_sharded.py."""
import json
import pathlib
import subprocess
import sys

import pytest

from test_sharded import free_port, run

HERE = pathlib.Path(__file__).parent


def test_a_model_by_tp_plan_gives_what_it_gives_on_pytorch(tmp_path):
    part = subprocess.run([HERE.parent.parent / "scripts" / "part.sh"], capture_output=True, text=True, check=True).stdout.strip()
    if part != "4/10":
        pytest.skip(f"one commit in ten, as two processes import transformers: DEEPWELL_PART=4, this is {part}")
    port = free_port()
    for text in run(2, lambda rank: [sys.executable, HERE / "parallel_program.py", str(rank), "2", port, tmp_path]):
        assert json.loads(text.splitlines()[-1])["tp_plan"] < 1e-5
