"""The Hopper products beside their peers on one GPU, in one process, on the same random tensors: cuBLASLt through PyTorch, the best of what cuBLASLt proposes, and DeepGEMM where it
can be imported.

Usage: cuda_peers.py [--images build/images] [--calls build/bench/libcuda_matmul_calls.so] [--rounds 7] [--candidates 16] [--formats bf16,e4m3,e4m3_block] [--tiles] [--sustained 2]
                     [SHAPES, as 4096x4096x7168 ...]

Build what it loads: cmake --build build --target cuda_matmul_calls. A contestant's calls, over rotated inputs of 200 MB and more, are one CUDA graph of about 4 ms; the
contestants take turns, a replay each a round after 10 ms of rest, so all see the same clocks: burst times. A figure is the median over the rounds. --tiles times every tile of ours, and
says how far the one that the library chooses is from the best. --candidates: cuBLASLt is asked for so many proposals, each of which is timed alone (the least of three replays of about
1 ms); the fastest takes part in the turns as "Lt best", with its number among those that ran; 0: none. --sustained: each also replays without rest for so many seconds, in turns; the
figure is the mean of the second half, when the GPU runs at what its power allows. Results are compared with each other before anything is timed. Interrupted, it
prints the means of what it has.
"""
import argparse
import ctypes
import math
import statistics
import sys
import time

import torch

import cublaslt

SHAPES = """4096x4096x4096 8192x8192x8192 4096x7168x2048 4096x24576x1536 4096x7168x16384 4096x4096x7168 4096x2112x7168 4096x3072x768 4096x768x3072 4096x14336x4096
512x7168x2048 512x4096x7168 512x2112x7168 128x7168x2048 128x4096x7168 64x7168x2048 64x4096x7168""".split()
FORMATS = "bf16", "e4m3", "e4m3_block"


def load(path, images):
    calls = ctypes.CDLL(path)
    pointer, long = ctypes.c_uint64, ctypes.c_int64
    calls.bench_entry.argtypes = [ctypes.c_char_p, long, long, long, ctypes.c_int]
    calls.bench_entry_name.restype = ctypes.c_char_p
    calls.bench_launch.argtypes = [ctypes.c_int, long, long, long, pointer, pointer, pointer, pointer, ctypes.c_float, pointer, ctypes.c_void_p]
    torch.zeros(1, device="cuda")
    calls.bench_open(images.encode())
    return calls


def codes(*shape):
    """e4m3 over its whole range, as after scaling by the largest magnitude."""
    return (torch.randn(*shape, device="cuda", dtype=torch.bfloat16) * 100).clamp_(-448, 448).to(torch.float8_e4m3fn)


