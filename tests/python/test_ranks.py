"""Models over ranks that are processes of torch.distributed with gloo: the bits that torch's own sums in order have, and what the others get when one fails, is killed or stopped."""
import json
import pathlib
import socket
import subprocess
import sys

import pytest

import deepwell
from deepwell import ranks

PROGRAM = pathlib.Path(__file__).parent / "ranks_program.py"


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def run(what, world, ends=None):
    """The answers of all ranks. ends: the rank whose process the test ends."""
    port = str(free_port())
    started = [subprocess.Popen([sys.executable, PROGRAM, what, str(rank), str(world), port], stdout=subprocess.PIPE, text=True) for rank in range(world)]
    answers = []
    try:
        for rank, process in enumerate(started):
            if rank != ends:
                output, _ = process.communicate(timeout=120)
                assert process.returncode == 0
                answers.append(json.loads(output.splitlines()[-1]))
    finally:
        for process in started:
            process.kill()
            process.wait()
    return answers


@pytest.mark.long
@pytest.mark.parametrize("world", [3, 4])
def test_ranks_have_the_bits_of_sums_in_order(world):
    for rank, answer in enumerate(run("same", world)):
        assert answer["good"]
        failed = [error for error in answer["errors"] if "index 9" in error]
        if rank == 1:
            assert len(answer["errors"]) == 1 and failed[0].startswith("INVALID: take: index 9 is outside axis 0")
        elif answer["errors"]:                                           # who meets it again in that run
            assert failed and failed[0].startswith("INVALID") and "rank 1 failed at step" in failed[0] and ("layer.2" in failed[0] or "layer.4" in failed[0])


@pytest.mark.long
@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_a_rank_that_is_gone_is_named_in_time(how):
    for answer in run(how, 3, ends=1):
        assert answer["status"] == "LOST"
        assert answer["seconds"] < 4 + 2
        assert "rank 1 is gone" in answer["message"] if how == "killed" else "rank 1 is not there" in answer["message"]
        assert "all_reduce over tp" in answer["message"] and "layer.0" in answer["message"]


@pytest.mark.long
def test_models_that_differ_are_not_run():
    for answer in run("other", 2):
        assert answer["status"] == "MISMATCH" and "rank 1 has another graph than rank 0" in answer["message"]


def test_ranks_need_torch_distributed():
    with pytest.raises(deepwell.Invalid, match="start the ranks by torchrun"):
        ranks.communicator()
