"""Holds attention_backward against autograd in fp64, by cases that are drawn: heads and the groups that share them, widths, lengths, what position, masks and biases hide, queries that see nothing,
caps, sinks, the gradient of the bias, formats.

Usage: attention_backward.py COMMAND [--device D] [--cases N] [--seed S] [--only I] [--small]

Every case is a graph with attention and its gradient, as training runs them: out and lse are what the forward made on the device. Operands are exact in their format; the sums of autograd are
fp64's own. The error of each gradient, in norm, is at most the format's bound times the norm of what the same sums are with the sign of each term taken away: a gradient in which terms
cancel has the error of its terms. Bounds: UNIT. --small: sizes for a simulated device. Prints the worst of each format, and `N cases, M wrong`; exits 1 if any is wrong or refused.
"""
import argparse
import json
import random
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

# Format -> (PyTorch's, its name in a file, bound). f64: the sums of the forward, lse, are stored in fp32, numbers up to about 16, whose rounding every weight has. f32: that, sums of up to 200
# terms, and exponentials. Of 16 bits: out, which was rounded, and the weights and their gradients, which tensor cores take in bf16, besides the rounding of the result: a few units in the last place.
FORMATS = {"f64": (torch.float64, "F64", 1e-6), "f32": (torch.float32, "F32", 2e-6), "f16": (torch.float16, "F16", 1e-3), "bf16": (torch.bfloat16, "BF16", 8e-3)}


# ---- cases -------------------------------------------------------------------------------------------------------------------

def broadcast_shape(r, shape):
    """A shape that broadcasts to this one: fewer axes, or some of size 1."""
    cut = r.choice([0, 0, 0, 1, 2])
    return [1 if r.random() < 0.3 else n for n in shape[cut:]]


