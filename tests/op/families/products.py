"""Products, products of groups, convolutions, and quantize."""

import torch
import torch.nn.functional as F

from families.cases import Cases, FLOATS, FP8, MX, apart, begin, exact_in, inf, nan, normal


def matmul():
    c = Cases("matmul")
    for dtype in FLOATS:
        for sa, sb in (((2, 3), (3, 4)), ((1, 5), (5, 1)), ((9, 7), (7, 17)), ((2, 1, 2, 3), (3, 3, 2)), ((3, 2), (2, 2, 2)), ((0, 3), (3, 2)), ((2, 0), (0, 3))):
            if dtype != torch.float32 and sa not in ((2, 3), (9, 7)):
                continue
            a, b = normal(*sa, dtype=dtype), normal(*sb, dtype=dtype)
            c.add("matmul", [a, b], (a.double() @ b.double()).to(dtype), tolerance=None if dtype != torch.float32 else 5e-7)
    a, b = normal(3, 4), normal(4, 6)
    y = a.double() @ b.double()
    c.note("transposed operands, result formats")
    c.add("matmul", [a.T.contiguous(), b], y.float(), at=True)
    c.add("matmul", [a, b.T.contiguous()], y.float(), bt=True)
    c.add("matmul", [a.T.contiguous(), b.T.contiguous()], y.float(), at=True, bt=True)
    c.add("matmul", [a, b], y.to(torch.bfloat16), to=torch.bfloat16)
    h, g = a.to(torch.bfloat16), b.to(torch.bfloat16)
    c.add("matmul", [h, g], (h.double() @ g.double()).float(), to=torch.float32)
    c.add("matmul", [torch.tensor([[inf, 1.0], [nan, 1.0]]), torch.tensor([[1.0, 0.0], [2.0, 1.0]])], torch.tensor([[inf, nan], [nan, nan]]))
    long_a, long_b = normal(2, 300), normal(300, 3)
    c.add("matmul", [long_a, long_b], (long_a.double() @ long_b.double()).float(), tolerance=5e-7)

    c.note("post lists")
    bias, full = normal(6), normal(3, 6)
    z = y + bias.double()
    half = normal(3, 3)
    steps = {
        "bias": ([bias], z), "add": ([full], y + full.double()), "mul": ([full], y * full.double()), "relu": ([], y.relu()), "silu": ([], F.silu(y)),
        "gelu": ([], F.gelu(y)), "gelu_tanh": ([], F.gelu(y, approximate="tanh")), "quick_gelu": ([], y * torch.sigmoid(1.702 * y)), "tanh": ([], y.tanh()), "sigmoid": ([], y.sigmoid()),
        "swiglu": ([], F.silu(y[:, :3]) * y[:, 3:]), "geglu": ([], F.gelu(y[:, :3]) * y[:, 3:]),
        "geglu_tanh": ([], F.gelu(y[:, :3], approximate="tanh") * y[:, 3:]), "reglu": ([], y[:, :3].relu() * y[:, 3:]),
        "bias,gelu": ([bias], F.gelu(z)), "bias,add": ([bias, full], z + full.double()), "bias,swiglu": ([bias], F.silu(z[:, :3]) * z[:, 3:]),
        "bias,swiglu,bias,mul": ([bias, bias[:3], half], (F.silu(z[:, :3]) * z[:, 3:] + bias[:3].double()) * half.double()),
    }
    for post, (extra, result) in steps.items():
        c.add("matmul", [a, b] + extra, result.float(), post=f'"{post}"')
        c.add("matmul", [h, g] + [e.to(torch.bfloat16) for e in extra], {}.get(post, result).to(torch.bfloat16), tolerance=0.05, post=f'"{post}"') if post in ("bias", "bias,gelu") else None
    batch = normal(2, 3, 4)
    scalar = torch.tensor(0.5)
    c.add("matmul", [batch, b, full[:, :1].contiguous()], (batch.double() @ b.double() + full[:, :1].double()).float(), post='"add"')
    c.add("matmul", [a, b, scalar], (y * 0.5).float(), post='"mul"')

    c.note("weights in a low-precision format, then both operands; the values are exact in the formats, so the results are those of fp64")
    for name in MX + FP8:
        k = 64 if name in MX else 160
        a, w = normal(3, k), exact_in(name, 5, k)
        exact = (a.double() @ w.double().T).float()
        scale = 1e-6 if name.startswith("nvfp4") else 2e-7
        c.add("matmul", [a, (w, name)], exact, tolerance=scale, bt=True)
        q = exact_in(name, 3, k)
        c.add("matmul", [(q, name), (w, name)], (q.double() @ w.double().T).float(), tolerance=scale, bt=True)
    q, w = exact_in("mxfp8", 2, 3, 40), exact_in("mxfp4", 2, 4, 40)
    c.add("matmul", [(q, "mxfp8"), (w, "mxfp4")], (q.double() @ w.double().transpose(1, 2)).to(torch.bfloat16), bt=True, to=torch.bfloat16)
    c.add("matmul", [(exact_in("mxfp8", 2, 33), "mxfp8"), (torch.zeros(2, 33), "mxfp8")], torch.zeros(2, 2), bt=True)
    q, w = exact_in("nvfp4_row", 2, 3, 32) * torch.tensor([1.0, 2.0, 0.25])[:, None], exact_in("nvfp4", 4, 32)
    c.add("matmul", [(q, "nvfp4_row"), (w, "nvfp4")], (q.double() @ w.double().T).float(), tolerance=1e-6, bt=True)
    low = normal(4, 3).to(torch.float8_e4m3fn)
    a = normal(2, 4)
    c.add("matmul", [a, low], (a.double() @ low.double()).float())
    c.write()


