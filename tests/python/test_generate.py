"""Generation through the extension, on the carried model."""

import pathlib

import pytest
import torch

import deepwell
from deepwell import _core

CARRIED = pathlib.Path(__file__).parents[2] / "models" / "kjv.pt2"
PROMPT = list(b"In the beginning ")


@pytest.fixture(scope="module")
def session():
    model = _core.Model(CARRIED, generate=True)
    assert model.generate_reason is None and model.note("tokenizer") == "bytes"
    return _core.Session(model, max_tokens=64)


def test_generation_with_the_cache_is_that_of_whole_runs(session):
    ids = list(PROMPT)
    for _ in range(8):
        logits = session.run((torch.tensor([ids]),))[0]
        ids.append(int(logits[0, -1].argmax()))
    assert session.generate(PROMPT, 8) == ids[len(PROMPT):]
    assert session.generate(torch.tensor(PROMPT), 8) == ids[len(PROMPT):]
    assert session.times["new_tokens"] == 8 and session.times["cached"] is True


def test_a_list_of_prompts_gives_a_list(session):
    other = list(b"And God said, ")
    alone = [session.generate(PROMPT, 6), session.generate(other, 6)]
    assert session.generate([PROMPT, other], 6) == alone
    assert session.generate([torch.tensor(PROMPT), torch.tensor(other, dtype=torch.int32)], 6) == alone
    assert session.generate([torch.tensor(id) for id in PROMPT], 6) == alone[0]
    together = _core.Session(session.model, max_tokens=64, rows=2)
    assert together.generate([PROMPT, other], 6) == alone
    told = []
    together.generate([PROMPT, other], 6, on_token=lambda row, id: told.append((row, id)) and None)
    assert [[id for row, id in told if row == i] for i in range(2)] == alone
    drawn = together.generate([PROMPT, PROMPT], 6, temperature=2.0, seed=5)
    assert drawn == [session.generate(PROMPT, 6, temperature=2.0, seed=seed) for seed in (5, 6)] and drawn[0] != drawn[1]


def test_tokens_are_told_and_can_end_it(session):
    told = []
    whole = session.generate(PROMPT, 6)
    made = session.generate(PROMPT, 6, on_token=lambda row, id: told.append((row, id)) or len(told) == 3)
    assert made == whole[:3] and told == [(0, id) for id in whole[:3]]
    assert session.generate(PROMPT, 6, stop_ids=[whole[1]])[-1] == whole[1]


def test_what_a_callback_raises_comes_out(session):
    def fail(row, id):
        raise KeyError(id)

    with pytest.raises(KeyError):
        session.generate(PROMPT, 6, on_token=fail)
    with pytest.raises(deepwell.Invalid, match="make another Session"):
        session.generate(PROMPT, 6, on_token=lambda row, id: session.reset())
    assert len(session.generate(PROMPT, 6)) == 6


def test_what_does_not_fit_is_refused(session):
    with pytest.raises(deepwell.Limit, match="max_tokens of 64"):
        session.generate(PROMPT, 60)
    with pytest.raises(TypeError):
        session.generate(7, 3)
    with pytest.raises(deepwell.Invalid, match="tokens is -1"):
        session.generate(PROMPT, -1)


def test_check_and_bench_of_a_file_and_of_a_graph():
    for source in (CARRIED, _core.Graph.open(CARRIED)):
        assert "blocks.3.attn.v" in _core.Model(source, precision="mxfp8", plan_only=True).check()
    report = _core.Model(CARRIED, dims="b=1,s=8").bench(prefill=8, tokens=2, repeat=1)
    assert "whole run" in report and "decode, per token" in report
