"""Random programs of branches, loops, guards and registers of all sizes on the simulator, beside what each thread computes by itself in Python: registers share rows (sim/decode/rows.c), and none may see another's
value, whatever way its lanes take. A kernel that fits the simulator's registers only because they do share. And what a trace prints of operands that no instruction reads here: policies of caches."""
import os
import random
import re
import subprocess
import sys
import tempfile

TOOL, LIBRARY = os.environ["DEEPWELL_BUILD"] + "/tests/tool_sim_ptx", os.environ["DEEPWELL_BUILD"] + "/libdeepwell-sim.so"
LANES, BLOCKS, PROGRAMS = 32, 3, 40
BITS = {"r": 32, "w": 64, "h": 16}
COUNTS = {"r": 60, "w": 16, "h": 12, "p": 8}


class Program:
    """Statements as text and as a function of a thread's registers, made side by side."""

    def __init__(self, seed):
        self.random, self.text, self.labels, self.loops, self.shorts = random.Random(seed), [], 0, 0, 0

    def register(self, kind):
        return f"%{kind}{self.random.randrange(COUNTS[kind])}"

    def label(self):
        self.labels += 1
        return f"$L{self.labels}"

    def beginning(self):
        """Most registers are set before the rest; those that are not may be read as zeros, and share nothing."""
        steps = []
        for i in range(2, COUNTS["r"]):
            if self.random.random() < 0.1:
                continue
            number = self.random.randrange(1 << 32)
            self.text.append(f"    xor.b32 %r{i}, %r0, {number};")
            steps.append((f"%r{i}", lambda s, number=number: s["%r0"] ^ number))
        for kind, type in (("w", "u64"), ("h", "u16")):
            for i in range(COUNTS[kind]):
                if self.random.random() < 0.9:
                    self.text.append(f"    cvt.{type}.u32 %{kind}{i}, %r0;")
                    steps.append((f"%{kind}{i}", lambda s, mask=(1 << BITS[kind]) - 1: s["%r0"] & mask))
        for i in range(COUNTS["p"]):
            if self.random.random() < 0.9:
                number = self.random.randrange(LANES)
                self.text.append(f"    setp.lt.u32 %p{i}, %r1, {number};")
                steps.append((f"%p{i}", lambda s, number=number: int(s["%r1"] < number)))

        def run(state):
            for to, value in steps:
                state[to] = value(state)
        return run

    def simple(self):
        """One instruction that sets a register; its guard, where it has one, keeps the old value in some lanes."""
        kind = self.random.choice("rrrrwwhp")
        to, a, b = self.register(kind), self.register("r"), self.register("r")
        w, h, p = self.register("w"), self.register("h"), self.register("p")
        number = self.random.randrange(1, 1 << 16)
        ways = {
            "r": [(f"add.u32 {to}, {a}, {b};", lambda s: s[a] + s[b]), (f"xor.b32 {to}, {a}, {number};", lambda s: s[a] ^ number), (f"mul.lo.u32 {to}, {a}, {b};", lambda s: s[a] * s[b]),
                  (f"mad.lo.u32 {to}, {a}, {number}, {b};", lambda s: s[a] * number + s[b]), (f"selp.b32 {to}, {a}, {b}, {p};", lambda s: s[a] if s[p] else s[b]),
                  (f"cvt.u32.u64 {to}, {w};", lambda s: s[w]), (f"cvt.u32.u16 {to}, {h};", lambda s: s[h]), (f"mov.u32 {to}, {number};", lambda s: number)],
            "w": [(f"cvt.u64.u32 {to}, {a};", lambda s: s[a]), (f"mul.wide.u32 {to}, {a}, {b};", lambda s: s[a] * s[b]), (f"xor.b64 {to}, {to}, {w};", lambda s: s[to] ^ s[w]),
                  (f"mov.b64 {to}, {{{a}, {b}}};", lambda s: s[a] | s[b] << 32)],
            "h": [(f"cvt.u16.u32 {to}, {a};", lambda s: s[a]), (f"add.u16 {to}, {h}, {to};", lambda s: s[h] + s[to])],
            "p": [(f"setp.lt.u32 {to}, {a}, {b};", lambda s: s[a] < s[b]), (f"setp.eq.u16 {to}, {h}, {number};", lambda s: s[h] == number)],
        }
        text, value = self.random.choice(ways[kind])
        guard, negated = (self.register("p"), self.random.random() < 0.5) if self.random.random() < 0.2 else (None, False)
        self.text.append(f"    @{'!' if negated else ''}{guard} {text}" if guard else f"    {text}")
        mask = (1 << BITS[kind]) - 1 if kind != "p" else 1

        def run(state):
            if guard is None or bool(state[guard]) != negated:
                state[to] = int(value(state)) & mask
        return run

    def mixing(self):
        """What a register holds goes into the sum that is stored: only what is read has to stay."""
        a, b = self.register("r"), self.register("r")
        short = f"%short{self.shorts}"
        self.shorts += 1
        self.text += [f"    add.u32 {short}, {a}, {b};", "    shf.l.wrap.b32 %sum, %sum, %sum, 5;", f"    xor.b32 %sum, %sum, {short};"]

        def run(state):
            state["%sum"] = ((state["%sum"] << 5 | state["%sum"] >> 27) & 0xffffffff) ^ (state[a] + state[b] & 0xffffffff)
        return run

    def choice(self, depth):
        """if and else, by the lane."""
        p, other, end = self.register("p"), self.label(), self.label()
        self.text.append(f"    @{p} bra {other};")
        no = self.block(depth - 1)
        self.text += [f"    bra {end};", f"{other}:"]
        yes = self.block(depth - 1)
        self.text.append(f"{end}:")
        return lambda state: (yes if state[p] else no)(state)

    def loop(self, depth):
        """So many turns as two bits of a register say, and one."""
        self.loops += 1
        turns, many, a, begin = f"%turn{self.loops}", f"%many{self.loops}", self.register("r"), self.label()
        self.text += [f"    and.b32 {many}, {a}, 3;", f"    mov.u32 {turns}, 0;", f"{begin}:"]
        body = self.block(depth - 1)
        self.text += [f"    add.u32 {turns}, {turns}, 1;", f"    setp.le.u32 %back, {turns}, {many};", f"    @%back bra {begin};"]

        def run(state):
            for _ in range((state[a] & 3) + 1):
                body(state)
        return run

    def asked_first(self, depth):
        """A loop whose body lies in front of what asks for it: no turns at all, too."""
        self.loops += 1
        turns, many, a, body, ask = f"%turn{self.loops}", f"%many{self.loops}", self.register("r"), self.label(), self.label()
        self.text += [f"    and.b32 {many}, {a}, 3;", f"    mov.u32 {turns}, 0;", f"    bra {ask};", f"{body}:"]
        inner = self.block(depth - 1)
        self.text += [f"    add.u32 {turns}, {turns}, 1;", f"{ask}:", f"    setp.lt.u32 %back, {turns}, {many};", f"    @%back bra {body};"]

        def run(state):
            for _ in range(state[a] & 3):
                inner(state)
        return run

    def switch(self, depth):
        """One of four ways by a table, laid out from the last to the first."""
        a, end, ways = self.register("r"), self.label(), [self.label() for _ in range(4)]
        self.text += [f"$T{end[1:]}: .branchtargets {', '.join(ways)};", f"    and.b32 %which, {a}, 3;", f"    brx.idx %which, $T{end[1:]};"]
        steps = [None] * 4
        for i in (3, 2, 1, 0):
            self.text.append(f"{ways[i]}:")
            steps[i] = self.block(depth - 1)
            self.text.append(f"    bra {end};")
        self.text.append(f"{end}:")
        return lambda state: steps[state[a] & 3](state)

    def flow(self, depth):
        return self.random.choice((self.choice, self.choice, self.loop, self.asked_first, self.switch))(depth)

    def block(self, depth):
        steps = []
        for _ in range(self.random.randrange(2, 9)):
            kind = self.random.random()
            steps.append(self.flow(depth) if depth > 0 and kind < 0.2 else self.mixing() if kind < 0.45 else self.simple())

        def run(state):
            for step in steps:
                step(state)
        return run

    def make(self):
        run = [self.beginning()] + [self.block(3) for _ in range(6)]
        names = [f"%{kind}{i}" for kind, count in COUNTS.items() for i in range(count)]
        sums = []
        for lane in range(LANES):
            state = dict.fromkeys(names, 0) | {"%r0": lane * 2654435761 & 0xffffffff, "%r1": lane, "%sum": 0}
            for block in run:
                block(state)
            sums.append(state["%sum"])
        registers = "".join(f"    .reg .{type} %{kind}<{COUNTS[kind]}>;\n" for kind, type in (("r", "b32"), ("w", "b64"), ("h", "b16"), ("p", "pred")))
        turns = "".join(f"    .reg .b32 %turn{i + 1}, %many{i + 1};\n" for i in range(self.loops))
        # %r0 and %r1 are set once; all others begin as zeros, which a warp before may have left as something else.
        return f"""// launch: grid={BLOCKS} block={LANES}
// out: {BLOCKS * LANES * 4}
// expect: u32 {' '.join(map(str, sums * BLOCKS))}
.version 8.3
.target sm_90a
.address_size 64
.visible .entry test(.param .u64 out, .param .u64 in)
{{
{registers}{turns}    .reg .pred %back;
    .reg .b32 %sum, %which;
    .reg .b32 %short<{self.shorts}>;
    .reg .b64 %out;
    mov.u32 %r1, %tid.x;
    mul.lo.u32 %r0, %r1, 2654435761;
    mov.u32 %sum, 0;
""" + "\n".join(self.text) + f"""
    ld.param.u64 %out, [out];
    mad.lo.u32 %which, %ctaid.x, {LANES}, %tid.x;
    mad.wide.u32 %out, %which, 4, %out;
    st.global.u32 [%out], %sum;
    ret;
}}
"""


