"""The command line: help, usage, failures, JSON, inputs that do not fit, generation, interruption. Standard library only."""
import json
import os
import re
import signal
import struct
import subprocess
import sys
import tempfile
import time
import zipfile

ROOT = os.getcwd()
COMMAND = os.path.join(os.environ.get("DEEPWELL_BUILD", os.path.join(ROOT, "build")), "deepwell")
KJV = os.path.join(ROOT, "models", "kjv.pt2")
GRAPH = """graph small
  symbol s 1..8
  input x f32[s,4]
  input ids i64[s]
  const w f32[2,4] = 1,2,3,4,5,6,7,8
  %1 = matmul x, w {bt=true}
  %2 = relu %1
  %3 = cast ids {to=f32}
  output y %2
  output n %3
"""
failures = []


def run(*arguments, stdin=None, **options):
    return subprocess.run([COMMAND, *arguments], capture_output=True, stdin=subprocess.DEVNULL, timeout=300, **options)


def expect(condition, claim, result=None):
    if condition:
        return
    caller = sys._getframe(1).f_code.co_name
    shown = "" if result is None else f"\n  {' '.join(result.args)}\n  exit {result.returncode}\n  stdout: {result.stdout[:400]!r}\n  stderr: {result.stderr[:600]!r}"
    failures.append(f"{caller}: {claim}{shown}")


def succeeds(*arguments):
    result = run(*arguments)
    expect(result.returncode == 0, "exit status 0", result)
    return result.stdout


def fails(code, parts, *arguments):
    """Exit status, words on stderr, nothing on stdout."""
    result = run(*arguments)
    expect(result.returncode == code, f"exit status {code}", result)
    expect(result.stdout == b"", "nothing on stdout", result)
    for part in [parts] if isinstance(parts, str) else parts:
        expect(part.encode() in result.stderr, f"'{part}' is said", result)
    expect(result.stderr.startswith(b"deepwell: ") and result.stderr.endswith(b"\n") and result.stderr.count(b"deepwell: deepwell") == 0, "one message", result)


def save(path, tensors):
    """safetensors: name -> (dtype, shape, bytes)"""
    header, at = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"".join(data for _, _, data in tensors.values()))


def load(path):
    with open(path, "rb") as file:
        data = file.read()
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + length])
    return {name: (t["dtype"], t["shape"], data[8 + length + t["data_offsets"][0]:8 + length + t["data_offsets"][1]])
            for name, t in header.items() if name != "__metadata__"}


def f32(values):
    return struct.pack(f"<{len(values)}f", *values)


def i64(values):
    return struct.pack(f"<{len(values)}q", *values)


def rows(file, macro):
    text = open(os.path.join(ROOT, "src", "cli", file)).read()
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
    return re.findall(macro + r'\(\s*(\w+),\s*("[^"]*"|NULL|\'\w\'),\s*("[^"]*"|NULL)', text)


def test_help_lists_every_command_and_option():
    overview = succeeds("--help").decode()
    commands = rows("cmd.def", "CLI_COMMAND")
    expect(len(commands) >= 8, "cmd.def was read")
    for name, letter, _ in commands:
        expect(f"deepwell {name}" in overview, f"{name} is in the overview")
        text = succeeds(name, "--help").decode()
        expect(succeeds(name, "-h").decode() == text, "-h is --help")
        for option, value, letters in rows("option.def", "CLI_OPTION"):
            takes = "*" in letters or letter.strip("'") in letters.strip('"')
            shown = re.search(rf"--{option.replace('_', '-')}\b", text) is not None
            expect(takes == shown, f"--{option} is in the help of {name}: {shown}, taken: {takes}")
    expect(re.fullmatch(r"deepwell \d+\.\d+\.\d+\n", succeeds("--version").decode()), "a version")


