"""The extension in a process of its user's: memory, signals, threads, forks."""

import gc
import multiprocessing
import os
import signal
import sys
import threading
import time

import pytest
import torch

from deepwell import _core

SMALL = """graph small
  symbol m 1..
  input x f32[m,64]
  param w f32[64,64]
  %1 = matmul x, w {bt=true}
  %2 = matmul %1, w {bt=true}
  output y %2
"""


def session_of(text, weight, **options):
    return _core.Session(_core.Model(_core.Graph.text("test", text, [("w", weight)]), **options))


@pytest.fixture(scope="module")
def long_session():
    """Hundreds of products one after the other: most of a second."""
    lines = ["graph long", "  input x f32[256,512]", "  param w f32[512,512]", "  %1 = matmul x, w {bt=true}"]
    lines += [f"  %{i + 1} = matmul %{i}, w {{bt=true}}" for i in range(1, 600)]
    return session_of("\n".join(lines + ["  output y %600", ""]), torch.randn(512, 512) / 23)


def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def call_ten_thousand_times():
    weight, x, wrong = torch.randn(64, 64), torch.randn(3, 64), torch.randn(3, 63)
    session = session_of(SMALL, weight)

    def calls(count):
        for _ in range(count):
            session.run((x,))
            try:
                session.run((wrong,))
            except _core.Mismatch:
                pass

    calls(500)
    gc.collect()
    blocks, references, before = sys.getallocatedblocks(), (sys.getrefcount(x), sys.getrefcount(session), sys.getrefcount(None)), resident()
    calls(10_000)
    gc.collect()
    assert (sys.getrefcount(x), sys.getrefcount(session)) == references[:2]
    assert abs(sys.getrefcount(None) - references[2]) < 100
    assert abs(sys.getallocatedblocks() - blocks) < 200
    assert resident() - before < 2 << 20


def test_ten_thousand_calls_leak_nothing():
    """In a process of its own: what other tests left behind is freed at any time, and would be counted."""
    child = multiprocessing.get_context("spawn").Process(target=call_ten_thousand_times)
    child.start()
    child.join()
    assert child.exitcode == 0


def test_models_leave_nothing_behind():
    weight, x = torch.randn(64, 64), torch.randn(3, 64)
    before = None
    for turn in range(60):
        session_of(SMALL, weight, precision="mxfp8").run((x,))
        if turn == 20:
            gc.collect()
            before, references = resident(), sys.getrefcount(weight)
    gc.collect()
    assert sys.getrefcount(weight) == references
    assert resident() - before < 2 << 20


def test_a_signal_ends_a_run(long_session):
    x = torch.randn(256, 512)
    long_session.run((x,))
    start = time.monotonic()
    long_session.run((x,))
    whole = time.monotonic() - start
    threading.Timer(whole / 8, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        for _ in range(20):
            long_session.run((x,))
    (y,) = long_session.run((x,))
    assert torch.isfinite(y).all()


def test_other_threads_go_on_meanwhile(long_session):
    x = torch.randn(256, 512)
    ticks, done = [], threading.Event()

    def tick():
        while not done.is_set():
            ticks.append(time.monotonic())
            time.sleep(0.001)

    thread = threading.Thread(target=tick)
    thread.start()
    start = time.monotonic()
    long_session.run((x,))
    end = time.monotonic()
    done.set()
    thread.join()
    assert sum(start < at < end for at in ticks) >= 5


def test_sessions_of_one_model_run_in_threads_of_their_own():
    weight = torch.randn(64, 64)
    model = _core.Model(_core.Graph.text("test", SMALL, [("w", weight)]), threads=2)
    wrong = []

    def work(seed):
        session = _core.Session(model)
        generator = torch.Generator().manual_seed(seed)
        for _ in range(300):
            x = torch.randn(int(torch.randint(1, 100, (1,), generator=generator)), 64, generator=generator)
            if not torch.allclose(session.run((x,))[0], x @ weight.T @ weight.T, rtol=1e-4, atol=1e-3):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_workers_sleep_when_there_is_nothing_to_do(long_session):
    """Else they would take CPUs from PyTorch's threads."""
    long_session.run((torch.randn(256, 512),))
    time.sleep(0.05)   # PyTorch's own may still spin
    before = time.process_time()
    time.sleep(0.5)
    assert time.process_time() - before < 0.05


def test_a_fork_runs_on(long_session):
    x, out = torch.randn(256, 512), torch.empty(256, 512)
    expected = long_session.run((x,))[0].numpy().tobytes()
    child = os.fork()
    if child == 0:   # where no operator of torch's may run: its threads are not there
        code = 1
        try:
            signal.alarm(60)
            long_session.run((x,), lambda shape, name: out)
            code = 0 if out.numpy().tobytes() == expected else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