def make_long(count):
    """So many registers of 128 bits, each a copy of the one before: rows of their own would take more memory than a warp may have."""
    steps = "\n".join(f"mov.b128 q{i},q{i - 1};" for i in range(1, count))
    return f"""// launch: grid=1 block={LANES}
// out: {LANES * 8}
// expect: u64 {' '.join(str(lane * 5) for lane in range(LANES))}
.version 8.3
.target sm_90a
.address_size 64
.visible .entry test(.param .u64 out, .param .u64 in)
{{
    .reg .b128 q<{count}>;
    .reg .b64 %out, %low, %high;
    .reg .b32 %lane;
    mov.u32 %lane, %tid.x;
    mul.wide.u32 %low, %lane, 5;
    mov.b128 q0, {{%low, %low}};
{steps}
    mov.b128 {{%low, %high}}, q{count - 1};
    ld.param.u64 %out, [out];
    mad.wide.u32 %out, %lane, 8, %out;
    st.global.u64 [%out], %high;
    ret;
}}
"""


POLICIES = """// launch: grid=1 block=1
// out: 16
// expect: u32 7 7 9 9
.version 8.3
.target sm_90a
.address_size 64
.visible .entry test(.param .u64 out, .param .u64 in)
{
    .reg .b64 %out, %policy, %made<4>, %never;
    .reg .b32 %r<2>;
    ld.param.u64 %out, [out];
    mov.b64 %policy, 0x1234000000000000;
    add.u64 %made0, %out, 8;
    add.u64 %made1, %made0, 4;
    add.u64 %made2, %out, 4;
    mov.u32 %r0, 7;
    mov.u32 %r1, 9;
    st.global.L2::cache_hint.b32 [%out], %r0, %policy;
    st.global.L2::cache_hint.b32 [%made2], %r0, %never;
    st.global.L2::cache_hint.b32 [%made0], %r1, %policy;
    st.global.L2::cache_hint.b32 [%made1], %r1, %policy;
    ret;
}
"""


