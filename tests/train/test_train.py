"""deepwell train: bits after a resume and at any number of threads, interrupts, kills at any moment, data of each kind, and what is refused. Standard library only."""
import json
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time

ROOT = os.getcwd()
COMMAND = os.path.join(os.environ.get("DEEPWELL_BUILD", os.path.join(ROOT, "build")), "deepwell")
TEXT = os.path.join(ROOT, "models", "kjv.heldout.txt")
IDS = """graph bigram
  symbol b 1..
  symbol s 1..
  input ids i64[b,s]
  param table f32[256,32]
  param w f32[256,32]
  %1 = take table, ids {axis=0}
  %2 = matmul %1, w {bt=true}
  output logits %2
"""
CLASSES = """graph classes
  symbol b 1..
  input x f32[b,4]
  input labels i64[b]
  param w f32[1030,4]
  %1 = matmul x, w {bt=true} role lm_head
  %2, %3 = cross_entropy %1, labels {ignore=-1}
  %4 = mean %2 {axes=[0]}
  output loss %4
"""
LOSS = """graph regression
  symbol b 1..
  input x f32[b,4]
  input t f32[b,2]
  param w f32[4,2]
  %1 = matmul x, w
  %2 = sub %1, t
  %3 = mul %2, %2
  %4 = mean %3 {axes=[0,1]}
  output y %1
  output loss %4
"""
failures = []


def expect(condition, claim, result=None):
    if condition:
        return
    caller = sys._getframe(1).f_code.co_name
    shown = "" if result is None else f"\n  {' '.join(result.args)}\n  exit {result.returncode}\n  stdout: {result.stdout[-400:]!r}\n  stderr: {result.stderr[-600:]!r}"
    failures.append(f"{caller}: {claim}{shown}")


def save(path, tensors):
    """safetensors: name -> (dtype, shape, bytes)"""
    header, at = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-(len(text) + 8) % 64)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"".join(data for _, _, data in tensors.values()))


def load(path):
    """safetensors: name -> bytes"""
    with open(path, "rb") as file:
        everything = file.read()
    size = struct.unpack("<Q", everything[:8])[0]
    header, data = json.loads(everything[8:8 + size]), everything[8 + size:]
    return {name: data[slice(*row["data_offsets"])] for name, row in header.items()}


def floats(count, seed):
    draw = random.Random(seed)
    return struct.pack(f"<{count}f", *(draw.gauss(0, 0.1) for _ in range(count)))


class Place:
    """A folder with both models."""

    def __enter__(self):
        self.folder = tempfile.mkdtemp()
        for name, text in (("ids.txt", IDS), ("loss.txt", LOSS)):
            with open(self / name, "w") as file:
                file.write(text)
        save(self / "ids.w", {"table": ("F32", [256, 32], floats(256 * 32, 1)), "w": ("F32", [256, 32], floats(256 * 32, 2))})
        save(self / "loss.w", {"w": ("F32", [4, 2], floats(8, 3))})
        save(self / "rows", {"x": ("F32", [50, 4], floats(200, 4)), "t": ("F32", [50, 2], floats(100, 5))})
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.folder)

    def __truediv__(self, name):
        return os.path.join(self.folder, name)

    def arguments(self, *more, of="ids"):
        data = ["--data", TEXT, "--loss", "next-token"] if of == "ids" else ["--data", self / "rows"]
        given = [] if "--data" in more else data
        return [COMMAND, "train", self / f"{of}.txt", "--weights", self / f"{of}.w", *given, "--rate", "0.01", *map(str, more)]

    def train(self, *more, of="ids"):
        return subprocess.run(self.arguments(*more, of=of), capture_output=True, stdin=subprocess.DEVNULL, timeout=300)


def lines_of(result):
    return [json.loads(line) for line in result.stdout.splitlines()]


def losses_of(result):
    return [line["loss"] for line in lines_of(result)]


def a_resumed_run_is_the_run():
    with Place() as place:
        for of in ("ids", "loss"):
            for more in ((), ("--accumulate", 3), ("--optimizer", "sgd(momentum=0.9)", "--clip", 0.1, "--schedule", "cosine", "--warmup", 5)):
                through = place.train("--steps", 20, "--json", "--out", place / "a", "--seed", 9, *more, of=of)
                expect(through.returncode == 0, "it trains", through)
                # Of a schedule the steps in all are the same, so the first run is interrupted by its checkpoint.
                first = place.train("--steps", 20, "--json", "--seed", 9, "--save", place / "c", "--save-every", 20, *more, of=of)
                expect(losses_of(first) == losses_of(through), "saving changes nothing", first)
                started = subprocess.Popen(place.arguments("--steps", 20, "--json", "--seed", 9, "--save", place / "d", "--save-every", 1, *more, of=of), stdout=subprocess.PIPE)
                for _ in range(7):
                    started.stdout.readline()
                started.send_signal(signal.SIGKILL)
                started.wait()
                started.stdout.close()
                second = place.train("--steps", 20, "--json", "--resume", place / "d", "--out", place / "b", *more, of=of)
                expect(second.returncode == 0, "it goes on", second)
                rest = losses_of(second)
                expect(0 < len(rest) < 20 and rest == losses_of(through)[-len(rest):], "it goes on with the same losses", second)
                expect(load(place / "a") == load(place / "b"), "parameters have the same bits", second)


