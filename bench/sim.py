#!/usr/bin/env python3
"""Speed of the simulator itself (not of any GPU): multiply-adds of each matrix instruction and instructions of threads, per second of one CPU's time, all checks on.

    python3 bench/sim.py [--library build/libdeepwell-sim.so] [--rounds N] [--spread] [NAME..]

Each kernel is a loop of one CTA over random operands that are neither zero nor special; those of bf16 and tf32, whose range is fp32's, lie between 2^-7 and 2, with --spread anywhere
between 2^-126 and 2. A row says how many multiply-adds were done in the launch's CPU time, its loop, fences, waits and commits included."""
import argparse
import ctypes
import os
import time

HEAD = """.version 8.8
.target {target}
.address_size 64
.shared .align 1024 .b8 tile[65536];
.shared .align 8 .b64 done;
.shared .align 4 .b32 base;
.visible .entry test(.param .u64 out, .param .u32 rounds)
{{
    .reg .b64 %out, %a, %d<4>;
    .reg .b32 %t, %thread, %warp, %round, %rounds, %phase, %x, %r<200>;
    .reg .f32 %f<200>;
    .reg .pred %p<8>;
    ld.param.u32 %rounds, [rounds];
    mov.u32 %thread, %tid.x;
    shr.u32 %warp, %thread, 5;
    setp.eq.u32 %p0, %thread, 0;
    setp.eq.u32 %p1, %warp, 0;
    mov.u32 %r0, tile;
    mad.lo.u32 %r1, %thread, 4, %r0;
    mad.lo.u32 %x, %thread, 1664525, 1013904223;
    mov.u32 %round, 0;
$fill:
    mad.lo.u32 %x, %x, 1664525, 1013904223;
    shr.u32 %r2, %x, 4;
    xor.b32 %r2, %r2, %x;
    and.b32 %r2, %r2, {mask};
    or.b32 %r2, %r2, {least};
    st.shared.u32 [%r1], %r2;
    add.u32 %r1, %r1, 512;
    add.u32 %round, %round, 1;
    setp.lt.u32 %p2, %round, 128;
    @%p2 bra $fill;
    fence.proxy.async;
    bar.sync 0;
    shr.u32 %r2, %r0, 4;
    cvt.u64.u32 %a, %r2;
    mov.u32 %round, 0;
    mov.u32 %phase, 0;
    setp.ne.u32 %p4, 1, 0;
"""
TAIL = """    add.u32 %round, %round, 1;
    setp.lt.u32 %p3, %round, %rounds;
    @%p3 bra $again;
"""


def scalar():
    """The loop: 19 instructions, with a conversion, a checked load and a guarded addition."""
    body = "    mov.f32 %f1, 0f3F800000;\n    mov.f32 %f2, 0f3F000000;\n$again:\n"
    body += "    and.b32 %r3, %round, 127;\n    shl.b32 %r3, %r3, 2;\n    add.u32 %r3, %r3, %r0;\n    ld.shared.u32 %r4, [%r3];\n    xor.b32 %r5, %r4, %round;\n    shr.u32 %r6, %r5, 9;\n"
    body += "    cvt.rn.f32.u32 %f3, %r6;\n    fma.rn.f32 %f1, %f1, %f2, %f3;\n    mul.f32 %f1, %f1, %f2;\n    add.f32 %f1, %f1, %f2;\n    mad.lo.u32 %r7, %r5, 3, %r6;\n    add.u32 %r8, %r7, %thread;\n"
    body += "    setp.lt.u32 %p5, %r8, 1000000;\n    @%p5 add.u32 %r9, %round, 1;\n    and.b32 %r10, %r8, 255;\n    or.b32 %r11, %r10, 1;\n"
    return "sm_90a", body + TAIL + "    ret;\n}\n", 128 * 19


def mma(shape, types, a_registers, b_registers):
    m, n, k = shape
    zero = types.startswith("s32")
    result, kind = ("%r1", "mov.u32") if zero else ("%f", "mov.f32")
    body = "".join(f"    {kind} {result}{10 + i}, {'0' if zero else '0f00000000'};\n" for i in range(16))
    body += "".join(f"    and.b32 %r{100 + i}, %x, {{mask}};\n    or.b32 %r{100 + i}, %r{100 + i}, {{least}};\n    mad.lo.u32 %x, %x, 1664525, 1013904223;\n" for i in range(8))
    body += "$again:\n"
    a = ", ".join(f"%r{100 + i}" for i in range(a_registers))
    b = ", ".join(f"%r{104 + i}" for i in range(b_registers))
    for i in range(4):
        d = ", ".join(f"{result}{10 + 4 * i + j}" for j in range(4))
        body += f"    mma.sync.aligned.m{m}n{n}k{k}.row.col.{types} {{{d}}}, {{{a}}}, {{{b}}}, {{{d}}};\n"
    return "sm_90a", body + TAIL + "    ret;\n}\n", 4 * 4 * m * n * k