def check_trace(folder):
    with open(f"{folder}/policies.ptx", "w") as file:
        file.write(POLICIES)
    done = subprocess.run([TOOL, LIBRARY, f"{folder}/policies.ptx"], env=os.environ | {"DEEPWELL_SIM": f"h200,trace=test,trace_file={folder}/trace"}, capture_output=True, text=True)
    with open(f"{folder}/trace") as file:
        shown = re.findall(r"%(?:policy|never) = (\S+)", "".join(line for line in file if " st." in line))
    if done.returncode != 0 or shown != ["0x1234000000000000", "0x0", "0x1234000000000000", "0x1234000000000000"]:
        sys.exit(f"the trace shows policies as {shown}\n{done.stdout}{done.stderr}")


with tempfile.TemporaryDirectory() as folder:
    check_trace(folder)
    files = []
    for seed in range(PROGRAMS):
        files.append(f"{folder}/random_{seed}.ptx")
        with open(files[-1], "w") as file:
            file.write(Program(seed).make())
    files.append(f"{folder}/long.ptx")
    with open(files[-1], "w") as file:
        file.write(make_long(140000))
    for options in ("h200,budget=4000000", "h200,budget=4000000,seed=7,threads=2"):
        done = subprocess.run([TOOL, LIBRARY, *files], env=os.environ | {"DEEPWELL_SIM": options}, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"{options}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
print(f"{PROGRAMS} random programs of {LANES} lanes, and one of 140000 registers, are right under two schedules")