def threads_change_no_bit():
    with Place() as place:
        outs = []
        for threads in (1, 2, 8, 2):
            result = place.train("--steps", 8, "--threads", threads, "--out", place / "a", "--clip", 1, "--optimizer", "adamw; muon for w", "--length", 300)
            expect(result.returncode == 0, "it trains", result)
            outs.append(load(place / "a"))
        expect(all(out == outs[0] for out in outs), "the same bits")


def killed_at_any_moment_the_last_checkpoint_loads():
    draw = random.Random(7)
    with Place() as place:
        loaded = 0
        for round in range(25):
            started = subprocess.Popen(place.arguments("--steps", 100000, "--save", place / "c", "--save-every", 1), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            time.sleep(0.05 + draw.random() * 0.25)
            started.send_signal(signal.SIGKILL)
            started.wait()
            if not os.path.exists(place / "c"):
                continue
            counts = struct.unpack("<7q", load(place / "c")["deepwell.trainer"])
            result = place.train("--steps", counts[6] + 1, "--resume", place / "c")
            expect(result.returncode == 0, f"the checkpoint of round {round} loads", result)
            loaded += result.returncode == 0
        expect(loaded >= 15, f"checkpoints were there: {loaded} of 25")


def an_interrupt_saves():
    with Place() as place:
        started = subprocess.Popen(place.arguments("--steps", 1000000, "--json", "--save", place / "c"), bufsize=0, stdout=subprocess.PIPE, stderr=subprocess.PIPE)   # a buffer would hold lines that communicate does not see
        for _ in range(5):
            started.stdout.readline()
        started.send_signal(signal.SIGINT)
        out, err = started.communicate(timeout=60)
        expect(started.returncode == 1, f"exit status 1, not {started.returncode}")
        expect(b"interrupted after step" in err and b"--resume" in err, f"it says how to go on: {err!r}")
        steps = 5 + out.count(b"\n")
        counts = struct.unpack("<7q", load(place / "c")["deepwell.trainer"])
        expect(counts[2] == counts[6] == steps, f"the checkpoint is of the last step: {counts} {steps}")


def not_finite_is_skipped_or_raised():
    with Place() as place:
        bad = bytearray(floats(200, 4))
        bad[16 * 7:16 * 7 + 4] = struct.pack("<f", float("nan"))
        save(place / "bad", {"x": ("F32", [50, 4], bytes(bad)), "t": ("F32", [50, 2], floats(100, 5))})
        result = place.train("--steps", 40, "--batch", 2, "--json", "--data", place / "bad", of="loss")
        skipped = [line["skipped"] for line in lines_of(result)]
        expect(result.returncode == 0 and 0 < sum(skipped) < 40, "some steps are skipped", result)
        expect(all((line["loss"] is None) == line["skipped"] for line in lines_of(result)), "those whose loss is not finite", result)
        result = place.train("--steps", 40, "--batch", 2, "--data", place / "bad", "--not-finite", "raise", of="loss")
        expect(result.returncode == 1 and b"input x has nan at [" in result.stderr, "or it is an error that says where", result)


def ids_may_be_tensors():
    with Place() as place:
        with open(TEXT, "rb") as file:
            data = file.read()
        text = place.train("--steps", 5, "--json")
        for dtype, code in (("U8", "B"), ("I16", "h"), ("I32", "i"), ("I64", "q")):
            save(place / "data", {"anything": (dtype, [len(data)], struct.pack(f"<{len(data)}{code}", *data))})
            ids = place.train("--steps", 5, "--json", "--data", place / "data", "--loss", "next-token")
            expect(ids.returncode == 0 and losses_of(ids) == losses_of(text), f"ids in {dtype} are those of the text", ids)


def what_does_not_fit_is_refused():
    with Place() as place:
        save(place / "short", {"x": ("F32", [50, 3], floats(150, 4)), "t": ("F32", [50, 2], floats(100, 5))})
        save(place / "uneven", {"x": ("F32", [49, 4], floats(196, 4)), "t": ("F32", [50, 2], floats(100, 5))})
        save(place / "whole", {"x": ("I64", [5, 4], struct.pack("<20q", *range(20))), "t": ("F32", [5, 2], floats(10, 5))})
        save(place / "large", {"ids": ("I64", [1000], struct.pack("<1000q", *[256] * 1000))})
        with open(place / "tiny", "wb") as file:
            file.write(b"abc")
        with open(place / "cut", "wb") as file:
            file.write(b"\x40\0\0\0\0\0\0\0{")
        cases = [
            (2, "train needs --data FILE, --steps N and --rate R", "ids", []),
            (2, "--steps 0: expected an integer", "ids", ["--steps", 0]),
            (2, "expected constant, linear or cosine", "ids", ["--steps", 1, "--schedule", "step"]),
            (2, "--save-every needs --save FILE", "ids", ["--steps", 1, "--save-every", 1]),
            (2, "has 3 tokens, a row needs 128 and the one behind them", "ids", ["--steps", 1, "--data", place / "tiny", "--loss", "next-token"]),
            (2, "cannot be opened", "ids", ["--steps", 1, "--data", place / "nothing", "--loss", "next-token"]),
            (1, "CORRUPT", "ids", ["--steps", 1, "--data", place / "cut", "--loss", "next-token"]),
            (1, "has no loss", "ids", ["--steps", 1, "--data", TEXT]),
            (1, "256", "ids", ["--steps", 1, "--data", place / "large", "--loss", "next-token"]),
            (2, "input x is not made of text", "loss", ["--steps", 1, "--data", TEXT]),
            (2, "axis 1 of tensor x is 3, of the input it is 4", "loss", ["--steps", 1, "--data", place / "short"]),
            (2, "another has", "loss", ["--steps", 1, "--data", place / "uneven"]),
            (2, "tensor x is i64, the input is f32", "loss", ["--steps", 1, "--data", place / "whole"]),
            (1, "there is no optimiser 'adam'", "loss", ["--steps", 1, "--optimizer", "adam"]),
            (1, "is no checkpoint of a trainer", "loss", ["--steps", 1, "--resume", place / "loss.w"]),
            (1, "NOT_FOUND", "loss", ["--steps", 1, "--resume", place / "nothing"]),
            (2, "--labels: the model has no input for labels", "ids", ["--steps", 1, "--labels", "same", "--data", TEXT, "--loss", "next-token"]),
            (1, "cannot create", "ids", ["--steps", 1, "--save", place / "no" + "/folder/file"]),
        ]
        for code, words, of, more in cases:
            result = place.train(*more, of=of)
            expect(result.returncode == code and words.encode() in result.stderr, f"exit status {code}, and '{words}' is said", result)
        result = place.train("--steps", 2, "--save", place / "c", of="loss")
        result = place.train("--steps", 3, "--resume", place / "c")
        expect(result.returncode == 1 and b"is a checkpoint of another graph" in result.stderr, "a checkpoint of another graph", result)
        result = place.train("--steps", 3, "--resume", place / "c", "--seed", 5, of="loss")
        expect(result.returncode == 2 and b"the checkpoint's is 0" in result.stderr, "another seed", result)


def what_was_trained_is_read_again():
    """The weights of an archive take other numbers by --weights."""
    kjv = os.path.join(ROOT, "models", "kjv.pt2")
    with Place() as place:
        trained = subprocess.run([COMMAND, "train", kjv, "--data", TEXT, "--loss", "next-token", "--steps", "1", "--rate", "0.5", "--batch", "1", "--length", "8", "--out", place / "w"], capture_output=True, timeout=300)
        expect(trained.returncode == 0, "the carried model trains", trained)
        said = [subprocess.run([COMMAND, "generate", kjv, "--prompt", "In the", "--tokens", "12", *more], capture_output=True, timeout=300) for more in ([], ["--weights", place / "w"])]
        expect(all(one.returncode == 0 for one in said) and said[0].stdout != said[1].stdout, "a step at such a rate changes what it says", said[1])
        save(place / "other", {"embed.weight": ("F32", [2, 2], floats(4, 1))})
        refused = subprocess.run([COMMAND, "inspect", kjv, "--weights", place / "other"], capture_output=True, timeout=300)
        expect(refused.returncode == 1, "tensors of another shape or name are refused", refused)


def explain_tells_what_a_step_keeps():
    def facts(*more):
        result = subprocess.run([COMMAND, "explain", "--train", os.path.join(ROOT, "models", "kjv.pt2"), "--loss", "next-token", "--dim", "b=8,s=128", "--json", *map(str, more)], capture_output=True, timeout=300)
        expect(result.returncode == 0, "training is explained", result)
        return json.loads(result.stdout)
    kept = []
    for level in ("none", "cheap", "attention", "block"):
        told = facts("--recompute", level)
        program = told["programs"][0]
        phases = [row["phase"] for row in program["phases"]]
        expect(phases == (["fprop"] if level == "none" else ["fprop", "again"]) + ["dgrad", "wgrad", "update"], f"{level}: phases {phases}")
        expect(sum(row["kept_bytes"] for row in program["kept"]["layers"]) == program["kept"]["bytes"], "layers have all that is kept")
        expect(told["memory"]["bytes"] == told["memory"]["workspace_bytes"] + sum(told["memory"]["states"].values()), "memory adds up")
        kept.append(program["kept"]["bytes"])
    expect(kept == sorted(kept, reverse=True) and kept[3] <= 0.3 * kept[0], f"kept by level: {kept}")
    expect(facts("--chunks", 2)["logits"]["parts"] == 2 and facts()["logits"]["parts"] == 1, "logits in parts")
    expect([program["name"] for program in facts("--accumulate", 2, "--chip", "h200")["programs"]] == ["micro", "update"], "programs, for another chip")


def on_a_simulated_gpu_it_is_the_same():
    """Another order of sums: 1e-6 of losses near 0.02."""
    build = os.environ.get("DEEPWELL_BUILD", os.path.join(ROOT, "build"))
    with open(os.path.join(build, "images", "images.def")) as file:
        if "IMAGE(" not in file.read() or not os.path.exists(os.path.join(build, "libdeepwell-sim.so")):
            print("skipped: on_a_simulated_gpu_it_is_the_same: this build has no GPU code, or no simulator")
            return
    small = ["--batch", 3, "--steps", 2, "--json", "--clip", 0.1]
    with Place() as place:
        for more in ((), ("--accumulate", 2, "--optimizer", "sgd(momentum=0.9)"), ("--accumulate", 2, "--precision", "bf16")):     # the last prepares its weights there
            here = place.train(*small, *more, of="loss")
            there = [place.train(*small, *more, "--device", "sim:h200", "--out", place / f"w{i}", of="loss") for i in range(2)]
            expect(there[0].returncode == 0 and len(losses_of(there[0])) == 2, "it trains", there[0])
            if there[0].returncode != 0:
                continue
            expect(all(abs(a - b) < 1e-6 for a, b in zip(losses_of(here), losses_of(there[0]))), f"{losses_of(here)} beside", there[0])
            expect(load(place / "w0") == load(place / "w1"), "the same bits from run to run", there[1])
        save(place / "bad", {"x": ("F32", [3, 4], struct.pack("<12f", *[3e38] * 12)), "t": ("F32", [3, 2], floats(6, 1))})
        result = place.train("--steps", 1, "--data", place / "bad", "--batch", 2, "--device", "sim:h200", "--not-finite", "raise", of="loss")
        expect(result.returncode == 1 and b"the first result that is not finite is that of op " in result.stderr, "the op is named", result)
        with open(place / "classes.txt", "w") as file:      # whose rows of logits are made longer on a GPU
            file.write(CLASSES)
        save(place / "classes.w", {"w": ("F32", [1030, 4], floats(4120, 2))})
        for label, named in ((1029, None), (1030, b"a label is 1030, it must be from 0 to 1029"), (1039, b"a label is 1039, it must be from 0 to 1029")):
            save(place / "labels", {"x": ("F32", [2, 4], floats(8, 3)), "labels": ("I64", [2], struct.pack("<2q", label, label))})
            result = place.train("--steps", 1, "--batch", 2, "--data", place / "labels", "--device", "sim:h200", "--not-finite", "raise", of="classes")
            expect(result.returncode == 0 if named is None else result.returncode == 1 and named in result.stderr, f"label {label}", result)


TESTS = [a_resumed_run_is_the_run, threads_change_no_bit, killed_at_any_moment_the_last_checkpoint_loads, an_interrupt_saves, not_finite_is_skipped_or_raised, ids_may_be_tensors,
         what_does_not_fit_is_refused, what_was_trained_is_read_again, explain_tells_what_a_step_keeps, on_a_simulated_gpu_it_is_the_same]
for test in TESTS:
    start, before = time.time(), len(failures)
    test()
    print(f"{'ok' if len(failures) == before else 'FAILED'} {test.__name__} {time.time() - start:.1f} s", flush=True)
for failure in failures:
    print(failure)
sys.exit(len(failures) > 0)