def test_wrong_usage_exits_with_2():
    result = run()
    expect(result.returncode == 2 and result.stdout == b"" and b"deepwell run" in result.stderr, "the overview on stderr", result)
    fails(2, "no command 'nonsense'", "nonsense")
    fails(2, "needs a file", "run")
    fails(2, "'--bogus' is not an option", "run", KJV, "--bogus")
    fails(2, "'-x' is not an option", "run", "-xy", KJV)
    fails(2, "needs a value", "inspect", KJV, "--precision")
    fails(2, "one operand too many", "inspect", KJV, KJV)
    fails(2, "one operand too many", "probe", KJV)
    fails(2, "--in FILE and --out FILE", "run", KJV, "--in", "x")
    fails(2, "-o FILE", "compile", KJV)
    fails(2, "--prompt TEXT or --ids", "generate", KJV)
    fails(2, "--prompt TEXT or --ids", "generate", KJV, "--prompt", "a", "--ids", "1")
    fails(2, "integers separated by commas", "generate", KJV, "--ids", "1,,2")
    fails(2, "from 0 to 1", "generate", KJV, "--ids", "1", "--top-p", "1.5")
    fails(2, "at least 0", "generate", KJV, "--ids", "1", "--temperature", "nan")
    fails(2, "an integer from 0", "generate", KJV, "--ids", "1", "--tokens", "-3")
    fails(2, "an integer from 1 to 1024", "generate", KJV, "--ids", "1", "--threads", "0")
    fails(2, "expected captured, fused", "inspect", KJV, "--graph", "nonsense")
    fails(2, "leave out --json", "inspect", KJV, "--graph", "fused", "--json")
    fails(2, "leave out --json", "explain", KJV, "--memory", "--json")
    fails(2, "an integer from 1", "bench", KJV, "--repeat", "0")


