"""Models and the command line over ranks that are processes of torch.distributed with gloo: what one process gives."""
import json
import os
import pathlib
import socket
import subprocess
import sys

HERE = pathlib.Path(__file__).parent
CARRIED = HERE.parent.parent / "models" / "kjv.pt2"


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def run(world, command_of, **environment_of):
    """What each rank printed. environment_of: more variables, each a function of the rank."""
    started = [subprocess.Popen(command_of(rank), stdout=subprocess.PIPE, text=True, env=os.environ | {name: value(rank) for name, value in environment_of.items()}) for rank in range(world)]
    try:
        printed = [process.communicate(timeout=240)[0] for process in started]
        assert [process.returncode for process in started] == [0] * world
        return printed
    finally:
        for process in started:
            process.kill()
            process.wait()


def test_optimised_modules_give_what_pytorch_gives(tmp_path):
    world, port = 2, free_port()
    answers = [json.loads(text.splitlines()[-1]) for text in run(world, lambda rank: [sys.executable, HERE / "sharded_program.py", str(rank), str(world), port, tmp_path])]
    for answer in answers:
        assert answer["error"] < 1e-5
        assert answer["bits"] == answers[0]["bits"]
        for layer, split in (("q", "column"), ("k", "column"), ("v", "column"), ("o", "row"), ("up", "column"), ("down", "row")):
            assert [f"blocks.*.{layer}", split] in answer["splits"]
        assert "matches no layer" in answer["refusal"]
        parallel = answer["parallel"]
        assert all(parallel[name] < 1e-5 for name in ("collectives", "parallelize_module", "fully_shard", "meta")), parallel
        assert "a group has to be an axis of the mesh" in parallel["group"] and "sharded by fully_shard and in training mode" in parallel["training"]


def test_the_command_line_takes_ranks_that_are_there(tmp_path):
    command = [sys.executable, "-m", "deepwell", "generate", CARRIED, "--prompt", "And it came to pass", "--tokens", "16", "--threads", "1"]
    alone = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    port, split = free_port(), tmp_path / "split.txt"
    split.write_text("all\n")      # processes meet so slowly that each would compute so small a model whole
    printed = run(2, lambda rank: [*command, "--shard", split], RANK=str, WORLD_SIZE=lambda rank: "2", MASTER_ADDR=lambda rank: "127.0.0.1", MASTER_PORT=lambda rank: port)
    assert printed[0] == alone and printed[1] == ""