class Inputs:
    """Operands of one product in every form that a contestant takes, each form made from the same values."""

    def __init__(self, m, n, k, deep_gemm):
        blocks = -(-k // 128)
        self.m, self.n, self.k = m, n, k
        self.a, self.b = codes(m, k), codes(n, k)
        self.a16, self.b16 = (torch.randn(m, k, device="cuda", dtype=torch.bfloat16), torch.randn(n, k, device="cuda", dtype=torch.bfloat16))
        self.a_scales = torch.rand(m, blocks, device="cuda").add_(0.5).mul_(0.01)
        self.b_scales = torch.rand(-(-n // 128), blocks, device="cuda").add_(0.5).mul_(0.01)
        self.a_columns = self.a_scales.t().contiguous().t()             # as cuBLASLt takes them: rows side by side
        padded = torch.zeros(-(-n // 128), -(-blocks // 4) * 4, device="cuda")
        padded[:, :blocks] = self.b_scales
        self.b_columns = padded.t()                                     # [k / 128 up to a multiple of 4, n / 128]
        self.operands = {"bf16": (self.a16, self.b16), "e4m3": (self.a, self.b), "e4m3_block": (self.a, self.b)}
        self.a_deep = deep_gemm.get_mn_major_tma_aligned_tensor(self.a_scales) if deep_gemm else None
        self.one = torch.full((), 0.01, device="cuda")
        self.scales = {"bf16": (0, 0), "e4m3": (self.one.data_ptr(),) * 2, "e4m3_block": (self.b_columns.data_ptr(), self.a_columns.data_ptr())}   # of b and of a
        self.out = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)


class Contest:
    def __init__(self, args):
        self.args = args
        self.calls = load(args.calls, args.images)
        try:
            import deep_gemm
        except ImportError as error:
            print(f"no DeepGEMM: {error}")
            deep_gemm = None
        self.deep_gemm = deep_gemm
        self.lt = cublaslt.Library() if args.candidates else None
        self.workspace = torch.empty(cublaslt.WORKSPACE, device="cuda", dtype=torch.uint8)

    def ours(self, format, entry):
        def call(i):
            block = format == "e4m3_block"
            a, b = i.operands[format]
            self.calls.bench_launch(entry, i.m, i.n, i.k, a.data_ptr(), b.data_ptr(), i.a_scales.data_ptr() if block else 0, i.b_scales.data_ptr() if block else 0,
                                    1e-4 if format == "e4m3" else 1.0, i.out.data_ptr(), torch.cuda.current_stream().cuda_stream)
        return call

    def contestants(self, m, n, k):
        """{format: {name: call}}; the first of each format is ours."""
        scaling = getattr(torch.nn.functional, "ScalingType", None)
        every = {}
        for format in FORMATS:
            chosen = self.calls.bench_entry(format.encode(), m, n, k, -1)
            row = {"ours": self.ours(format, chosen)}
            number = 0
            while self.args.tiles and (entry := self.calls.bench_entry(format.encode(), m, n, k, number)) >= 0:
                number += 1
                if entry != chosen:
                    row["tile " + self.calls.bench_entry_name(entry).decode().rsplit("_", 1)[1]] = self.ours(format, entry)
            every[format] = row
        every["bf16"]["cuBLAS"] = lambda i: torch.mm(i.a16, i.b16.t(), out=i.out)
        every["e4m3"]["cuBLASLt"] = lambda i: torch._scaled_mm(i.a, i.b.t(), i.one, i.one, out_dtype=torch.bfloat16, out=i.out)
        every["e4m3"]["cuBLASLt, short sums"] = lambda i: torch._scaled_mm(i.a, i.b.t(), i.one, i.one, out_dtype=torch.bfloat16, use_fast_accum=True, out=i.out)
        if scaling and m >= 16:
            every["e4m3_block"]["cuBLASLt"] = lambda i: self.scaled(i, scaling)
        if self.deep_gemm:
            every["e4m3_block"]["DeepGEMM"] = lambda i: self.deep_gemm.fp8_gemm_nt((i.a, i.a_deep), (i.b, i.b_scales), i.out)
        return {format: every[format] for format in self.args.formats.split(",")}

    def candidate(self, product, format, candidate):
        def call(i):
            a, b = i.operands[format]
            product.multiply(candidate, a.data_ptr(), b.data_ptr(), i.out.data_ptr(), self.workspace.data_ptr(), torch.cuda.current_stream().cuda_stream, i.scales[format])
        return call

    def best_candidate(self, format, sets):
        """("Lt best, 3 of 16", its call), or None and why."""
        i, modes = sets[0], {"bf16": None, "e4m3": (cublaslt.ONE, cublaslt.ONE), "e4m3_block": (cublaslt.BY_128X128, cublaslt.BY_1X128)}
        product = cublaslt.Product(self.lt, i.m, i.n, i.k, cublaslt.BF16 if format == "bf16" else cublaslt.E4M3, modes[format])
        best, reason = None, "it proposes nothing"
        product.scale(*i.scales[format])
        try:
            proposed = product.candidates(self.args.candidates)
        except RuntimeError as error:
            return None, str(error)
        for number, candidate in enumerate(proposed):
            call = self.candidate(product, format, candidate)
            try:
                graph, calls = self.graph_of(call, sets, milliseconds=1.0)
            except RuntimeError as error:
                reason = str(error).splitlines()[0]
                continue
            least = min(self.replay(graph) for _ in range(3)) / calls
            if best is None or least < best[0]:
                best = (least, f"Lt best, {number + 1} of {len(proposed)}", call)
        return (best[1:], "") if best else (None, reason)

    @staticmethod
    def replay(graph):
        """Microseconds."""
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        stop.record()
        stop.synchronize()
        return start.elapsed_time(stop) * 1e3

    @staticmethod
    def scaled(i, scaling):
        return torch.nn.functional.scaled_mm(i.a, i.b.t(), i.a_columns, scaling.BlockWise1x128, i.b_columns, scaling.BlockWise128x128, output_dtype=torch.bfloat16)

    def graph_of(self, call, sets, milliseconds=4.0):
        for i in sets:
            call(i)
        torch.cuda.synchronize()
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for i in sets:
            call(i)
        stop.record()
        stop.synchronize()
        repeats = max(1, min(400 // len(sets), int(milliseconds / max(start.elapsed_time(stop), 1e-3))))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(repeats):
                for i in sets:
                    call(i)
        graph.replay()
        return graph, repeats * len(sets)

    def compare(self, format, row, i):
        """Every contestant's result beside ours, as the norm of the difference over the norm."""
        i.out.fill_(float("nan"))
        row["ours"](i)
        ours = i.out.float()
        worst = 0.0
        for name, call in row.items():
            i.out.fill_(float("nan"))
            given = call(i)
            other = (given if isinstance(given, torch.Tensor) else i.out).float()
            difference = ((other - ours).norm() / ours.norm()).item()
            worst = max(worst, difference) if difference == difference else math.inf
            if not difference < 1e-2:
                print(f"{format} {i.m}x{i.n}x{i.k}: {name} differs from ours by {difference:.1e}")
        return worst

    @staticmethod
    def sustained(graph, calls, seconds):
        """Microseconds of a call over the second half of so many seconds of replays."""
        marks, begin = [], time.monotonic()
        while (now := time.monotonic() - begin) < seconds:
            if not marks or len(marks) == 1 and now > seconds / 2:
                marks.append(torch.cuda.Event(enable_timing=True))
                marks[-1].record()
                replays = 0
            for _ in range(5):
                graph.replay()
            replays += 5
            last = torch.cuda.Event(enable_timing=True)
            last.record()
            last.synchronize()
        return marks[-1].elapsed_time(last) * 1e3 / (replays * calls)

    def run(self, shape):
        """{format: {name: [us in bursts, us sustained or nothing]}}"""
        m, n, k = map(int, shape.split("x"))
        count = max(2, min(32, (200 << 20) // (3 * (m + n) * k + 2 * m * n) + 1))
        sets = [Inputs(m, n, k, self.deep_gemm) for _ in range(count)]
        result = {}
        for format, row in self.contestants(m, n, k).items():
            graphs = {}
            if self.lt:
                found, reason = self.best_candidate(format, sets)
                if found:
                    row[found[0]] = found[1]
                else:
                    print(f"{format} {shape}: no Lt best: {reason}")
            for name, call in list(row.items()):
                try:
                    graphs[name] = self.graph_of(call, sets)
                except (RuntimeError, ValueError, TypeError) as error:
                    print(f"{format} {shape}: no {name}: {str(error).splitlines()[0][:140]}")
                    del row[name]
            self.compare(format, row, sets[0])
            times = {name: [] for name in graphs}
            for _ in range(self.args.rounds):
                for name, (graph, calls) in graphs.items():
                    time.sleep(0.01)
                    times[name].append(self.replay(graph) / calls)
            result[format] = {name: [statistics.median(t)] for name, t in times.items()}
            for name, (graph, calls) in graphs.items() if self.args.sustained else ():
                if not name.startswith("tile "):
                    result[format][name].append(self.sustained(graph, calls, self.args.sustained))
        return result


def tell(result, shape, ratios, chosen):
    """Prints the times of a shape, and keeps peers' over ours."""
    for format, times in result.items():
        size = "m >= 4096" if int(shape.split("x")[0]) >= 4096 else "m <= 512"
        tiles = {name: times.pop(name)[0] for name in list(times) if name.startswith("tile ")}
        for way, index in (("burst", 0), ("sustained", 1)):
            if len(times["ours"]) <= index:
                continue
            ours = times["ours"][index]
            line = f"{shape:18} {format:10} {way:9} ours {ours:8.2f}"
            for name, figures in times.items():
                if name != "ours":
                    line += f"  {name} {figures[index]:.2f} ({figures[index] / ours:.2f})"
                    ratios.setdefault((format, way, name.split(",")[0] if name.startswith("Lt best") else name, size), []).append(figures[index] / ours)
            if tiles and index == 0:
                best = min(tiles, key=tiles.get)
                chosen.append(min(1.0, tiles[best] / ours))
                line += f"  best {best} {tiles[best]:.2f}" if tiles[best] < ours else "  the best tile"
            print(line, flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--images", default="build/images")
    p.add_argument("--calls", default="build/bench/libcuda_matmul_calls.so")
    p.add_argument("--rounds", type=int, default=7)
    p.add_argument("--candidates", type=int, default=16)
    p.add_argument("--formats", default=",".join(FORMATS))
    p.add_argument("--tiles", action="store_true")
    p.add_argument("--sustained", type=float, default=0, metavar="SECONDS")
    p.add_argument("shapes", nargs="*", default=SHAPES)
    args = p.parse_args()
    contest = Contest(args)
    print(f"{torch.cuda.get_device_name(0)}, PyTorch {torch.__version__}; us a call; (x): peer's time over ours, above 1: ours is faster")
    ratios, chosen = {}, []
    try:
        for shape in args.shapes:
            tell(contest.run(shape), shape, ratios, chosen)
    except KeyboardInterrupt:
        print("interrupted")
    for (format, way, name, size), values in sorted(ratios.items()):
        print(f"geometric mean, {format}, {way}, {name}, {size}: {math.exp(statistics.fmean(map(math.log, values))):.3f} of {len(values)}")
    if chosen:
        print(f"best tile's time over the chosen one's, geometric mean: {math.exp(statistics.fmean(map(math.log, chosen))):.3f} of {len(chosen)}")


if __name__ == "__main__":
    sys.exit(main())
