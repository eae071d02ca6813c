"""Models exported in train mode, their loss inside, against PyTorch's autograd in fp64.

Usage: train_mode.py COMMAND

What a graph drops at random is a function of the input random.draw, so PyTorch is given the same masks: made here by the definition of op dropout (docs/ops.md), one for each site in the order
of the program. Held: the loss, and the gradient of each parameter, at two steps whose masks differ; the share of what is dropped; and losses over classes in all their forms. Exits 1 with what differs.
"""
import math
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import nn


# ---- what is kept ------------------------------------------------------------------------------------------------------------

def kept(shape, probability, seed, step, site):
    """Philox4x32-10 of (element / 4, site, step), word element mod 4, against probability * 2^32."""
    count = math.prod(shape)
    group = np.arange((count + 3) // 4, dtype=np.uint64)
    most = np.uint64(0xFFFFFFFF)
    word = [group & most, group >> np.uint64(32), np.full_like(group, site), np.full_like(group, step & 0xFFFFFFFF)]
    key = [np.uint64(seed & 0xFFFFFFFF), np.uint64(seed >> 32 & 0xFFFFFFFF)]
    for _ in range(10):
        a, b = np.uint64(0xD2511F53) * word[0], np.uint64(0xCD9E8D57) * word[2]
        word = [(b >> np.uint64(32)) ^ word[1] ^ key[0], b & most, (a >> np.uint64(32)) ^ word[3] ^ key[1], a & most]
        key = [(key[0] + np.uint64(0x9E3779B9)) & most, (key[1] + np.uint64(0xBB67AE85)) & most]
    words = np.stack(word, 1).reshape(-1)[:count]
    return torch.from_numpy((words >= round(probability * 2**32)).reshape(shape))


class OurDraws:
    """Within, F.dropout and attention drop what Deepwell does."""

    def __init__(self, draw):
        self.seed, self.step = draw
        self.site = 0

    def mask(self, shape, p):
        made = kept(shape, p, self.seed, self.step, self.site)
        self.site += 1
        return made

    def dropout(self, x, p=0.5, training=True, inplace=False):
        return x * self.mask(x.shape, p) / (1 - p) if training and p > 0 else x

    def dropout2d(self, x, p=0.5, training=True, inplace=False):
        return x * self.mask((x.shape[0], x.shape[1], 1, 1), p) / (1 - p) if training and p > 0 else x

    def attention(self, q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
        k, v = (x.repeat_interleave(q.shape[-3] // x.shape[-3], -3) for x in (k, v))
        s = q @ k.transpose(-2, -1) * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
        if is_causal:
            s = s.masked_fill(~torch.ones(s.shape[-2:], dtype=torch.bool).tril(), float("-inf"))
        if attn_mask is not None:
            s = s.masked_fill(~attn_mask, float("-inf")) if attn_mask.dtype == torch.bool else s + attn_mask
        return self.dropout(s.softmax(-1), dropout_p) @ v

    def __enter__(self):
        self.saved = F.dropout, F.dropout2d, F.scaled_dot_product_attention
        F.dropout, F.dropout2d, F.scaled_dot_product_attention = self.dropout, self.dropout2d, self.attention

    def __exit__(self, *_):
        F.dropout, F.dropout2d, F.scaled_dot_product_attention = self.saved


# ---- models ------------------------------------------------------------------------------------------------------------------

class Attention(nn.Module):
    def __init__(self, width, heads, groups, p, mask):
        super().__init__()
        self.heads, self.groups, self.p, self.mask = heads, groups, p, mask
        self.q, self.out = nn.Linear(width, width), nn.Linear(width, width)
        self.k, self.v = (nn.Linear(width, width // heads * groups) for _ in range(2))

    def forward(self, x, seen):
        b, s, d = x.shape
        q, k, v = (y.view(b, s, n, d // self.heads).transpose(1, 2) for y, n in ((self.q(x), self.heads), (self.k(x), self.groups), (self.v(x), self.groups)))
        mask = {"causal": None, "bool": seen[:, None, None, :], "bias": torch.where(seen, 0.0, -1e9).to(x.dtype)[:, None, None, :]}[self.mask]
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=self.p if self.training else 0.0, is_causal=self.mask == "causal", enable_gqa=self.groups < self.heads)
        return self.out(y.transpose(1, 2).reshape(b, s, d))


class Model(nn.Module):
    """A transformer with its loss: labels of -100 are ignored."""

    def __init__(self, p, mask="causal", groups=2, smoothing=0.0, norm=nn.LayerNorm, inplace=False):
        super().__init__()
        self.embed, self.drop = nn.Embedding(50, 32), nn.Dropout(p)
        self.norms = nn.ModuleList(norm(32) for _ in range(3))
        self.attention = Attention(32, 4, groups, p, mask)
        self.mlp = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Dropout(p, inplace=inplace), nn.Linear(64, 32))
        self.head, self.smoothing = nn.Linear(32, 50, bias=False), smoothing

    def forward(self, ids, labels, seen):
        x = self.drop(self.embed(ids))
        x = x + self.attention(self.norms[0](x), seen)
        x = x + self.drop(self.mlp(self.norms[1](x)))
        return F.cross_entropy(self.head(self.norms[2](x)).flatten(0, 1).float() if x.dtype == torch.bfloat16 else self.head(self.norms[2](x)).flatten(0, 1), labels.flatten(),
                               label_smoothing=self.smoothing)


class Convolutions(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.head = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, stride=2, groups=2), nn.Linear(8, 5)

    def forward(self, x, labels):
        y = F.dropout2d(self.first(x).relu(), 0.3, self.training)
        y = self.head(self.second(y).mean((2, 3)))
        return F.nll_loss(F.log_softmax(y, 1), labels)


class Loss(nn.Module):
    """One form of a loss over classes."""

    def __init__(self, shape, form, **arguments):
        super().__init__()
        self.logits, self.form, self.arguments = nn.Parameter(torch.randn(shape) * 2), form, arguments
        if arguments.pop("weighted", False):
            self.register_buffer("weight", torch.rand(shape[1 if len(shape) > 1 else 0]) + 0.5)

    def forward(self, target):
        arguments = dict(self.arguments, weight=getattr(self, "weight", None))
        if self.form == "nll":
            loss = F.nll_loss(F.log_softmax(self.logits, 1), target, **arguments)
        elif self.form == "nll of others":
            loss = F.nll_loss(self.logits * 2, target, **arguments)
        else:
            loss = F.cross_entropy(self.logits, target, **arguments)
        return loss if loss.ndim == 0 else (loss * torch.arange(1, loss.numel() + 1).reshape(loss.shape)).sum()


# ---- one case ----------------------------------------------------------------------------------------------------------------

def call(command, *args):
    done = subprocess.run([command, *map(str, args)], capture_output=True, text=True, timeout=300)
    if done.returncode != 0:
        raise SystemExit(f"{args}: {done.stderr.strip()}")
    return done.stdout


def check(command, name, module, inputs, dynamic=None, draws=((3, 0), (2**40 + 17, 5)), bound=2e-6, autocast=False):
    module = module.train()
    parameters = {k for k, _ in module.named_parameters()}
    exact = {k: v.double() if v.is_floating_point() else v for k, v in module.state_dict().items()}
    with tempfile.TemporaryDirectory() as scratch:
        scratch = Path(scratch)
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            program = torch.export.export(module, (), kwargs=inputs, dynamic_shapes=dynamic, strict=False)
        torch.export.save(program, scratch / "model.pt2")
        drawn = "random.draw" in call(command, "inspect", scratch / "model.pt2", "--graph", "captured")
        losses = []
        for draw in draws if drawn else draws[:1]:
            save_file(inputs | ({"random.draw": torch.tensor(draw)} if drawn else {}), scratch / "in.safetensors")
            call(command, "gradients", scratch / "model.pt2", "--in", scratch / "in.safetensors", "--out", scratch / "out.safetensors")
            made = load_file(scratch / "out.safetensors")
            wide = {k: v.clone().requires_grad_(k in parameters) for k, v in exact.items()}
            torch.set_default_dtype(torch.float64)
            with OurDraws(draw):
                loss = torch.func.functional_call(module, wide, kwargs={k: v.double() if v.is_floating_point() else v for k, v in inputs.items()})
            torch.set_default_dtype(torch.float32)
            loss.backward()
            losses.append(loss.item())
            (of_loss,) = [v for k, v in made.items() if not k.startswith("grad.")]
            if not abs(of_loss.item() - losses[-1]) <= bound * max(1, abs(losses[-1])):
                raise SystemExit(f"{name}: the loss is {of_loss.item():.9g}, PyTorch has {losses[-1]:.9g}")
            largest = max(float(wide[k].grad.norm()) for k in parameters)
            for k in sorted(parameters):
                error = float((made["grad." + k].double() - wide[k].grad).norm())
                if not error <= bound * (float(wide[k].grad.norm()) + largest):
                    raise SystemExit(f"{name}: the gradient of {k} is {error / float(wide[k].grad.norm()):.3g} of it off")
        if drawn and losses[0] == losses[1]:
            raise SystemExit(f"{name}: two steps dropped the same")
    print(f"{name:32} loss {losses[0]:.6f}, {len(parameters)} gradients")


class Text(Model):
    def forward(self, ids, labels):
        return super().forward(ids, labels, torch.ones_like(ids, dtype=torch.bool))


def check_training(command):
    """The trainer gives random.draw: other draws for each step and seed, the same ones again, on one thread or two and after a checkpoint."""
    with tempfile.TemporaryDirectory() as scratch:
        scratch = Path(scratch)
        ids = torch.randint(0, 50, (2, 8))
        free = {name: {0: torch.export.Dim("b", min=1, max=64), 1: torch.export.Dim("s", min=2, max=64)} for name in ("ids", "labels")}
        torch.export.save(torch.export.export(Text(0.3).train(), (), kwargs={"ids": ids, "labels": ids}, dynamic_shapes=free, strict=False), scratch / "model.pt2")
        save_file({"ids": torch.randint(0, 50, (500,))}, scratch / "data.safetensors")

        def curve(steps, *options, rate="1e-3"):
            words = call(command, "train", scratch / "model.pt2", "--data", scratch / "data.safetensors", "--labels", "next", "--steps", steps, "--rate", rate, "--batch", "2", "--length", "8",
                         "--json", *options)
            return re.findall(r'"loss": *([-0-9.e]+)', words)

        whole = curve(6, "--seed", "5")
        first = curve(3, "--seed", "5", "--save", scratch / "at3.safetensors")
        rest = curve(6, "--resume", scratch / "at3.safetensors", "--threads", "2")
        if len(whole) < 6 or first[:3] != whole[:3] or rest[:3] != whole[3:6]:
            raise SystemExit(f"training: {whole} is not {first} and {rest}")
        if curve(6, "--seed", "6") == whole:
            raise SystemExit("training: two seeds drew the same")
        print(f"{'training, resumed':32} loss {whole[0]} to {whole[5]}")


def main(command):
    torch.manual_seed(1)
    check_training(command)
    b, s = torch.export.Dim("b", min=1, max=64), torch.export.Dim("s", min=2, max=64)
    ids, labels, seen = torch.randint(0, 50, (3, 11)), torch.randint(0, 50, (3, 11)), torch.rand(3, 11) < 0.8
    labels[0, :4] = -100
    seen[:, 0] = True
    text, free = {"ids": ids, "labels": labels, "seen": seen}, {name: {0: b, 1: s} for name in ("ids", "labels", "seen")}
    check(command, "dropout 0.1, causal", Model(0.1), text, free)
    check(command, "dropout 0.5, mask of truths", Model(0.5, mask="bool", groups=4, smoothing=0.1), text, free)
    check(command, "dropout 0.2, mask of numbers", Model(0.2, mask="bias", groups=1, norm=nn.RMSNorm, inplace=True), text, free)
    check(command, "no dropout", Model(0.0, mask="bool"), text, free)
    check(command, "autocast", Model(0.1, mask="bool"), text, free, bound=2e-2, autocast=True)       # numbers of bf16, sums of them in fp32
    check(command, "convolutions, channels dropped", Convolutions(), {"x": torch.randn(2, 3, 9, 8), "labels": torch.tensor([1, 4])})
    labels = torch.tensor([2, -100, 0, 4, 1, 3])
    for weighted in (False, True):
        for reduction in ("mean", "sum", "none"):
            for form in ("cross entropy", "nll", "nll of others"):
                check(command, f"{form}, {reduction}{', weighted' * weighted}", Loss((6, 5), form, reduction=reduction, weighted=weighted), {"target": labels})
            check(command, f"smoothed, {reduction}{', weighted' * weighted}", Loss((6, 5), "", reduction=reduction, label_smoothing=0.2, ignore_index=3, weighted=weighted), {"target": labels.clamp(0)})
            check(command, f"of probabilities, {reduction}{', weighted' * weighted}", Loss((6, 5, 2), "", reduction=reduction, label_smoothing=0.1, weighted=weighted),
                  {"target": torch.randn(6, 5, 2).softmax(1)})
        check(command, f"of images{', weighted' * weighted}", Loss((2, 5, 3, 2), "", weighted=weighted), {"target": torch.randint(0, 5, (2, 3, 2))})
    check(command, "of one row", Loss((5,), ""), {"target": torch.tensor(3)})
    share = 1 - float(kept((1000, 1000), 0.1, 3, 0, 0).double().mean())
    if abs(share - 0.1) > 5 * math.sqrt(0.09 / 1e6):
        raise SystemExit(f"a share of {share} was dropped, 0.1 was asked for")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1])