def draw(r, formats, small):
    most = 40 if small else 200
    length = lambda: r.choice([1, 2, r.randint(1, 20), r.randint(1, most), r.randint(1, most), 0 if r.random() < 0.2 else most])   # noqa: E731
    width = lambda: r.choice([1, 8, 16, r.randint(1, 33), 64, 8 * r.randint(1, 16)])                                             # noqa: E731
    g, s, t = r.randint(1, 3), length(), length()
    case = {"format": r.choice(formats), "b": r.randint(1, 2), "h": g * r.choice([1, 1, 2, 3]), "g": g, "s": s, "t": t, "d": width(), "e": width()}
    attrs = {"scale": round(r.uniform(0.3, 1.5) * case["d"] ** -0.5, 3)}
    if r.random() < 0.5:
        attrs["causal"] = "true"
    if r.random() < 0.4:
        attrs["window"] = r.randint(1, max(t, 1))
    if "causal" not in attrs and r.random() < 0.3:
        attrs["ahead"] = r.randint(1, max(t, 1))
    if r.random() < 0.5 and len(attrs) > 1:
        attrs["offset"] = r.choice([t - s, r.randint(-10, 10), -s // 2, t])     # below 0: the first queries see no key
    if r.random() < 0.3:
        attrs["softcap"] = r.choice([0.7, 2.0, 30.0])
    scores = [case["b"], case["h"], s, t]
    if r.random() < 0.4:
        case["mask"] = broadcast_shape(r, scores)
    if r.random() < 0.45:
        case["bias"] = broadcast_shape(r, scores)
        case["bias_format"] = r.choice(["f32", case["format"]]) if case["format"] != "f64" else "f64"
        case["dbias"] = r.random() < 0.6
    case["sink"] = r.random() < 0.15
    return case | {"attrs": attrs}


def operands(case, g):
    kind = FORMATS[case["format"]][0]
    b, h, groups, s, t, d, e = (case[x] for x in "bhgstde")
    numbers = lambda *shape: torch.randn(*shape, generator=g, dtype=torch.float64)   # noqa: E731
    given = {"q": numbers(b, h, s, d).to(kind), "k": numbers(b, groups, t, d).to(kind), "v": numbers(b, groups, t, e).to(kind), "dout": numbers(b, h, s, e).to(kind)}
    if "mask" in case:
        given["mask"] = torch.rand(*case["mask"], generator=g) < 0.7
        if len(case["mask"]) > 1 and case["mask"][-2] > 1:
            given["mask"][..., 0, :] = False                                    # a query that sees no key
    if "bias" in case:
        given["bias"] = numbers(*case["bias"]).to(FORMATS[case["bias_format"]][0])
    if case["sink"]:
        given["sink"] = numbers(h).float()
    return given


def text_of(case, given):
    names = {kind: name for name, (kind, _, _) in FORMATS.items()} | {torch.bool: "bool"}
    attrs = ",".join(f"{name}={value}" for name, value in case["attrs"].items())
    optional = [name if name in given else "-" for name in ("mask", "bias", "sink")]
    lines = ["graph attention"] + [f"  input {name} {names[x.dtype]}[{','.join(map(str, x.shape))}]" for name, x in given.items()]
    lines.append(f"  %1, %2 = attention q, k, v, {', '.join(optional)} {{{attrs},lse=true}}")
    results = ["dq", "dk", "dv"] + (["dbias"] if case.get("dbias") else [])
    lines.append(f"  {', '.join(f'%{i + 3}' for i in range(len(results)))} = attention_backward q, k, v, %1, %2, dout, {', '.join(optional[:2])} {{{attrs}{',dbias=true' if case.get('dbias') else ''}}}")
    return "\n".join(lines + [f"  output {name} %{i + 3}" for i, name in enumerate(results)]) + "\n", results


# ---- what is exact -----------------------------------------------------------------------------------------------------------

def weights_of(case, q, k, bias, given):
    """The share of each key [b,h,s,t], by the words of the op's row in op.def."""
    attrs, s, t = case["attrs"], case["s"], case["t"]
    scores = q @ k.repeat_interleave(case["h"] // case["g"], 1).transpose(2, 3) * attrs["scale"]
    if "softcap" in attrs:
        scores = attrs["softcap"] * torch.tanh(scores / attrs["softcap"])
    if bias is not None:
        scores = scores + bias
    position, key = torch.arange(s)[:, None] + attrs.get("offset", 0), torch.arange(t)
    seen = torch.ones(s, t, dtype=torch.bool)
    if "causal" in attrs:
        seen &= key <= position
    if "window" in attrs:
        seen &= position - key < attrs["window"]
    if "ahead" in attrs:
        seen &= key - position < attrs["ahead"]
    seen = seen & given["mask"] if "mask" in given else seen
    sink = (given["sink"].double() if "sink" in given else torch.full((case["h"],), -torch.inf, dtype=torch.float64))[None, :, None, None]
    hidden = torch.cat([torch.where(seen, scores.detach(), -torch.inf), sink.expand(case["b"], case["h"], s, 1)], -1)
    most = hidden.amax(-1, keepdim=True)
    most = torch.where(most.isinf(), 0.0, most)
    parts = torch.where(seen, torch.exp(torch.where(seen, scores, most) - most), 0.0)
    whole = parts.sum(-1, keepdim=True) + torch.exp(sink - most)
    return parts / torch.where(whole == 0, 1.0, whole)


def exact(case, given):
    """The gradients by autograd, and of each what its terms come to without their signs."""
    q, k, v = (given[name].double().requires_grad_() for name in "qkv")
    bias = given["bias"].double().requires_grad_() if "bias" in given else None
    dout, shared = given["dout"].double(), case["h"] // case["g"]
    weights = weights_of(case, q, k, bias, given)
    out = weights @ v.repeat_interleave(shared, 1)
    wanted = [q, k, v] + ([bias] if case.get("dbias") else [])
    made = torch.autograd.grad(out, wanted, dout, allow_unused=True)
    made = [torch.zeros_like(x) if d is None else d for x, d in zip(wanted, made)]
    with torch.no_grad():
        p, v_heads, k_heads = weights, v.repeat_interleave(shared, 1).abs(), k.repeat_interleave(shared, 1).abs()
        ds = p * (dout.abs() @ v_heads.transpose(2, 3) + (dout * out).abs().sum(-1, keepdim=True))
        by_group = lambda x: x.unflatten(1, (case["g"], shared)).sum(2)   # noqa: E731
        terms = [case["attrs"]["scale"] * ds @ k_heads, by_group(case["attrs"]["scale"] * ds.transpose(2, 3) @ q.abs()), by_group(p.transpose(2, 3) @ dout.abs())]
        if case.get("dbias"):
            terms.append(ds.sum_to_size(bias.shape))
    return made, terms


# ---- the command -------------------------------------------------------------------------------------------------------------

def save(path, tensors):
    names, header, at = {kind: name for kind, name, _ in FORMATS.values()} | {torch.bool: "BOOL"}, {}, 0
    blobs = [bytes(x.contiguous().flatten().view(torch.uint8).tolist()) for x in tensors.values()]
    for (name, x), blob in zip(tensors.items(), blobs):
        header[name] = {"dtype": names[x.dtype], "shape": list(x.shape), "data_offsets": [at, at + len(blob)]}
        at += len(blob)
    words = json.dumps(header).encode()
    words += b" " * (-(len(words) + 8) % 64)
    path.write_bytes(struct.pack("<Q", len(words)) + words + b"".join(blobs))


def load(path):
    data = path.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    kinds = {name: kind for kind, name, _ in FORMATS.values()}
    tensors = {}
    for name, entry in json.loads(data[8:8 + size]).items():
        if name != "__metadata__":
            begin, end = (8 + size + x for x in entry["data_offsets"])
            tensors[name] = (torch.frombuffer(bytearray(data[begin:end]), dtype=kinds[entry["dtype"]]) if end > begin else torch.empty(0, dtype=kinds[entry["dtype"]])).reshape(entry["shape"])
    return tensors


def run(arguments, case, given, scratch):
    text, results = text_of(case, given)
    (scratch / "graph.txt").write_text(text)
    save(scratch / "in.safetensors", given)
    done = subprocess.run([arguments.command, "run", scratch / "graph.txt", "--in", scratch / "in.safetensors", "--out", scratch / "out.safetensors", "--device", arguments.device],
                          capture_output=True, text=True, timeout=300)
    if done.returncode != 0:
        return None, done.stderr.strip()[-400:]
    made = load(scratch / "out.safetensors")
    return [made[name] for name in results], results


def check(arguments, index, case, scratch, worst):
    given = operands(case, torch.Generator().manual_seed(arguments.seed * 100003 + index))
    made, results = run(arguments, case, given, scratch)
    if made is None:
        return f"refused: {results}"
    gradients, terms = exact(case, given)
    bound = FORMATS[case["format"]][2]
    for name, x, wanted, without_sign in zip(results, made, gradients, terms):
        if x.shape != wanted.shape:
            return f"{name} is {list(x.shape)}, not {list(wanted.shape)}"
        error, size = (x.double() - wanted).norm().item(), without_sign.norm().item()
        ratio = error / size if size > 0 else (0.0 if error == 0 else float("inf"))
        worst[case["format"]] = max(worst.get(case["format"], 0.0), ratio)
        if not ratio <= bound:
            return f"{name}: error {ratio:.3g} of its terms, bound {bound:g}"
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, help="the number of one case")
    parser.add_argument("--formats", default="f64,f32,f16,bf16")
    parser.add_argument("--small", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    wrong, worst = 0, {}
    with tempfile.TemporaryDirectory() as folder:
        numbers = range(arguments.cases) if arguments.only is None else [arguments.only]
        for index in numbers:
            case = draw(random.Random(arguments.seed * 100003 + index), arguments.formats.split(","), arguments.small)
            fault = check(arguments, index, case, Path(folder), worst)
            if fault is not None:
                wrong += 1
                print(f"case {index}: {fault}\n  {json.dumps(case)}")
    print(f"{arguments.device}: worst error by the size of terms: {', '.join(f'{name} {worst[name]:.2g}' for name in FORMATS if name in worst)}")
    print(f"{len(numbers)} cases, {wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
