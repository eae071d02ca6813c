"""A service through the extension, on the carried model."""

import asyncio
import os
import pathlib
import types

import pytest

import deepwell
from deepwell import _core, serve

CARRIED = pathlib.Path(__file__).parents[2] / "models" / "kjv.pt2"
PROMPTS = [list(b"In the beginning "), list(b"And "), list(b"In the beginning God"), list(b"the")]


@pytest.fixture(scope="module")
def engine():
    return deepwell.load(CARRIED)


async def collect(stream):
    return [event async for event in stream]


def test_streams_have_the_ids_of_generate(engine):
    alone = [engine.generate(prompt, 12)[len(prompt):] for prompt in PROMPTS]

    async def run():
        async with serve.Service(engine, rows=3, page_tokens=16) as service:
            streams = [service.submit(prompt, 12, top_logprobs=2, logprobs=True) for prompt in PROMPTS]
            events = await asyncio.gather(*map(collect, streams))
            return events, service.facts()

    events, facts = asyncio.run(run())
    assert [[event.id for event in of_one] for of_one in events] == alone
    assert all(of_one[-1].end == "LENGTH" and of_one[0].end is None for of_one in events)
    assert all(event.top[0] == (event.id, event.logprob) and len(event.top) == 2 for of_one in events for event in of_one)
    assert facts["submitted"] == facts["ended"] == 4 and facts["alone"] is None and facts["made_tokens"] == 48


def test_requests_end_apart(engine):
    async def run():
        service = serve.Service(engine, rows=2, context=512)
        async with service:
            with pytest.raises(deepwell.Invalid, match="prompt id 256 at 0"):
                service.submit([256], 4)
            with pytest.raises(deepwell.Limit, match="max_tokens of 512"):
                service.submit([65], 1000)
            long = service.submit(PROMPTS[0], 400)
            first = await long.__anext__()
            long.cancel()
            rest = await collect(long)
            biased = await collect(service.submit(PROMPTS[1], 3, bias={65: 1e9}))
            late = await collect(service.submit(PROMPTS[1], 3, deadline_s=1e-9))
            left = service.submit(PROMPTS[0], 400)
        return first, rest, biased, late, await collect(left)

    first, rest, biased, late, left = asyncio.run(run())
    assert first.id is not None and rest[-1].end == "CANCELLED"
    assert [event.id for event in biased] == [65, 65, 65]
    assert [(event.id, event.end) for event in late] == [(None, "DEADLINE")]
    assert left[-1].end == "STOPPED"


def test_masks_say_which_ids_may_be_next(engine, monkeypatch):
    seen, raised = [], []

    def one_by_one(last, bits):
        seen.append(last)
        assert len(bits) == 8 and all(word == 0xffffffff for word in bits)
        allowed = 65 + len(seen)
        bits[:] = memoryview(bytes(32)).cast("I")
        bits[allowed // 32] = 1 << allowed % 32
        return len(seen) > 4

    def nothing(last, bits):
        for i in range(len(bits)):
            bits[i] = 0

    def fails(last, bits):
        raise ValueError("of the mask")

    async def run():
        async with serve.Service(engine, rows=2, context=64) as service:
            with pytest.raises(TypeError, match="no callable"):
                service.submit(PROMPTS[1], 3, mask=3)
            with pytest.raises(deepwell.Limit):
                service.submit(PROMPTS[1], 100, mask=nothing)
            streams = [service.submit(PROMPTS[1], 8, mask=mask) for mask in (one_by_one, nothing, fails, None)]
            return await asyncio.gather(*map(collect, streams)), service.facts()

    monkeypatch.setattr("sys.unraisablehook", lambda unraisable: raised.append(unraisable.exc_value))
    (stepped, none, failed, free), facts = asyncio.run(run())
    assert [event.id for event in stepped if event.id is not None] == [66, 67, 68, 69] and stepped[-1].end == "MASK"
    assert seen == [None, 66, 67, 68, 69]
    assert [(event.id, event.end) for event in none] == [(event.id, event.end) for event in failed] == [(None, "MASK")]
    assert len(free) == 8 and free[-1].end == "LENGTH"
    assert [str(error) for error in raised] == ["of the mask"] and facts["vocabulary"] == 256


SMALL = """graph g
  symbol b 1..64
  symbol s 1..16384
  input ids i64[b,s]
  const t f32[8,4] = 1,2,-1,3, -2,1,0.5,1, 3,-1,2,-2, 0.25,1,-3,1, -1,-1,2,1, 2,0.5,1,-2, -3,1,1,0.5, 0.5,-2,1,2
  %1 = take t, ids {axis=0}
  %2 = reshape %1 {shape=[b,s,2,2]}
  %3 = transpose %2 {order=[0,2,1,3]}
  %4 = attention %3, %3, %3 {scale=1.5,causal=true}
  %5 = transpose %4 {order=[0,2,1,3]}
  %6 = reshape %5 {shape=[b,s,4]}
  %7 = matmul %6, t {bt=true}
  output logits %7
"""


def test_a_service_on_a_gpu_has_the_ids_of_the_cpu():
    """On the stand-in for the driver: runs ahead, draws on the device, and the same ids."""
    driver = pathlib.Path(os.environ.get("DEEPWELL_TEST_DRIVER", pathlib.Path(__file__).parents[2] / "build/tests/libfake_cuda.so"))
    if not driver.exists():
        pytest.skip("there is no stand-in for the driver: build the tests")

    async def run(device):
        try:
            model = _core.Model(_core.Graph.text("g", SMALL), device=device, generate=True)
        except deepwell.Unsupported as error:
            pytest.skip(str(error))
        async with serve.Service(types.SimpleNamespace(_generation_model=lambda: model), rows=2, context=64, run_tokens=16, page_tokens=16, cache_bytes=1 << 20, times_device=True) as service:
            streams = [service.submit([1 + row, 5, 3] * 6, 8, temperature=row % 2, top_p=0.9, seed=row) for row in range(3)]
            events = await asyncio.gather(*map(collect, streams))
            assert "device_s" in service.facts()        # 0 here and there: nothing takes time on the stand-in's clock
            return [[event.id for event in of_one] for of_one in events]

    there, here = asyncio.run(run(f"cuda:0,driver={driver}")), asyncio.run(run(None))
    assert there == here and all(len(ids) == 8 for ids in here)
