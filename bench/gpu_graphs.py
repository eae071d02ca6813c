"""Calls in CUDA graphs, as the benchmarks on GPUs time them, and Deepwell's kernels by cuda_kernels."""
import re
import statistics
import subprocess

import torch


def capture(calls):
    """A graph of the calls, each made once before, and their results in it."""
    for call in calls:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = [call() for call in calls]
    graph.replay()
    torch.cuda.synchronize()
    return graph, kept


def replay(graph, count):
    """Microseconds of a replay."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(count):
        graph.replay()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) * 1000 / count


def call_us(calls, rounds):
    """Microseconds of one of the calls: the median of rounds of 20 ms."""
    graph, kept = capture(calls)
    count = max(1, int(20000 / replay(graph, 2)))
    return statistics.median(replay(graph, count) / len(calls) for _ in range(rounds))


def kernel_us(program, line):
    """{kernel: microseconds} of those by wgmma that take a line of conformance, by the program cuda_kernels, a process of its own."""
    result = subprocess.run([program, "--only", "wgmma", line], capture_output=True, text=True, timeout=300)
    found = re.findall(r"^ *([0-9.]+) us .* (cuda_\w+) ", result.stdout, re.M)
    if not found:
        print((result.stdout + result.stderr).strip()[:300])
    return {name: float(us) for us, name in found}