def test_failures_exit_with_1_and_say_file_and_cause(folder):
    empty, text = os.path.join(folder, "empty.pt2"), os.path.join(folder, "words.txt")
    open(empty, "w").close()
    open(text, "w").write("hello world\n")
    idle = os.path.join(folder, "idle.txt")
    open(idle, "w").write("graph idle\n  input x f32[3,4]\n  %1 = exp x\n")
    for command in (["inspect"], ["explain"], ["bench"], ["check", "--precision", "bf16"]):
        fails(1, "graph 'idle' has no output and no state", *command, idle)
    for command in (["inspect"], ["explain"], ["generate", "--ids", "1"], ["compile", "-o", os.path.join(folder, "x.dw")], ["bench"]):
        name, rest = command[0], command[1:]
        fails(1, ["nothing.pt2", "No such file"], name, os.path.join(folder, "nothing.pt2"), *rest)
        fails(1, [folder, "is a folder"], name, folder, *rest)
        fails(1, "empty.pt2", name, empty, *rest)
        fails(1, "words.txt:1", name, text, *rest)
    changed = os.path.join(folder, "changed.pt2")
    with open(KJV, "rb") as file, open(changed, "wb") as to, zipfile.ZipFile(KJV) as archive:
        record = max((info for info in archive.infolist() if "/data/weights/" in info.filename), key=lambda info: info.file_size)
        content = bytearray(file.read())
        content[record.header_offset + 30 + len(record.filename) + record.file_size // 2] ^= 16
        to.write(content)
    for command in (["check", "--precision", "bf16"], ["compile", "-o", os.path.join(folder, "x.dw")], ["generate", "--ids", "1"]):
        fails(1, [record.filename, "are not those that were written"], command[0], changed, *command[1:])
    fails(1, "chip 'foo' is not known; choose one of", "explain", KJV, "--chip", "foo")
    fails(1, "there is no 'all'; there are none, cheap, attention, block", "explain", "--train", KJV, "--loss", "next-token", "--recompute", "all")
    fails(1, "has no loss", "explain", "--train", KJV)
    fails(2, "are of training: explain --train", "explain", KJV, "--recompute", "block")
    fails(2, "leave it out with --train", "explain", "--train", KJV, "--memory")
    fails(2, "chunks", "explain", "--train", KJV, "--loss", "next-token", "--chunks", "65")
    fails(1, "no precision 'foo'; there are", "explain", KJV, "--precision", "foo")
    beside = json.loads(subprocess.run([COMMAND, "explain", KJV, "--precision", "bf16", "--chip", "h200", "--json"], capture_output=True, text=True, check=True).stdout)["beside"]
    assert [row["precision"] for row in beside] == ["bf16", "role:scores=bf16,role:cache=bf16,bf16"], beside
    assert all("refused" not in row and row["step_plan"]["us"] > 0 for row in beside), beside
    fails(1, ["the CUDA driver cannot be loaded", "nothing.so"], "generate", KJV, "--ids", "1", "--device", "cuda:0,driver=nothing.so")
    fails(1, "no size named q; its sizes: b, s", "explain", KJV, "--dim", "q=3")
    fails(1, "size s is 0, outside its range 1..", "explain", KJV, "--dim", "s=0")
    fails(1, "expected name=size", "explain", KJV, "--dim", "s")
    fails(2, "expected name=size", "explain", KJV, "--dim", "")
    fails(2, "s has two sizes", "explain", KJV, "--dim", "s=1,b=2,s=3")
    fails(2, "--dim is given twice, as s=1 and as b=2: give it once, with commas between", "explain", KJV, "--dim", "s=1", "--dim", "b=2")
    fails(2, "--precision is given twice, as bf16 and as mxfp8: give it once", "explain", KJV, "--precision", "bf16", "--precision", "mxfp8")
    fails(1, "kernel 'foo' is not one of its kernels", "explain", KJV, "--kernels", "matmul=foo")
    fails(1, "CORRUPT: ", "explain", KJV, "--weights", KJV)
    fails(1, ["nothing.policy", "No such file"], "explain", KJV, "--policy", os.path.join(folder, "nothing.policy"))
    fails(1, "outside the vocabulary of 256", "generate", KJV, "--ids", "1,999")
    fails(1, "at least one token", "generate", KJV, "--prompt", "")
    fails(1, ["no/such/x.dw", "cannot create"], "compile", KJV, "-o", os.path.join(folder, "no/such/x.dw"))
    expect(not os.path.exists(os.path.join(folder, "x.dw")), "no file is left by a compile that failed")


def test_inputs_that_do_not_fit_are_all_named(folder):
    graph, inputs, out = (os.path.join(folder, name) for name in ("g.txt", "x.safetensors", "y.safetensors"))
    open(graph, "w").write(GRAPH)
    good = {"x": ("F32", [3, 4], f32([1, -2, 3, 4] * 3)), "ids": ("I64", [3], i64([5, 6, 7]))}
    save(inputs, good)
    succeeds("run", graph, "--in", inputs, "--out", out)
    found = load(out)
    expect(found["y"] == ("F32", [3, 2], f32([22, 46] * 3)), f"y is right: {found['y']}")
    expect(found["n"] == ("F32", [3], f32([5, 6, 7])), f"n is right: {found['n']}")
    os.remove(out)
    wrong = [
        ({"x": good["x"]}, ["ids is missing"]),
        ({**good, "z": good["x"], "w": good["x"]}, ["z is no input", "w is no input"]),
        ({"x": ("F32", [4, 3], f32([0] * 12)), "ids": ("F32", [3], f32([0] * 3))}, ["axis 1 of x is 3, the model takes 4", "ids is f32, the model takes i64",
                                                                                   "axis 0 of ids is 3, but s is 4 elsewhere"]),
        ({"x": ("F32", [9, 4], f32([0] * 36)), "ids": ("I64", [9, 1], i64([0] * 9))}, ["axis 0 of x (s) is 9, it is at most 8", "ids has rank 2, the model takes 1"]),
        ({"x": ("F32", [0, 4], b""), "y": good["x"]}, ["axis 0 of x (s) is 0, it is at least 1", "y is no input", "ids is missing"]),
    ]
    for tensors, parts in wrong:
        save(inputs, tensors)
        fails(1, parts, "run", graph, "--in", inputs, "--out", out)
        expect(not os.path.exists(out), "nothing is written")
    save(inputs, good)
    fails(1, "cannot create", "run", graph, "--in", inputs, "--out", os.path.join(folder, "no/such/y.safetensors"))
    fails(1, "is a folder", "run", graph, "--in", inputs, "--out", folder)
    fails(1, "nothing.safetensors", "run", graph, "--in", os.path.join(folder, "nothing.safetensors"), "--out", out)
    fails(1, "g.txt", "run", graph, "--in", graph, "--out", out)
    expect(sorted(os.listdir(folder)) == sorted(set(os.listdir(folder)) - {"y.safetensors"}), "nothing is written")
    expect(not [name for name in os.listdir(folder) if name.endswith(".tmp")], "no temporary file stays")


def test_facts_are_json():
    def facts(*arguments):
        text = succeeds(*arguments)
        try:
            return json.loads(text)
        except ValueError as error:
            expect(False, f"{' '.join(arguments)} prints JSON: {error}")
            return {}
    expect("version" in facts("probe", "--json"), "probe tells the version")
    memory = facts("probe", "--chip", "h200", "--json")["rates"]["memory"]
    expect(0 < memory["measured"] < memory["nominal"], "probe has both rates of a chip that was measured")
    expect(facts("probe", "--chip", "rubin", "--json")["rates"]["bf16"]["measured"] is None, "probe has no measured rate where nobody measured")
    fails(1, "NOT_FOUND", "probe", "--chip", "h9000")
    summary = facts("inspect", KJV, "--json")
    expect(summary["inputs"][0]["name"] == "input_ids" and summary["outputs"], f"inspect tells inputs and outputs: {list(summary)}")
    plan = facts("explain", KJV, "--json", "--precision", "mxfp8")
    expect(len(plan) > 2, "explain tells a plan")
    expect(isinstance(facts("inspect", "--operators", "--json"), (list, dict)), "the operators")
    times = facts("bench", KJV, "--json", "--repeat", "1", "--prefill", "8", "--tokens", "4")
    for key in ("device", "threads", "precision", "load_seconds", "weight_bytes", "reference_flops_share", "run", "prefill", "decode"):
        expect(key in times, f"bench tells {key}")


def test_a_report_holds_runs_against_their_bounds(folder):
    report = json.loads(succeeds("bench", KJV, "--report", "--json", "--repeat", "1", "--prefill", "8", "--keys", "12", "--texts", "2"))
    whole, prefill, step = report["runs"]
    expect([whole["name"], prefill["name"], step["name"]] == ["a whole run", "prefill of 8 tokens, 2 texts", "a cached step behind 12 tokens, 2 texts"], "the runs that were asked for")
    for run in report["runs"]:
        steps, groups = run["steps"], run["groups"]
        expect(run["measured"] and run["seconds"] > 0 and run["bound_seconds"] > 0, f"{run['name']} is measured")
        expect(sum(g["count"] for g in groups) == len(steps), "each step is in a group")
        for key in ("seconds", "bound_seconds", "lost_seconds", "flops"):
            expect(abs(sum(s[key] for s in steps) - sum(g[key] for g in groups)) <= 1e-6 * sum(s[key] for s in steps), f"groups add up to their steps' {key}")
        expect(abs(sum(s["seconds"] for s in steps) - run["apart_seconds"]) <= 1e-6 * run["apart_seconds"], "steps add up to the run")
        for g in groups:
            expect(g["marked"] == (g["seconds"] > 0.01 * run["seconds"] and 2 * g["bound_seconds"] < g["seconds"]), "what is marked")
    longer = json.loads(succeeds("bench", KJV, "--report", "--json", "--repeat", "1", "--prefill", "600"))["runs"][1]
    expect(longer["runs"] == 2 and len(longer["steps"]) == 2 * len(prefill["steps"]), "a prompt that is read in two runs is one table of both")
    words = succeeds("bench", KJV, "--report", "--repeat", "1", "--prefill", "8", "--lines", "2").decode()
    expect(words.count("  and ") == 3 and words.count("ratio") >= 6, "two lines of each of three runs")
    expect(len(succeeds("bench", KJV, "--report", "--all", "--repeat", "1", "--prefill", "8").splitlines()) > 100, "--all: each step")
    fails(2, "--texts, --keys, --all and --lines are for --report", "bench", KJV, "--all")
    fails(2, "an integer from 1", "bench", KJV, "--report", "--keys", "0")


def test_what_was_not_fused_is_said_with_its_reason(folder):
    """The weights of this attention are an output as well, so it stays three steps."""
    path = os.path.join(folder, "attention.txt")
    with open(path, "w") as file:
        file.write("graph attention\n  symbol s 1..64\n  input q f32[1,2,s,8]\n  input k f32[1,2,s,8]\n  input v f32[1,2,s,8]\n"
                   "  %1 = matmul q, k {bt=true}\n  %2 = softmax %1 {axis=3}\n  %3 = matmul %2, v\n  output y %3\n  output w %2\n")
    expect(b"its weights are used elsewhere" in succeeds("explain", path), "explain says why an attention was not fused")


def test_what_padding_alone_gives_is_said(folder):
    path = os.path.join(folder, "padding.txt")
    with open(path, "w") as file:
        file.write("graph padding\n  input q f32[2,2,5,8]\n  input m bool[2,1,1,5]\n  %1 = matmul q, q {bt=true}\n  %2 = fill {shape=[],value=-3.4028234663852886e+38,to=f32}\n"
                   "  %3 = where m, %1, %2\n  %4 = softmax %3 {axis=3}\n  %5 = matmul %4, q\n  output y %5\n")
    expect(b"\npadding: a query that sees padding alone gets zeros" in succeeds("explain", path), "explain says what a query gets that sees padding alone")
    expect("padding" in json.loads(succeeds("explain", path, "--json")), "and as a fact")



def test_generation():
    greedy = succeeds("generate", KJV, "--prompt", "In the beginning", "--tokens", "24")
    expect(greedy.startswith(b"In the beginning") and len(greedy) == 16 + 24 + 1, f"prompt, 24 bytes and a newline: {greedy!r}")
    ids = ",".join(str(byte) for byte in b"In the beginning")
    new = succeeds("generate", KJV, "--ids", ids, "--tokens", "24").decode()
    expect(bytes(int(i) for i in new.strip().split(",")) == greedy[16:-1], "the ids are the text")
    for threads in ("1", "2", "3"):
        expect(succeeds("generate", KJV, "--ids", ids, "--tokens", "24", "--threads", threads).decode() == new, f"the same on {threads} threads")
    expect(succeeds("generate", KJV, "--ids", ids, "--tokens", "24", "--top-k", "1", "--temperature", "1").decode() == new, "the likeliest one is the greedy one")
    draw = ["generate", KJV, "--ids", ids, "--tokens", "32", "--temperature", "1.2", "--top-p", "0.95", "--top-k", "40"]
    first = succeeds(*draw, "--seed", "3")
    expect(first == succeeds(*draw, "--seed", "3"), "a seed gives one text")
    expect(first != succeeds(*draw, "--seed", "4"), "another seed another")
    stop = new.strip().split(",")[4]
    stopped = succeeds("generate", KJV, "--ids", ids, "--tokens", "24", "--stop", f"300,{stop}").decode().strip().split(",")
    expect(stopped == new.strip().split(",")[:new.strip().split(",").index(stop) + 1], f"ends after a stop id: {stopped}")
    expect(succeeds("generate", KJV, "--prompt", "Amen", "--tokens", "0") == b"Amen\n", "no tokens")
    expect(succeeds("generate", KJV, "--ids", "65", "--tokens", "0") == b"\n", "no ids")


def test_a_compiled_file_does_what_its_source_does(folder):
    package = os.path.join(folder, "kjv.dw")
    succeeds("compile", KJV, "-o", package, "--precision", "mxfp8")
    for command in (["generate", "--prompt", "And", "--tokens", "12"],):
        expect(succeeds(command[0], package, *command[1:]) == succeeds(command[0], KJV, *command[1:], "--precision", "mxfp8"), "the same")
    succeeds("inspect", package)
    succeeds("explain", package)
    fails(1, "its precision is settled", "generate", package, "--ids", "1", "--precision", "fp32")
    data = open(package, "rb").read()
    open(package, "wb").write(data[:len(data) // 2])
    fails(1, "kjv.dw", "generate", package, "--ids", "1")


LOSS = """graph loss
  symbol s 1..8
  input x f32[s,2]
  param w f32[3,2]
  param b f32[3]
  %1 = matmul x, w {bt=true} at "layers.0.up" type "Linear" name "linear"
  %2 = add %1, b
  %3 = mul %2, %2
  %4 = sum %3 {axes=[0,1]}
  output y %2
  output total %4
"""


def test_ranks_do_what_one_does(folder):
    text = ("--prompt", "And it came to pass", "--tokens", "12", "--threads", "2")
    whole = succeeds("generate", KJV, *text)
    expect(succeeds("generate", KJV, *text, "--world", "2") == whole, "two ranks make the same text")
    expect(succeeds("generate", KJV, *text, "--mesh", "dp=2,tp=1") == whole, "and so do replicas")
    out, split = os.path.join(folder, "ranks.dw"), os.path.join(folder, "split.txt")
    succeeds("compile", KJV, "--world", "2", "-o", out)
    expect(succeeds("generate", out, *text, "--world", "2") == whole, "and a file that was compiled for them")
    fails(1, ["MISMATCH", "is compiled for 2 ranks (tp=2), and there is 1"], "generate", out, *text)
    report = succeeds("check", KJV, "--world", "3", "--json")
    expect(all(row["relative"] < 1e-5 for row in json.loads(report)["outputs"]), f"three ranks give the outputs of the whole: {report}")
    told = json.loads(succeeds("explain", KJV, "--mesh", "tp=2", "--json"))["ranks"]
    expect(any(row["layers"] == "blocks.*.mlp.down" and row["split"] == "row" and row["count"] == 4 and "by columns alone" in row["reason"] for row in told["splits"]), f"splits are told: {told}")
    with open(split, "w", encoding="utf-8") as file:
        file.write("\n".join(told["lines"]))
    again = json.loads(succeeds("explain", KJV, "--mesh", "tp=2", "--shard", split, "--json"))["ranks"]
    expect("blocks.*.attn = heads" in told["lines"] and again["lines"] == told["lines"] and again["runs"] == told["runs"], f"and so are lines that cut the same: {told} {again}")
    expect(told["weight_bytes"] < 0.6 * told["whole_weight_bytes"] and told["runs"][0]["collectives"] > 0, f"and what a rank has and sends: {told}")
    with open(split, "w", encoding="utf-8") as file:
        file.write("nothing.of.it = row\n")
    fails(1, ["rank 0: INVALID", "the pattern of 'nothing.of.it = row (shard:1)' matches no layer"], "generate", KJV, *text, "--world", "2", "--shard", split)
    fails(2, ["--mesh tp=0"], "generate", KJV, *text, "--mesh", "tp=0")
    expect(succeeds("generate", KJV, *text, "--mesh", "tp=1") == whole, "a mesh of one rank is run, too")
    fails(1, ["SYNTAX: mesh 'tp': a name and '=' are expected"], "generate", KJV, *text, "--mesh", "tp")
    fails(1, ["mesh tp=2 has 2 ranks, and the world has 1"], "generate", KJV, *text, "--mesh", "tp=2", "--world", "1")
    fails(1, ["there is one rank of tp, and nothing to cut"], "generate", KJV, *text, "--mesh", "dp=2", "--shard", split)
    fails(1, ["INVALID", "no model is cut over axis 'sp'"], "explain", KJV, "--mesh", "sp=2")


def test_gradients_of_a_loss_are_written(folder):
    paths = {name: os.path.join(folder, name) for name in ("loss.txt", "w.safetensors", "x.safetensors", "g.safetensors")}
    open(paths["loss.txt"], "w").write(LOSS)
    save(paths["w.safetensors"], {"w": ("F32", [3, 2], f32([1, 2, 3, 4, 5, 6])), "b": ("F32", [3], f32([1, 0, -1]))})
    save(paths["x.safetensors"], {"x": ("F32", [2, 2], f32([1, -1, 2, 0]))})
    arguments = ["gradients", paths["loss.txt"], "--weights", paths["w.safetensors"], "--in", paths["x.safetensors"], "--out", paths["g.safetensors"]]
    succeeds(*arguments)
    made = load(paths["g.safetensors"])     # y = [[0, -1, -2], [3, 6, 9]]; d = 2 y
    expect(made == {"loss": ("F32", [], f32([131])), "grad.w": ("F32", [3, 2], f32([12, 0, 22, 2, 32, 4])), "grad.b": ("F32", [3], f32([6, 10, 14]))}, f"the gradients: {made}")
    printed = succeeds("inspect", paths["loss.txt"], "--graph", "gradients", "--trained", "w").decode()
    expect("state  w f32[3,2] trained" in printed and "output grad.w" in printed and "output grad.b" not in printed and "phase wgrad" in printed, f"the graph is printed: {printed}")
    succeeds(*arguments, "--loss", "total", "--trained", "b")
    expect(sorted(load(paths["g.safetensors"])) == ["grad.b", "loss"], "what is not trained has no gradient")
    os.remove(paths["g.safetensors"])
    fails(2, "--in FILE and --out FILE", "gradients", paths["loss.txt"])
    fails(1, ["the pattern 'nothing*'"], *arguments, "--trained", "nothing*")
    fails(1, ["no output named nothing", "total f32[]"], *arguments, "--loss", "nothing")
    fails(1, ["y f32[s,3]"], *arguments, "--loss", "y")
    fails(1, ["'w' is trained and has no data"], *arguments[:2], *arguments[4:])
    fails(1, ["has no loss", "export the model with its loss"], "gradients", KJV, *arguments[4:])
    open(paths["loss.txt"], "w").write(LOSS.replace("  %3 = mul %2, %2\n", "  %5 = reshape %2 {shape=[1,1,s,3]}\n  %6 = cache_write k, %5, row, row at \"layers.0.cache\" name \"write\"\n  %3 = mul %6, %6\n")
                                       .replace("axes=[0,1]", "axes=[0,1,2,3]").replace("  param w", "  input row i64[s]\n  state k f32[1,1,8,3]\n  param w"))
    fails(1, ["op cache_write of module layers.0.cache, exported as write"], *arguments)
    save(paths["x.safetensors"], {"x": ("F32", [2, 3], f32([1, -1, 2, 0, 0, 0]))})
    open(paths["loss.txt"], "w").write(LOSS)
    fails(1, ["axis 1 of x is 3, the model takes 2"], *arguments)
    expect(not os.path.exists(paths["g.safetensors"]), "nothing is half written")


def test_output_that_cannot_be_written_is_a_failure():
    if os.path.exists("/dev/full"):
        with open("/dev/full", "wb") as full:
            for arguments in (["probe"], ["generate", KJV, "--ids", "1", "--tokens", "2"], ["generate", KJV, "--prompt", "a", "--tokens", "2"], ["--help"], ["--version"]):
                result = subprocess.run([COMMAND, *arguments], stdout=full, stderr=subprocess.PIPE, timeout=300)
                expect(result.returncode == 1 and b"stdout" in result.stderr, f"{arguments}: exit {result.returncode}, {result.stderr!r}")
    result = subprocess.run(f"'{COMMAND}' probe >&-", shell=True, stderr=subprocess.PIPE, timeout=300)
    expect(result.returncode == 1, f"closed stdout: exit {result.returncode}")


def test_an_interrupt_ends_it_with_nothing_half_written(folder):
    out = os.path.join(folder, "interrupted.dw")
    long = subprocess.Popen([COMMAND, "generate", KJV, "--prompt", "In", "--tokens", "100000"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    long.stdout.read(4)
    long.send_signal(signal.SIGINT)
    _, message = long.communicate(timeout=60)
    expect(long.returncode == 1 and b"CANCELLED" in message, f"exit {long.returncode}, {message!r}")
    for delay in (0.0, 0.01, 0.03, 0.1):
        job = subprocess.Popen([COMMAND, "compile", KJV, "-o", out, "--precision", "nvfp4"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        time.sleep(delay)
        job.send_signal(signal.SIGINT)
        job.communicate(timeout=60)
        if job.returncode == 0:
            succeeds("generate", out, "--ids", "1", "--tokens", "1")
            os.remove(out)
        expect(not os.path.exists(out) and not [name for name in os.listdir(folder) if ".tmp" in name], f"after {delay} s: {os.listdir(folder)}")


def main():
    for name, test in list(globals().items()):
        if not name.startswith("test_"):
            continue
        if test.__code__.co_argcount:
            with tempfile.TemporaryDirectory() as folder:
                test(folder)
        else:
            test()
    for failure in failures:
        print(failure)
    sys.exit(1 if failures else 0)


main()
