"""Models that are parallel already, over ranks that are processes of torch.distributed with gloo: what PyTorch gives under the same ranks."""
import json
import pathlib
import sys

from test_sharded import free_port, run

HERE = pathlib.Path(__file__).parent


def test_collectives_of_a_captured_model_are_ours():
    world, port = 2, free_port()
    for text in run(world, lambda rank: [sys.executable, HERE / "parallel_program.py", str(rank), str(world), port]):
        answer = json.loads(text.splitlines()[-1])
        assert answer["every"] < 1e-5
        assert "a group has to be an axis of the mesh" in answer["refusal"]