def grouped():
    c = Cases("grouped")
    a, b = normal(7, 3), normal(4, 3, 5)
    offsets = torch.tensor([2, 2, 5, 6], dtype=torch.int32)

    def product(a, b, offsets, after=lambda y, g: y):
        y, begin = torch.zeros(a.shape[0], after(torch.zeros(1, b.shape[2], dtype=torch.float64), 0).shape[1], dtype=torch.float64), 0
        for g, end in enumerate(offsets.tolist()):
            y[begin:end] = after(a[begin:end].double() @ b[g].double(), g)
            begin = end
        return y

    c.add("grouped_matmul", [a, b, offsets], product(a, b, offsets).float())
    c.add("grouped_matmul", [a, b.transpose(1, 2).contiguous(), offsets], product(a, b, offsets).float(), bt=True)
    h, g = a.to(torch.bfloat16), b.to(torch.bfloat16)
    c.add("grouped_matmul", [h, g, offsets], product(h, g, offsets).to(torch.bfloat16))
    c.add("grouped_matmul", [h, g, offsets], product(h, g, offsets).float(), to=torch.float32)
    bias, group_bias, full = normal(5), normal(4, 5), normal(7, 5)
    c.add("grouped_matmul", [a, b, offsets, bias], product(a, b, offsets, lambda y, g: y + bias.double()).float(), post='"bias"')
    c.add("grouped_matmul", [a, b, offsets, group_bias], product(a, b, offsets, lambda y, g: (y + group_bias[g].double()).relu()).float(), post='"bias,relu"')
    y = product(a, b, offsets) + full.double()
    y[6:] = 0
    c.add("grouped_matmul", [a, b, offsets, full], y.float(), post='"add"')
    wide = normal(4, 3, 4)
    c.add("grouped_matmul", [a, wide, offsets], product(a, wide, offsets, lambda y, g: F.silu(y[:, :2]) * y[:, 2:]).float(), post='"swiglu"')
    c.add("grouped_matmul", [a, b, torch.zeros(4, dtype=torch.int32)], torch.zeros(7, 5))
    c.add("grouped_matmul", [torch.zeros(0, 3), b, torch.zeros(4, dtype=torch.int32)], torch.zeros(0, 5))
    q, w = exact_in("mxfp8", 4, 64), exact_in("mxfp4", 2, 3, 64)
    two = torch.tensor([1, 4], dtype=torch.int32)
    c.add("grouped_matmul", [(q, "mxfp8"), (w, "mxfp4"), two], product(q, w.transpose(1, 2), two).float(), bt=True)
    q, w = exact_in("nvfp4", 4, 64), exact_in("nvfp4_row", 2, 3, 64)
    c.add("grouped_matmul", [(q, "nvfp4"), (w, "nvfp4_row"), two], product(q, w.transpose(1, 2), two).float(), tolerance=1e-6, bt=True)
    with apart("grouped_padded"):
        c.note("padded groups: three rows for each, of which the first ones are its own")
        a, b, counts = normal(12, 3), normal(4, 3, 5), torch.tensor([2, 0, 3, 1], dtype=torch.int32)

        def padded(a, b, counts, after=lambda y, g: y):
            y = torch.stack([after(a[3 * g:3 * g + 3].double() @ b[g].double(), g) for g in range(len(b))])
            y[torch.arange(3)[None, :] >= counts[:, None]] = 0
            return y.flatten(0, 1).float()

        c.add("grouped_matmul", [a, b, counts], padded(a, b, counts), padded=2)
        bias = normal(4, 5)
        c.add("grouped_matmul", [a, b.transpose(1, 2).contiguous(), counts, bias], padded(a, b, counts, lambda y, g: (y + bias[g].double()).sigmoid()), bt=True, padded=3, post='"bias,sigmoid"')
        q, w, counts = exact_in("mxfp8", 6, 64), exact_in("mxfp4", 2, 5, 64), torch.tensor([3, 1], dtype=torch.int32)
        c.add("grouped_matmul", [(q, "mxfp8"), (w, "mxfp4"), counts], padded(q, w.transpose(1, 2), counts), bt=True, padded=1)
    with apart("grouped_outer"):
        def outer(a, b, offsets):
            begins = [0] + offsets.tolist()
            return torch.stack([a[x:y].double().T @ b[x:y].double() for x, y in zip(begins, begins[1:])])

        a, b, offsets = normal(7, 3), normal(7, 5), torch.tensor([2, 2, 5, 6], dtype=torch.int32)
        c.add("grouped_outer", [a, b, offsets], outer(a, b, offsets).float())
        for dtype in FLOATS[1:]:
            h, g = a.to(dtype), b.to(dtype)
            c.add("grouped_outer", [h, g, offsets], outer(h, g, offsets).to(dtype))
        h, g = a.to(torch.bfloat16), b.to(torch.bfloat16)
        c.add("grouped_outer", [h, g, offsets], outer(h, g, offsets).float(), to=torch.float32)
        c.add("grouped_outer", [normal(0, 3), normal(0, 5), torch.zeros(2, dtype=torch.int32)], torch.zeros(2, 3, 5))
        long_a, long_b, one = normal(300, 2), normal(300, 40), torch.tensor([290], dtype=torch.int32)
        c.add("grouped_outer", [long_a, long_b, one], outer(long_a, long_b, one).float(), tolerance=2e-6)
    c.write()


