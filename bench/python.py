"""What the door to PyTorch costs: build/python/bin/python bench/python.py [first] [calls] [threads]

  first     from deepwell.optimize to the first output of a random GPT-2 of 124M parameters, torch.export's part apart, beside torch.compile's default backend
  calls     one call of two Linear of 64, ours and eager PyTorch's in turns
  threads   PyTorch's products and ours in turns in one loop, beside each alone: do their threads fight?

CPU seconds are of all threads and child processes, so that they can be read where others use the machine too; wall-clock times only where nobody does.
The load average is printed for that.
"""
import os
import resource
import subprocess
import sys
import time
import warnings

warnings.filterwarnings("ignore")


def cpu():
    """CPU seconds of this process and of those that it has waited for."""
    return sum(resource.getrusage(who).ru_utime + resource.getrusage(who).ru_stime for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def gpt2():
    import torch
    import transformers
    torch.manual_seed(124)
    config = transformers.GPT2Config(use_cache=False)
    return transformers.GPT2LMHeadModel(config).eval(), torch.randint(0, config.vocab_size, (1, 64))


def first_of(what):
    """In a process of its own: seconds from the call of optimize or compile to the first output, the part in torch.export, and both in CPU seconds."""
    import torch
    import torch._dynamo
    import deepwell.optimized
    model, ids = gpt2()
    export, spent = torch.export.export, [0.0, 0.0]

    def timed(*args, **kwargs):
        wall, own = time.perf_counter(), cpu()
        try:
            return export(*args, **kwargs)
        finally:
            spent[0] += time.perf_counter() - wall
            spent[1] += cpu() - own
    torch.export.export = timed
    with torch.no_grad():
        model(ids)          # PyTorch's own first call is not ours
        wall, own = time.perf_counter(), cpu()
        if what == "torch.compile":
            fast = torch.compile(model, dynamic=True)
        elif what == "backend":
            fast = torch.compile(model, backend="deepwell", dynamic=True)
        else:
            fast = deepwell.optimized.optimize(model, precision=what, seq_len=64)
        fast(ids)
    print(time.perf_counter() - wall, cpu() - own, *spent)


def first():
    print("from optimize to the first output of GPT-2 124M, ids [1,64]; seconds: wall, CPU; of which torch.export: wall, CPU; ours: wall, CPU")
    for what in ("fp32", "mxfp8", "backend", "torch.compile"):
        done = subprocess.run([sys.executable, __file__, "--first", what], capture_output=True, text=True)
        if done.returncode != 0:
            print(f"  {what:14} {(done.stderr.strip().splitlines() or ['failed'])[-1]}")
            continue
        wall, own, export_wall, export_cpu = map(float, done.stdout.split()[-4:])
        print(f"  {what:14} {wall:6.2f} {own:6.2f}   {export_wall:6.2f} {export_cpu:6.2f}   {wall - export_wall:6.2f} {own - export_cpu:6.2f}", flush=True)


def rounds(calls, repeat, count):
    """CPU and wall seconds of one call each, the least of the rounds, taken in turns."""
    best = {name: [float("inf"), float("inf")] for name in calls}
    for _ in range(repeat):
        for name, call in calls.items():
            wall, own = time.perf_counter(), cpu()
            for _ in range(count):
                call()
            best[name] = [min(best[name][0], (cpu() - own) / count), min(best[name][1], (time.perf_counter() - wall) / count)]
    return best


def calls():
    import torch
    import deepwell as dw
    print("one call of two Linear of 64; microseconds, least of 9 rounds of 1000: CPU, wall")
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64)).eval()
    fast = dw.optimize(model)
    with torch.no_grad():
        for rows in (1, 8):
            x = torch.randn(rows, 64)
            fast(x)
            for name, (own, wall) in rounds({"ours": lambda: fast(x), "PyTorch eager": lambda: model(x)}, 9, 1000).items():
                print(f"  [{rows},64] {name:14} {own * 1e6:6.2f} {wall * 1e6:6.2f}", flush=True)


def threads():
    import torch
    import deepwell as dw
    print(f"an MLP of 512 on [256,512] on Deepwell and a product of PyTorch's as large, {torch.get_num_threads()} threads; ms, least of 9 rounds of 10: CPU, wall")
    mlp = torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.GELU(), torch.nn.Linear(2048, 512)).eval()
    fast, x = dw.optimize(mlp), torch.randn(256, 512)
    a, b = torch.randn(256, 2048), torch.randn(2048, 512)
    with torch.no_grad():
        fast(x)

        def both():
            fast(x)
            torch.mm(a, b)
        found = rounds({"ours": lambda: fast(x), "PyTorch": lambda: torch.mm(a, b), "in turns": both}, 9, 10)
    for name, (own, wall) in found.items():
        print(f"  {name:14} {own * 1e3:6.3f} {wall * 1e3:6.3f}")
    ratios = [found["in turns"][i] / (found["ours"][i] + found["PyTorch"][i]) for i in range(2)]
    print(f"  in turns over the sum of both alone: CPU {ratios[0]:.2f}, wall {ratios[1]:.2f}")


def main():
    if sys.argv[1:2] == ["--first"]:
        return first_of(sys.argv[2])
    chosen = sys.argv[1:] or ["first", "calls", "threads"]
    print(f"load average {os.getloadavg()[0]:.2f} on {len(os.sched_getaffinity(0))} CPUs")
    for name in chosen:
        {"first": first, "calls": calls, "threads": threads}[name]()
    print(f"load average {os.getloadavg()[0]:.2f}")


if __name__ == "__main__":
    main()
