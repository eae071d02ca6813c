"""One GPT block (norm, QKV, causal attention, projection, norm, MLP of four times the width with GELU) forward on an NVIDIA GPU: Deepwell beside PyTorch.

    python bench/gpu_block.py [--rounds 15] [--only 8x2048x2048] [--kernels]

All ways of one shape run in one process on the same weights and inputs, in turns: a turn is a number of calls back to back between two CUDA events, long
enough for the clocks to settle, and the median turn is reported. 'graph' replays the call from a CUDA graph, which leaves out what launching costs the
host. Peers: torch eager, torch.compile, and torch.compile with linear layers of fp8 (torch._scaled_mm, weights and activations scaled by row). --kernels adds
where our time goes, by PyTorch's profiler. Errors are relative to eager bf16. Needs torch with CUDA and the deepwell package.
"""
import argparse
import collections
import copy
import statistics

import torch
import torch.nn as nn
import torch.nn.functional as F

import deepwell

SHAPES = [(32, 512, 768, 12), (8, 2048, 2048, 16), (4, 2048, 4096, 32), (1, 1, 4096, 32)]
TURN_MS = 30
PRECISIONS = ("bf16", "fp8", "fp8-row")   # fp8: scales by block; fp8-row: by row, as the fp8 peer has them


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        b, s, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, s, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(mixed.transpose(1, 2).reshape(b, s, width))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Fp8Linear(nn.Module):
    """Weights of e4m3 with a scale per row, activations scaled by row when they come."""

    def __init__(self, linear):
        super().__init__()
        weight = linear.weight.detach().float()
        scale = weight.abs().amax(1, keepdim=True) / 448
        self.register_buffer("weight", (weight / scale).to(torch.float8_e4m3fn))
        self.register_buffer("scale", scale.t().contiguous())
        self.register_buffer("bias", linear.bias.detach())

    def forward(self, x):
        rows = x.reshape(-1, x.shape[-1])
        scale = rows.abs().amax(1, keepdim=True).float().clamp(min=1e-6) / 448
        codes = (rows.float() / scale).clamp(-448, 448).to(torch.float8_e4m3fn)
        y = torch._scaled_mm(codes, self.weight.t(), scale, self.scale, bias=self.bias, out_dtype=torch.bfloat16, use_fast_accum=True)
        return y.view(*x.shape[:-1], -1)


def with_fp8(block):
    block = copy.deepcopy(block)
    for name in ("qkv", "proj", "up", "down"):
        setattr(block, name, Fp8Linear(getattr(block, name)))
    return block


def capture(call, inputs):
    """A graph of one call for each of the inputs."""
    for x in inputs:
        call(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = [call(x) for x in inputs]
    return graph.replay, kept


def turn(call, count):
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(count):
        call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) * 1000 / count


def ways(block, shape):
    """(name, call) of every way that this machine has; reasons are printed for those that it has not."""
    def compiled(module):
        torch._dynamo.reset()
        return torch.compile(module, dynamic=False)
    makers = [("torch eager bf16", lambda: block), ("torch.compile bf16", lambda: compiled(block)),
              ("torch.compile fp8 rowwise", lambda: compiled(with_fp8(block)))]
    makers += [(f"deepwell {p}", lambda p=p: deepwell.optimize(block, precision=p, strict=True)) for p in PRECISIONS]
    x = torch.randn(*shape, device="cuda", dtype=torch.bfloat16)
    for name, make in makers:
        try:
            call = make()
            for _ in range(3):
                call(x)
            torch.cuda.synchronize()
        except Exception as error:      # a way that is not there is reported, the others are measured
            print(f"  {name}: {type(error).__name__}: {str(error).splitlines()[0][:160]}", flush=True)
            continue
        yield name, call


def kernels(call, x, times=20):
    """(name, launches a call, microseconds a call) of the GPU's kernels, longest first."""
    from torch.profiler import ProfilerActivity, profile
    call(x)
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        for _ in range(times):
            call(x)
        torch.cuda.synchronize()
    total = collections.defaultdict(lambda: [0, 0.0])
    for event in profiled.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            total[event.name][0] += 1
            total[event.name][1] += event.device_time
    return sorted(((n, c / times, us / times) for n, (c, us) in total.items()), key=lambda row: -row[2])


def measure(b, s, width, heads, rounds, with_kernels):
    torch.manual_seed(0)
    block = Block(width, heads).cuda().bfloat16().eval()
    inputs = [torch.randn(b, s, width, device="cuda", dtype=torch.bfloat16) for _ in range(3)]
    print(f"\n{b} x {s} x {width}, {heads} heads", flush=True)
    want, calls = block(inputs[0]).float(), {}
    for name, call in ways(block, (b, s, width)):
        got = call(inputs[0]).float()
        error = ((got - want).norm() / want.norm()).item()
        state = {"at": 0}

        def eager(call=call, state=state):
            state["at"] = (state["at"] + 1) % len(inputs)
            return call(inputs[state["at"]])
        calls[name] = (eager, 1, error)
        try:
            replay, kept = capture(call, inputs)
            replay()
            calls[name + ", graph"] = (replay, len(inputs), ((kept[0].float() - want).norm() / want.norm()).item())
        except Exception as error:
            print(f"  {name}, graph: {type(error).__name__}: {str(error).splitlines()[0][:160]}", flush=True)
            torch.cuda.synchronize()
    counts = {name: max(1, int(TURN_MS * 1000 / turn(call, 3))) for name, (call, _, _) in calls.items()}
    times = {name: [] for name in calls}
    for _ in range(rounds):
        for name, (call, per, _) in calls.items():
            times[name].append(turn(call, counts[name]) / per)
    for name, (_, _, error) in calls.items():
        us = sorted(times[name])
        print(f"  {name:34s} {statistics.median(us):9.1f} us   ({us[0]:.1f} .. {us[-1]:.1f})   error {error:.1e}", flush=True)
    if with_kernels:
        for precision in PRECISIONS:
            print(f"  kernels of deepwell {precision}: launches, us a call")
            for kernel, count, us in kernels(deepwell.optimize(block, precision=precision, strict=True), inputs[0]):
                print(f"    {kernel[:60]:60s} {count:5.1f} {us:9.1f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", help="one shape: BxSxWIDTH")
    parser.add_argument("--kernels", action="store_true", help="where our time goes")
    arguments = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, deepwell {deepwell.__version__}")
    with torch.no_grad():
        for shape in SHAPES:
            if arguments.only in (None, "x".join(map(str, shape[:3]))):
                measure(*shape, arguments.rounds, arguments.kernels)
                torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
