"""Products of operands that are no constants on the CPU, beside PyTorch's mm and bmm, in turns: python bench/cpu_products.py [--threads 2] [--rounds 15] [--program build/bench/cpu_products] [WORD..]

Products of a training step of GPT-2 (124M) at 8 x 256 tokens, and small ones. Each round runs PyTorch's call, ours, and ours by a b that was packed beforehand, one after the other; reported are the
medians of all rounds, GFLOP/s of ours, and the median of the rounds' ratios: PyTorch's time over ours, more than 1 where ours takes less. WORD selects rows that contain it.
"""
import argparse
import os
import statistics
import subprocess
import time

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")   # PyTorch's threads sleep while ours work

import torch

# what, batches, m, k, n, a stored [k,m], b stored [n,k]
SHAPES = [(f"{what} {name}", batches, m, k, n, at, bt)
          for name, width, out in (("768-2304", 768, 2304), ("768-768", 768, 768), ("768-3072", 768, 3072), ("3072-768", 3072, 768), ("head", 768, 50257))
          for what, batches, m, k, n, at, bt in (("forward", 1, 2048, width, out, 0, 1), ("forward_kn", 1, 2048, width, out, 0, 0), ("dgrad", 1, 2048, out, width, 0, 0),
                                                 ("dgrad_nk", 1, 2048, out, width, 0, 1), ("wgrad", 1, out, 2048, width, 1, 0), ("wgrad_kn", 1, width, 2048, out, 1, 0))
          if name != "head" or not what.endswith(("_kn", "_nk"))]
SHAPES += [("attention qk", 96, 256, 64, 256, 0, 1), ("attention pv", 96, 256, 256, 64, 0, 0), ("attention dk", 96, 256, 256, 64, 1, 0),
           ("small 64", 1, 64, 64, 64, 0, 0), ("small 128 at bt", 1, 128, 128, 128, 1, 1), ("small 256 at", 1, 256, 256, 256, 1, 0), ("row", 1, 1, 768, 3072, 0, 0),
           ("odd 1001", 1, 1001, 999, 1003, 0, 0), ("odd 1001 at bt", 1, 1001, 999, 1003, 1, 1)]


class Ours:
    def __init__(self, program, threads):
        self.process = subprocess.Popen([program, str(threads)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def say(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def run(self):
        self.say("run")
        return float(self.process.stdout.readline().split()[0])


def measure(ours, shape, dtype, rounds):
    name, batches, m, k, n, at, bt = shape
    leading = (batches,) if batches > 1 else ()
    a, b = torch.randn(leading + ((k, m) if at else (m, k))).to(dtype), torch.randn(leading + ((n, k) if bt else (k, n))).to(dtype)
    out = torch.empty(leading + (m, n), dtype=dtype)
    left, right = a.mT if at else a, b.mT if bt else b
    mm = torch.bmm if leading else torch.mm
    text = {torch.float32: "f32", torch.bfloat16: "bf16"}[dtype]
    line = f"{text} {text} {at} {bt} {batches} {m} {k} {n}"
    calls = max(1, int(2e-3 / (2 * batches * m * n * k / 4e11)))
    times = {"torch": [], "ours": [], "packed": []}
    for index in range(rounds + 1):
        start = time.perf_counter()
        for _ in range(calls):
            mm(left, right, out=out)
        spent = {"torch": (time.perf_counter() - start) / calls}
        for way in ("ours", "packed"):
            key = f"{line} {int(way == 'packed')}"
            worker = ours[way]
            if worker.key != key:
                worker.say(key)
                worker.key = key
            spent[way] = sum(worker.run() for _ in range(calls)) / calls
        for way, taken in spent.items() if index > 0 else ():
            times[way].append(taken)
    median = {way: statistics.median(taken) for way, taken in times.items()}
    ratios = [t / o for t, o in zip(times["torch"], times["ours"])]
    flops = 2 * batches * m * n * k
    print(f"{text:5} {name:20} {batches:3} x {m:5} {k:5} {n:5} {'at' if at else '  '} {'bt' if bt else '  '}  torch {median['torch'] * 1e3:9.3f} ms  ours {median['ours'] * 1e3:9.3f}"
          f" ({flops / median['ours'] * 1e-9:6.0f} GFLOP/s)  packed {median['packed'] * 1e3:9.3f}  ratio {statistics.median(ratios):5.2f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("words", nargs="*")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--program", default="build/bench/cpu_products")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    ours = {way: Ours(arguments.program, arguments.threads) for way in ("ours", "packed")}
    for worker in ours.values():
        worker.key = None
    print(f"torch {torch.__version__}, {arguments.threads} threads, load {os.getloadavg()[0]:.1f}")
    for dtype in (torch.float32, torch.bfloat16):
        for shape in SHAPES:
            text = {torch.float32: "f32", torch.bfloat16: "bf16"}[dtype]
            if all(word in f"{text} {shape[0]}" for word in arguments.words):
                measure(ours, shape, dtype, arguments.rounds)
    print(f"load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