def conv():
    c = Cases("conv")
    for dtype in FLOATS:
        x, w, b = normal(2, 4, 7, dtype=dtype), normal(6, 2, 3, dtype=dtype), normal(6, dtype=dtype)
        for stride, padding, dilation in ((1, 0, 1), (2, 1, 1), (1, 2, 2), (3, 3, 2)):
            y = F.conv1d(x.double(), w.double(), b.double(), stride, padding, dilation, 2).to(dtype)
            c.add("conv", [x, w, b], y, stride=[stride], padding=[padding], dilation=[dilation], groups=2, tolerance=5e-7 if dtype == torch.float32 else None)
        x, w = normal(1, 3, 5, 6, dtype=dtype), normal(2, 3, 2, 3, dtype=dtype)
        y = F.conv2d(x.double(), w.double(), None, (2, 1), (1, 0), (1, 2)).to(dtype)
        c.add("conv", [x, w], y, stride=[2, 1], padding=[1, 0], dilation=[1, 2], groups=1, tolerance=5e-7 if dtype == torch.float32 else None)
    x, w = normal(1, 3, 4, 4), normal(5, 3, 2, 2)
    c.add("conv", [x, w], F.conv2d(x.double(), w.double(), stride=2).float(), stride=[2, 2], padding=[0, 0], dilation=[1, 1], groups=1, tolerance=5e-7)
    depthwise = normal(3, 1, 4)
    x = normal(2, 3, 5)
    c.add("conv", [x, depthwise], F.conv1d(x.double(), depthwise.double(), padding=3, groups=3).float(), stride=[1], padding=[3], dilation=[1], groups=3, tolerance=5e-7)
    c.add("conv", [torch.zeros(0, 3, 5), depthwise], torch.zeros(0, 3, 2), stride=[1], padding=[0], dilation=[1], groups=3)
    c.write()


def quantize():
    c = Cases("quantize")
    c.note("values that the format holds exactly come back unchanged")
    for name in MX + FP8:
        x = exact_in(name, 2, 3, 40) if name != "fp8_128x128" else exact_in(name, 3, 130)
        tolerance = 1e-6 if name.startswith("nvfp4") else 0
        for dtype in (torch.float32, torch.bfloat16):
            c.add("quantize", [x.to(dtype)], (x, name), tolerance=tolerance, to=name)
        c.add("dequantize", [(x, name)], x.float(), tolerance=tolerance, to=torch.float32)
        c.add("dequantize", [(x, name)], x.to(torch.bfloat16), tolerance=0, to=torch.bfloat16)
    c.note("rounding by hand: amax 3.5 needs the scale 1 rounded up and 0.5 by the floor rule, where 3.5 saturates to 3; 1.25 is a tie")
    x = torch.tensor([3.5, 1.25, -0.25, 0.2])
    c.add("quantize", [x], (torch.tensor([4.0, 1.0, 0.0, 0.0]), "mxfp4"), tolerance=0, to="mxfp4")
    c.add("quantize", [x], (torch.tensor([3.0, 1.0, -0.25, 0.25]), "mxfp4"), tolerance=0, to="mxfp4", floor=True)
    c.note("a second-level scale that was calibrated")
    x = exact_in("nvfp4", 2, 32)
    c.add("quantize", [x, torch.tensor(0.5)], (x, "nvfp4"), tolerance=1e-6, to="nvfp4")
    c.add("quantize", [torch.zeros(2, 0)], (torch.zeros(2, 0), "mxfp8"), to="mxfp8")
    c.add("quantize", [torch.zeros(0, 32)], (torch.zeros(0, 32), "nvfp4"), to="nvfp4")
    nan_block = torch.ones(40)
    nan_block[35] = nan
    back = nan_block.clone()
    back[32:] = nan
    c.add("quantize", [nan_block], (back, "mxfp8"), to="mxfp8")
    c.note("scales in tiles: the same numbers")
    x = exact_in("mxfp8", 2, 3, 40)
    c.add("quantize", [x], (x, "mxfp8@tile128x4"), tolerance=0, to="mxfp8", tiled=True)
    c.add("tile_scales", [(x, "mxfp8")], (x, "mxfp8@tile128x4"), tolerance=0)
    c.write()