def wgmma(n, k, types, signs):
    d = ", ".join(f"%{'r' if types.startswith('s32') else 'f'}{10 + i}" for i in range(n // 2))
    zero = "mov.u32 %r{}, 0" if types.startswith("s32") else "mov.f32 %f{}, 0f00000000"
    body = "".join(f"    {zero.format(10 + i)};\n" for i in range(n // 2))
    body += "    or.b64 %d0, %a, 0x4000004000010000;\n    add.u64 %d1, %d0, 1024;\n$again:\n    wgmma.fence.sync.aligned;\n"
    for i in range(4):
        body += f"    wgmma.mma_async.sync.aligned.m64n{n}k{k}.{types} {{{d}}}, %d0, %d1, %p4{signs};\n"
    body += "    wgmma.commit_group.sync.aligned;\n    wgmma.wait_group.sync.aligned 0;\n"
    return "sm_90a", body + TAIL + "    ret;\n}\n", 4 * 64 * n * k


def tcgen05(kind, k, idesc, scales=None):
    n = 128
    body = "    @%p0 mbarrier.init.shared::cta.b64 [done], 1;\n    @%p1 tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [base], 256;\n    bar.sync 0;\n    ld.shared.b32 %t, [base];\n"
    body += "    or.b64 %d0, %a, 0x4000404000010000;\n    add.u64 %d1, %d0, 2048;\n"
    operands = ""
    if scales is not None:
        body += f"    shl.b32 %r3, %warp, 21;\n    add.u32 %r3, %r3, %t;\n    add.u32 %r3, %r3, 128;\n    mov.u32 %r4, {scales};\n"
        body += f"    tcgen05.st.sync.aligned.32x32b.x32.b32 [%r3], {{{', '.join(['%r4'] * 32)}}};\n    tcgen05.wait::st.sync.aligned;\n    bar.sync 0;\n    add.u32 %r5, %t, 128;\n    add.u32 %r6, %t, 144;\n"
        operands = " [%r5], [%r6],"
    body += "    setp.ne.u32 %p5, 0, 0;\n$again:\n"
    for _ in range(4):
        body += f"    @%p0 tcgen05.mma.cta_group::1.{kind} [%t], %d0, %d1, 0x{idesc:x},{operands} %p5;\n    setp.ne.u32 %p5, 1, 0;\n"
    body += "    @%p0 tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [done];\n$wait:\n    mbarrier.try_wait.parity.shared::cta.b64 %p2, [done], %phase;\n    @!%p2 bra $wait;\n    xor.b32 %phase, %phase, 1;\n"
    return "sm_100a", body + TAIL + "    bar.sync 0;\n    @%p1 tcgen05.dealloc.cta_group::1.sync.aligned.b32 %t, 256;\n    ret;\n}\n", 4 * 128 * n * k


DENSE = 128 // 8 << 17 | 128 // 16 << 24          # n, m (PTX ISA 9.7.16.4.2)
SCALED = 128 // 8 << 17 | 128 // 128 << 27
KERNELS = {
    "threads": scalar(),
    "mma.sync f16 m16n8k16": mma((16, 8, 16), "f32.f16.f16.f32", 4, 2),
    "mma.sync bf16 m16n8k16": mma((16, 8, 16), "f32.bf16.bf16.f32", 4, 2),
    "mma.sync tf32 m16n8k8": mma((16, 8, 8), "f32.tf32.tf32.f32", 4, 2),
    "mma.sync e4m3 m16n8k32": mma((16, 8, 32), "f32.e4m3.e4m3.f32", 4, 2),
    "mma.sync s8 m16n8k32": mma((16, 8, 32), "s32.s8.s8.s32", 4, 2),
    "wgmma bf16 n128": wgmma(128, 16, "f32.bf16.bf16", ", 1, 1, 0, 0"),
    "wgmma f16 n256": wgmma(256, 16, "f32.f16.f16", ", 1, 1, 0, 0"),
    "wgmma tf32 n128": wgmma(128, 8, "f32.tf32.tf32", ", 1, 1"),
    "wgmma e4m3 n128": wgmma(128, 32, "f32.e4m3.e4m3", ", 1, 1"),
    "wgmma s8 n128": wgmma(128, 32, "s32.s8.s8", ""),
    "tcgen05 bf16": tcgen05("kind::f16", 16, DENSE | 1 << 4 | 1 << 7 | 1 << 10),
    "tcgen05 f16 to f16": tcgen05("kind::f16", 16, DENSE),
    "tcgen05 tf32": tcgen05("kind::tf32", 8, DENSE | 1 << 4 | 2 << 7 | 2 << 10),
    "tcgen05 e4m3": tcgen05("kind::f8f6f4", 32, DENSE | 1 << 4),
    "tcgen05 s8": tcgen05("kind::i8", 32, DENSE | 2 << 4 | 1 << 7 | 1 << 10),
    "tcgen05 mxf8 e4m3": tcgen05("kind::mxf8f6f4.block_scale.block32", 32, SCALED | 1 << 23, 0x7F7F7F7F),
    "tcgen05 mxf4": tcgen05("kind::mxf4.block_scale.block32", 64, SCALED | 1 << 7 | 1 << 10 | 1 << 23, 0x7F7F7F7F),
    "tcgen05 mxf4nvf4": tcgen05("kind::mxf4nvf4.block_scale.block16", 64, SCALED | 1 << 7 | 1 << 10, 0x38383838),
}


class Simulator:
    def __init__(self, path, chip):
        os.environ["DEEPWELL_SIM"] = f"{chip},threads=1"
        self.driver = ctypes.CDLL(path)
        self.said = ""
        kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t)
        self.hear = kind(lambda user, level, text, length: setattr(self, "said", text[:length].decode()))
        self.call("cuLogsRegisterCallback", self.hear, None, None)
        context = ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self.call("cuCtxPushCurrent_v2", context)

    def call(self, name, *arguments):
        if getattr(self.driver, name)(*arguments) != 0:
            raise SystemExit(f"{name}: {self.said}")

    def seconds(self, text, rounds):
        library, kernel, function, out = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_uint64()
        self.call("cuLibraryLoadData", ctypes.byref(library), text.encode(), None, None, 0, None, None, 0)
        self.call("cuLibraryGetKernel", ctypes.byref(kernel), library, b"test")
        self.call("cuKernelGetFunction", ctypes.byref(function), kernel)
        self.call("cuMemAlloc_v2", ctypes.byref(out), ctypes.c_size_t(65536))
        count = ctypes.c_uint32(rounds)
        arguments = (ctypes.c_void_p * 2)(ctypes.addressof(out), ctypes.addressof(count))
        begin = time.process_time()
        self.call("cuLaunchKernel", function, 1, 1, 1, 128, 1, 1, 0, None, arguments, None)
        self.call("cuCtxSynchronize")
        return time.process_time() - begin


def run_one(path, name, rounds, spread):
    target, body, each = KERNELS[name]
    simulator = Simulator(path, "h200" if target == "sm_90a" else "b200")
    mask, least = 0xBFBFBFBF, 0
    if "bf16" in name:
        mask, least = (0xBFFFBFFF, 0x00800080) if spread else (0x83FF83FF, 0x3C003C00)
    if "tf32" in name:
        mask, least = (0xBFFFFFFF, 0x00800000) if spread else (0x83FFFFFF, 0x3C000000)
    text = (HEAD.format(target=target, mask=mask, least=least) + body).replace("{mask}", str(mask)).replace("{least}", str(least))
    if name == "threads":
        rounds *= 50
    few = min(simulator.seconds(text, 1) for _ in range(3))
    spent = min(simulator.seconds(text, rounds) for _ in range(3)) - few
    print(f"{name:24} {each * (rounds - 1) / spent / 1e9:8.2f} G {'thread instructions' if name == 'threads' else 'multiply-adds'} a second", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", default="build/libdeepwell-sim.so")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--spread", action="store_true")
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    for name in options.names or KERNELS:
        process = os.fork()   # a process has one chip
        if process == 0:
            run_one(os.path.abspath(options.library), name, options.rounds, options.spread)
            os._exit(0)
        if os.waitpid(process, 0)[1] != 0:
            raise SystemExit(1)


if __name__ == "__main__":
    main()
