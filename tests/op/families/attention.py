"""Attention, its gradients, indexers, caches and rotations."""

import torch
import torch.nn.functional as F

from families.cases import Cases, FLOATS, exact_in, gradients, inf, nan, normal


def attention():
    c = Cases("attention")

    def expected(q, k, v, scale, mask=None, bias=None, sink=None, causal=False, window=0, ahead=0, offset=0, softcap=0.0):
        q, k, v = q.double(), k.double(), v.double()
        n = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(n, 1), v.repeat_interleave(n, 1)
        s = q @ k.transpose(2, 3) * scale
        if softcap:
            s = softcap * torch.tanh(s / softcap)
        if bias is not None:   # a number of f32, as PyTorch's scores are
            s = (s + bias.double()).float().double()
        i, j = torch.arange(s.shape[2])[:, None] + offset, torch.arange(s.shape[3])[None]
        seen = torch.ones_like(s, dtype=torch.bool)
        if causal:
            seen &= j <= i
        if window:
            seen &= i - j < window
        if ahead:
            seen &= j - i < ahead
        if mask is not None:
            seen &= mask
        s = s.masked_fill(~seen, -inf)
        if sink is not None:
            s = torch.cat([s, sink.double().reshape(1, -1, 1, 1).expand(*s.shape[:3], 1)], 3)
        p = torch.softmax(s, 3).nan_to_num(0.0)
        return p[..., :k.shape[2]] @ v

    for dtype in FLOATS:
        q, k, v = normal(2, 4, 3, 6, dtype=dtype), normal(2, 2, 5, 6, dtype=dtype), normal(2, 2, 5, 3, dtype=dtype)
        c.add("attention", [q, k, v], expected(q, k, v, 0.5).to(dtype), scale=0.5)
        c.add("attention", [q, k, v], expected(q, k, v, 0.5, causal=True, offset=2).to(dtype), scale=0.5, causal=True, offset=2)
    q, k, v = normal(1, 2, 4, 3), normal(1, 1, 6, 3), normal(1, 1, 6, 2)
    forms = [
        dict(causal=True), dict(causal=True, window=2), dict(causal=True, window=2, offset=2), dict(ahead=2, offset=1), dict(window=2, ahead=3),
        dict(softcap=1.5), dict(causal=True, offset=-2), dict(causal=True, offset=9), dict(window=1, offset=7),
    ]
    for form in forms:
        c.add("attention", [q, k, v], expected(q, k, v, 0.7, **form).float(), scale=0.7, **form)
    c.note("mask, bias and sink; rows that see nothing give 0")
    padding = torch.tensor([1, 1, 0, 1, 0, 1], dtype=torch.bool)
    mask = torch.rand(1, 1, 4, 6) < 0.6
    mask[0, 0, 1] = False
    bias, sink = normal(2, 4, 6), normal(2)
    c.add("attention", [q, k, v, padding], expected(q, k, v, 0.7, mask=padding).float(), scale=0.7)
    c.add("attention", [q, k, v, mask], expected(q, k, v, 0.7, mask=mask).float(), scale=0.7)
    c.add("attention", [q, k, v, None, bias], expected(q, k, v, 0.7, bias=bias).float(), scale=0.7)
    c.add("attention", [q, k, v, mask, bias, sink], expected(q, k, v, 0.7, mask=mask, bias=bias, sink=sink, causal=True, offset=1, softcap=2.0).float(), scale=0.7, causal=True, offset=1, softcap=2.0)
    c.add("attention", [q, k, v, None, None, sink], expected(q, k, v, 0.7, sink=sink).float(), scale=0.7)
    hidden = torch.zeros(4, 6).masked_fill(~mask[0, 0], -inf)
    c.add("attention", [q, k, v, None, hidden], expected(q, k, v, 0.7, bias=hidden).float(), scale=0.7)
    h = [x.to(torch.bfloat16) for x in (q, k, v)]
    c.add("attention", h, expected(*h, 0.7).float(), scale=0.7, to=torch.float32)
    c.add("attention", [torch.zeros(1, 2, 0, 3), k, v], torch.zeros(1, 2, 0, 2), scale=1)
    c.add("attention", [q, torch.zeros(1, 1, 0, 3), torch.zeros(1, 1, 0, 2)], torch.zeros(1, 2, 4, 2), scale=1)
    bad = q.clone()
    bad[0, 0, 0, 0] = nan
    y = expected(bad, k, v, 0.7)
    y[0, 0, 0] = nan
    c.add("attention", [bad, k, v], y.float(), scale=0.7)
    wide = [normal(1, 1, 1, 260, scale=0.2), normal(1, 1, 2, 260, scale=0.2), normal(1, 1, 2, 260)]
    c.add("attention", wide, expected(*wide, 0.1).float(), scale=0.1)
    c.note("tokens of two texts beside caches of six places; the first text is longer, so its cache is a ring")
    lengths, room = (9, 4), 6
    texts = [(normal(1, 1, n, 3), normal(1, 1, n, 2)) for n in lengths]
    k, v = torch.zeros(2, 1, room, 3), torch.zeros(2, 1, room, 2)
    for r, (keys, values) in enumerate(texts):
        for p in range(lengths[r]):
            k[r, :, p % room], v[r, :, p % room] = keys[0, :, p], values[0, :, p]
    row, position = torch.tensor([0, 1, 1, 0]), torch.tensor([8, 3, 0, 7])
    q, sink = normal(1, 2, 4, 3), normal(2)
    padding = torch.rand(2, 1, 1, 9) < 0.7
    bias = normal(2, 1, 9)
    for form in (dict(window=3), dict(window=4, softcap=1.5)):
        for operands in ((None, None, None), (padding, bias, sink)):
            made = []
            for i in range(4):
                r, p = int(row[i]), int(position[i])
                mask = None if operands[0] is None else operands[0][r:r + 1, ..., :p + 1]
                b = None if operands[1] is None else operands[1][..., :p + 1]
                made.append(expected(q[:, :, i:i + 1], texts[r][0][:, :, :p + 1], texts[r][1][:, :, :p + 1], 0.7, mask=mask, bias=b, sink=operands[2], offset=p, **form))
            c.add("attention", [q, k, v, *operands, row, position], torch.cat(made, 2).float(), scale=0.7, causal=True, **form)
    c.note("rows whose biases are huge, the same, partly or all -inf, NaN, inf; PyTorch's attention in f32, whose scores are numbers of f32")
    q, k, v, sink = normal(1, 2, 6, 3), normal(1, 1, 6, 3), normal(1, 1, 6, 2), torch.tensor([0.25, -inf])

    def of_torch(bias, k=k, v=v, **form):
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            return F.scaled_dot_product_attention(q, k, v, bias.float(), scale=0.7, enable_gqa=True, **form)

    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        low = torch.finfo(dtype).min
        rows = [[low] * 6, [low, -inf, low, low, -inf, -inf], [low, low, 0.5, low, low, low], [-inf] * 6, [0, low, -inf, 1.5, low, 0], [-inf, low, -inf, -inf, -inf, -inf]]
        bias = torch.tensor(rows, dtype=dtype)
        c.add("attention", [q, k, v, None, bias], of_torch(bias), tolerance=1e-6, scale=0.7)
        keys = torch.tensor([low, low, 0, low, 0, low], dtype=dtype)
        c.add("attention", [q, k, v, None, keys], of_torch(keys.expand(6, 6)), tolerance=1e-6, scale=0.7)
        keys = torch.full((6,), low, dtype=dtype)
        c.add("attention", [q, k, v, None, keys], of_torch(keys.expand(6, 6)), tolerance=1e-6, scale=0.7)
    low = torch.finfo(torch.float32).min
    added = torch.tensor([0, 0, 0, low, low, low])[None] + torch.full((6, 6), low).triu(1)
    left = torch.tensor([low, low, 0, 0, 0, 0])[None] + torch.full((6, 6), low).triu(1)
    tall = torch.tensor([[-1e9] * 6, [-1e20] * 6, [-1e30] * 6, [-1e30, -1e31, -1e30, -inf, -1e38, low], [1e9] * 6, [3e38, 3e38, low, 1e38, 0, 0]])
    odd = torch.tensor([[nan, 0, 0, 0, 0, 0], [low, nan, low, low, low, low], [-inf, -inf, inf, 0, 0, 0], [inf] * 6, [0] * 6, [nan] * 6])
    for bias in (added, left, tall, odd):
        c.add("attention", [q, k, v, None, bias], of_torch(bias), tolerance=1e-6, scale=0.7)
    padding = torch.tensor([0, 0, low, low, low, low])
    c.add("attention", [q, k, v, None, padding], expected(q, k, v, 0.7, bias=padding, causal=True, offset=-1).float(), scale=0.7, causal=True, offset=-1)
    c.add("attention", [q, k, v, None, padding.flip(0)], expected(q, k, v, 0.7, bias=padding.flip(0), causal=True).float(), scale=0.7, causal=True)
    c.add("attention", [q, k, v, None, padding, sink], expected(q, k, v, 0.7, bias=padding, sink=sink).float(), scale=0.7)
    lowest, sinks = torch.full((6,), low), torch.tensor([low, 0])
    c.add("attention", [q, k, v, None, lowest, sinks], expected(q, k, v, 0.7, bias=lowest, sink=sinks).float(), scale=0.7)
    y = expected(q, k, v, 0.7, sink=torch.tensor([0, 0.5]))
    y[:, 0] = nan
    for sinks in ([inf, 0.5], [nan, 0.5]):
        c.add("attention", [q, k, v, None, None, torch.tensor(sinks)], y.float(), scale=0.7)
    c.note("what a hidden key holds is not looked at")
    wrong_k, wrong_v = k.clone(), v.clone()
    wrong_k[0, 0, 2:4], wrong_v[0, 0, 3:5] = torch.tensor([nan, inf, -inf]), nan
    for dtype in (torch.float32, torch.bfloat16):
        low = torch.finfo(dtype).min
        for hidden in ([0, 0, low, low, low, 0.5], [0, 0, -inf, low, -inf, 0.5], [-1e30] * 2 + [-inf] * 3 + [-1e30]):
            bias = torch.tensor(hidden, dtype=dtype)
            c.add("attention", [q, wrong_k, wrong_v, None, bias], of_torch(bias.expand(6, 6)), tolerance=1e-6, scale=0.7)
    c.note("pages of two keys: two texts share the first one, one page is not there, tokens of row -1 see nothing")
    lengths, page, table = (7, 5), 2, torch.tensor([[4, 1, 0, 2], [4, -1, 3, -1]], dtype=torch.int32)
    texts = [(normal(1, 1, 8, 3), normal(1, 1, 8, 2)) for _ in lengths]
    k, v = torch.full((5, 1, page, 3), nan), torch.full((5, 1, page, 2), nan)
    for r, (keys, values) in reversed(list(enumerate(texts))):
        for p in range(lengths[r]):
            if table[r, p // page] >= 0:
                k[table[r, p // page], :, p % page], v[table[r, p // page], :, p % page] = keys[0, :, p], values[0, :, p]
    texts[1][0][:, :, :page], texts[1][1][:, :, :page] = texts[0][0][:, :, :page], texts[0][1][:, :, :page]
    there = (table >= 0).repeat_interleave(page, 1)
    q, sink = normal(1, 2, 5, 3), normal(2)
    row, position = torch.tensor([1, 0, -1, 0, 1]), torch.tensor([4, 6, 99, 1, 3])
    padding, bias = torch.rand(2, 1, 1, 8) < 0.8, normal(2, 1, 8)
    for form in ({}, dict(window=3)):
        for operands in ((None, None, None), (padding, bias, sink)):
            made = []
            for i in range(5):
                r, p = int(row[i]), int(position[i])
                if r < 0:
                    made.append(torch.zeros(1, 2, 1, 2, dtype=torch.float64))
                    continue
                mask = there[r, :p + 1] if operands[0] is None else operands[0][r:r + 1, ..., :p + 1] & there[r, :p + 1]
                b = None if operands[1] is None else operands[1][..., :p + 1]
                made.append(expected(q[:, :, i:i + 1], texts[r][0][:, :, :p + 1], texts[r][1][:, :, :p + 1], 0.7, mask=mask, bias=b, sink=operands[2], offset=p, **form))
            c.add("attention", [q, k, v, *operands, row, position, table], torch.cat(made, 2).float(), scale=0.7, causal=True, **form)
    c.note("pages without rows and positions: each batch has its row of the table")
    k, v, q = normal(5, 1, page, 3), normal(5, 1, page, 2), normal(2, 2, 3, 3)
    keys, values = (torch.cat([x[table[r]].transpose(0, 1).reshape(1, 1, 8, -1) for r in range(2)]) for x in (k, v))
    c.add("attention", [q, k, v, None, None, None, None, None, table], expected(q, keys, values, 0.7, mask=there[:, None, None]).float(), scale=0.7)
    c.add("attention", [q, k, v, None, None, None, None, None, table.long()], expected(q, keys, values, 0.7, mask=there[:, None, None], causal=True, offset=4).float(), scale=0.7, causal=True, offset=4)
    c.note("a row of no text without pages: its sink alone is there")
    c.add("attention", [q[:1], k, v, None, None, sink, torch.tensor([-1, 0, -1])],
          torch.cat([torch.zeros(1, 2, 1, 2, dtype=torch.float64), expected(q[:1, :, 1:2], k[:1], v[:1], 0.7, sink=sink), torch.zeros(1, 2, 1, 2, dtype=torch.float64)], 2).float(), scale=0.7)
    c.note("the logarithm of the sum of e^score as a second result; rows that see nothing have -inf")
    q, k, v, sink, hidden = normal(2, 4, 5, 3), normal(2, 2, 7, 3), normal(2, 2, 7, 2), normal(4), torch.rand(2, 1, 5, 7) < 0.5
    hidden[0, 0, 2] = False
    scores = q.double() @ k.repeat_interleave(2, 1).double().transpose(2, 3) * 0.7
    c.add("attention", [q, k, v], [expected(q, k, v, 0.7).float(), scores.logsumexp(3).float()], scale=0.7, lse=True)
    c.add("attention", [q, k, v, hidden], [expected(q, k, v, 0.7, mask=hidden).float(), scores.masked_fill(~hidden, -inf).logsumexp(3).float()], scale=0.7, lse=True)
    c.add("attention", [q, k, v, None, None, sink], [expected(q, k, v, 0.7, sink=sink).float(), torch.cat([scores, sink.double()[:, None, None].expand(2, 4, 5, 1)], 3).logsumexp(3).float()],
          scale=0.7, lse=True)
    c.add("attention", [q, k, v], [expected(q, k, v, 0.7).float().transpose(1, 2).reshape(2, 5, 8), scores.logsumexp(3).float()], scale=0.7, joined=True, lse=True)
    attention_blocks(c, expected)
    c.write()


def attention_blocks(c, expected):
    """Keys and values in blocks: numbers that the formats hold exactly, so that they are what PyTorch computes with."""
    c.note("keys and values in blocks")
    for name in ("fp8_1x128", "mxfp8", "nvfp4"):
        q, k, v = normal(1, 2, 2, 32), exact_in(name, 1, 1, 5, 32), exact_in(name, 1, 1, 5, 32)
        near = 2e-6 if name == "nvfp4" else 5e-7      # whose second level is a quotient of fp32
        c.add("attention", [q, (k, name), (v, name)], expected(q, k, v, 0.001).float(), tolerance=near, scale=0.001)
        c.add("attention", [q, (k, name), (v, name)], expected(q, k, v, 0.001, causal=True, offset=2).float(), tolerance=near, scale=0.001, causal=True, offset=2)


def attention_backward():
    c = Cases("attention_backward")

    def scores(q, k, scale, bias, mask, causal, window, ahead, offset, softcap):
        s = q @ k.repeat_interleave(q.shape[1] // k.shape[1], 1).transpose(2, 3) * scale
        if softcap:
            s = softcap * torch.tanh(s / softcap)
        if bias is not None:
            s = s + bias
        i, j = torch.arange(s.shape[2])[:, None] + offset, torch.arange(s.shape[3])[None]
        seen = torch.ones(s.shape, dtype=torch.bool)
        seen &= j <= i if causal else True
        seen &= i - j < window if window else True
        seen &= j - i < ahead if ahead else True
        seen &= mask if mask is not None else True
        return s.masked_fill(~seen, -inf), seen

    def case(q, k, v, mask=None, bias=None, sink=None, dbias=False, tolerance=None, scale=0.7, causal=False, window=0, ahead=0, offset=0, softcap=0.0):
        form = dict(causal=causal, window=window, ahead=ahead, offset=offset, softcap=softcap)

        def result(q, k, v, bias=None):
            s, seen = scores(q, k, scale, bias, mask, **form)
            if sink is not None:
                s = torch.cat([s, sink.double().reshape(1, -1, 1, 1).expand(*s.shape[:3], 1)], 3)
            p = torch.softmax(s.where((s > -inf).any(3, keepdim=True), 0.0), 3)[..., : k.shape[2]].where(seen, 0.0)   # a row that sees nothing: 0, not NaN
            return p @ v.repeat_interleave(q.shape[1] // k.shape[1], 1)

        wide = [x.double() for x in (q, k, v)] + ([] if bias is None else [bias.double()])
        out = result(*wide)
        dout = normal(*out.shape, dtype=q.dtype)
        s, _ = scores(wide[0], wide[1], scale, None if bias is None else wide[3], mask, **form)
        if sink is not None:
            s = torch.cat([s, sink.double().reshape(1, -1, 1, 1).expand(*s.shape[:3], 1)], 3)
        grads = gradients(result, dout, q, k, v, *([] if bias is None else [bias]))
        outputs = [g.to(x.dtype) for g, x in zip(grads, (q, k, v, bias))][: 4 if dbias else 3]
        inputs = [q, k, v, out.to(q.dtype), s.logsumexp(3).float(), dout] + ([mask, bias] if bias is not None else [mask] if mask is not None else [])
        said = {name: value for name, value in form.items() if value} | ({"dbias": True} if dbias else {})
        c.add("attention_backward", inputs, outputs, tolerance=tolerance or {torch.bfloat16: 0.05, torch.float16: 0.005}.get(q.dtype, 2e-6), scale=scale, **said)   # out and lse are rounded

    for dtype in FLOATS:
        q, k, v = normal(2, 4, 3, 6, dtype=dtype), normal(2, 2, 5, 6, dtype=dtype), normal(2, 2, 5, 3, dtype=dtype)
        case(q, k, v)
        case(q, k, v, causal=True, offset=2)
    q, k, v = normal(1, 2, 4, 3), normal(1, 1, 6, 3), normal(1, 1, 6, 2)
    for form in (dict(causal=True), dict(causal=True, window=2, offset=2), dict(ahead=2, offset=1), dict(window=2, ahead=3), dict(softcap=1.5), dict(causal=True, offset=-2), dict(window=1, offset=7)):
        case(q, k, v, **form)
    c.note("mask, bias and sink; rows that see nothing have no part")
    mask = torch.rand(1, 1, 4, 6) < 0.6
    mask[0, 0, 1] = False
    case(q, k, v, mask=mask)
    case(q, k, v, mask=mask, sink=normal(2))
    for shape in ((1, 2, 4, 6), (4, 6), (2, 1, 1), (1, 6), (1,), ()):
        case(q, k, v, bias=normal(*shape), dbias=True)
        case(q, k, v, mask=mask, bias=normal(*shape), dbias=True, softcap=2.0, causal=True, offset=3)
    case(q, k, v, bias=normal(4, 6))
    case(normal(2, 2, 3, 300, scale=0.2), normal(2, 2, 2, 300, scale=0.2), normal(2, 2, 2, 270, scale=0.2))
    case(normal(1, 2, 0, 3), k, v)
    case(normal(1, 2, 3, 3), normal(1, 2, 0, 3), normal(1, 2, 0, 2))
    c.write()


def mqa_logits():
    c = Cases("mqa_logits")

    def logits(q, k, weights, factor=None, start=None, end=None, scale=1.0):
        q, k, weights = q.double(), k.double(), weights.double()
        scores = torch.einsum("bmhd,bnd->bmhn", q, k if factor is None else k * factor.double()[..., None]) * scale
        sums = torch.einsum("bmhn,bmh->bmn", F.relu(scores), weights)
        at = torch.arange(k.shape[1])
        if start is not None:
            sums = sums.masked_fill(at < start[..., None], -inf)
        return sums if end is None else sums.masked_fill(at >= end[..., None], -inf)

    start, end = torch.tensor([[0, -3, 4], [2, 9, 1]]), torch.tensor([[7, 2, 20], [2, 9, 5]], dtype=torch.int32)
    for dtype in [*FLOATS, torch.float8_e4m3fn]:
        q, k, weights, factor = normal(2, 3, 4, 5).to(dtype), normal(2, 7, 5).to(dtype), normal(2, 3, 4), normal(2, 7)
        to = torch.float64 if dtype == torch.float64 else torch.float32
        c.add("mqa_logits", [q, k, weights], logits(q, k, weights).to(to))
        c.add("mqa_logits", [q, k, weights, factor, start, end], logits(q, k, weights, factor, start, end, 0.25).to(to), scale=0.25)
    q, k, weights = normal(1, 2, 70, 130), normal(1, 40, 130), normal(1, 2, 70)
    c.add("mqa_logits", [q, k, weights], logits(q, k, weights, scale=-0.1).bfloat16(), scale=-0.1, to=torch.bfloat16)
    c.note("pages of 3 keys, one of which is not there")
    q, pages, weights, factor = normal(2, 2, 3, 4), normal(5, 3, 4), normal(2, 2, 3), normal(5, 3)
    table, end = torch.tensor([[4, 0, 2], [1, -1, 3]]), torch.tensor([[8, 9], [7, 2]])
    paged = logits(q, pages[table].flatten(1, 2), weights, factor[table].flatten(1), None, end)
    paged[1, :, 3:6] = -inf
    c.add("mqa_logits", [q, pages, weights, factor, None, end, table], paged.float())
    c.note("blocks along d")
    q, k, weights = exact_in("mxfp8", 1, 2, 3, 64), exact_in("mxfp4", 1, 6, 64), normal(1, 2, 3)
    c.add("mqa_logits", [(q, "mxfp8"), (k, "mxfp4"), weights], logits(q, k, weights).float())
    c.note("NaN and infinities of keys that are seen alone; 0 heads")
    q, k, weights = torch.tensor([[[[1.0], [-1.0]]]]), torch.tensor([[[nan], [inf], [-inf], [2.0]]]), torch.tensor([[[1.0, 3.0]]])
    c.add("mqa_logits", [q, k, weights], torch.tensor([[[nan, inf, inf, 2.0]]]))
    c.add("mqa_logits", [q, k, weights, None, torch.tensor([[3]])], torch.tensor([[[-inf, -inf, -inf, 2.0]]]))
    c.add("mqa_logits", [torch.zeros(1, 2, 0, 3), torch.ones(1, 2, 3), torch.zeros(1, 2, 0)], torch.zeros(1, 2, 2))
    c.write()


def halves(x, cosine, sine, width):
    t, rest = x[..., :width].double(), x[..., width:].double()
    a, b = t.chunk(2, -1)
    return torch.cat([t * cosine.double() + torch.cat([-b, a], -1) * sine.double(), rest], -1)


def neighbours(x, cosine, sine, width):
    t, rest = x[..., :width].double(), x[..., width:].double()
    turned = torch.stack([-t[..., 1::2], t[..., ::2]], -1).flatten(-2)
    return torch.cat([t * cosine.double() + turned * sine.double(), rest], -1)


def cache():
    c = Cases("cache")
    x, y = normal(2, 2, 4, 3), normal(1, 2, 6, 3)
    row, position = torch.tensor([0, 1, 1, 0, 1, 0]), torch.tensor([0, 5, 6, 9, 2, 1])
    want = x.clone()
    for i in range(6):
        want[row[i], :, position[i] % 4] = y[0, :, i]
    c.add("cache_write", [x, y, row, position], want, tolerance=0)
    c.add("cache_write", [x.to(torch.bfloat16), y.to(torch.bfloat16), row.int(), position.int()], want.to(torch.bfloat16), tolerance=0)
    c.add("cache_write", [x, y[:, :, :0], row[:0], position[:0]], x, tolerance=0)

    def written(cache, tokens):
        cache = cache.clone()
        for i in range(tokens.shape[2]):
            cache[row[i], :, position[i] % cache.shape[2]] = tokens[0, :, i]
        return cache

    def turned(x, cosine, sine, width, interleaved):
        return (neighbours if interleaved else halves)(x, cosine, sine, width).to(x.dtype)

    for dtype in FLOATS:
        x, y, keys, values, queries = (normal(*shape, dtype=dtype) for shape in ((2, 2, 4, 6), (2, 3, 4, 5), (1, 2, 6, 6), (1, 3, 6, 5), (1, 4, 6, 6)))
        c.add("cache_update", [x, y, keys, values, row, position], [written(x, keys), written(y, values)], tolerance=0)
        for width, interleaved in ((6, False), (4, True)):
            angle = normal(6, width, scale=2)
            cosine, sine = angle.cos().to(dtype), angle.sin().to(dtype)
            new = [written(x, turned(keys, cosine, sine, width, interleaved)), written(y, values)]
            more = {"width": width, "interleaved": True} if interleaved else {"width": width}
            c.add("cache_update", [x, y, keys, values, row, position, cosine, sine], new, **more)
            c.add("cache_update", [x, y, keys, values, row, position, cosine, sine, queries], [*new, turned(queries, cosine, sine, width, interleaved)], **more)
    c.note("tokens of row -1 go nowhere, and in pages those of a page that is not there; of two texts that share a page the last token stays")
    x, y = normal(3, 2, 4, 3), normal(1, 2, 6, 3)
    row, position = torch.tensor([0, -1, 1, 0, -1, 0]), torch.tensor([0, -7, 3, 5, 99, 1])
    table = torch.tensor([[2, -1], [2, 0]], dtype=torch.int32)
    want, paged = x.clone(), x.clone()
    for i in range(6):
        if row[i] < 0:
            continue
        want[row[i], :, position[i] % 4] = y[0, :, i]
        if table[row[i], position[i] // 4] >= 0:
            paged[table[row[i], position[i] // 4], :, position[i] % 4] = y[0, :, i]
    c.add("cache_write", [x, y, row, position], want, tolerance=0)
    c.add("cache_write", [x, y, row, position, table], paged, tolerance=0)
    c.add("cache_write", [x, y, row.int(), position.int(), table.long()], paged, tolerance=0)
    c.add("cache_update", [x, x, y, y, row, position, None, None, None, table], [paged, paged], tolerance=0)
    angle, queries = normal(6, 2, scale=2), normal(1, 4, 6, 3)
    cosine, sine = angle.cos(), angle.sin()
    keys = turned(y, cosine, sine, 2, False)
    of_keys = x.clone()
    for i in range(6):
        if row[i] >= 0 and table[row[i], position[i] // 4] >= 0:
            of_keys[table[row[i], position[i] // 4], :, position[i] % 4] = keys[0, :, i]
    c.add("cache_update", [x, x, y, y, row, position, cosine, sine, queries, table], [of_keys, paged, turned(queries, cosine, sine, 2, False)], width=2)
    c.note("caches in blocks hold what quantize makes of tokens: here numbers that the formats hold exactly")
    row, position = torch.tensor([0, -1, 1, 0]), torch.tensor([0, 3, 3, 5])
    for name in ("fp8_1x128", "mxfp8", "mxfp4", "nvfp4"):
        near = 2e-6 if name == "nvfp4" else 0         # whose second level is a quotient of fp32
        x, y = exact_in(name, 2, 1, 2, 40), exact_in(name, 1, 1, 4, 40)
        want, paged = x.clone(), x.clone()
        for i in (0, 2, 3):
            want[row[i], :, position[i] % 2] = y[0, :, i]
        paged[1, :, 0], paged[0, :, 1] = y[0, :, 0], y[0, :, 2]
        table = torch.tensor([[1, 0, -1], [1, 0, 1]], dtype=torch.int32)
        c.add("cache_write", [(x, name), y.to(torch.bfloat16), row, position], (want, name), tolerance=near)
        c.add("cache_write", [(x, name), y, row, position, table], (paged, name), tolerance=near)
        c.add("cache_update", [(x, name), (x, name), y, y, row, position], [(want, name)] * 2, tolerance=near)
    c.write()


def rotary():
    c = Cases("rotary")

    for dtype in FLOATS:
        x = normal(2, 2, 3, 8, dtype=dtype)
        for width in (8, 4):
            angle = normal(3, width, scale=2)
            cosine, sine = angle.cos().to(dtype), angle.sin().to(dtype)
            c.add("rotary", [x, cosine, sine], halves(x, cosine, sine, width).to(dtype), width=width)
            c.add("rotary", [x, cosine, sine], neighbours(x, cosine, sine, width).to(dtype), width=width, interleaved=True)
    x, angle = normal(2, 2, 3, 4), normal(2, 1, 3, 4)
    c.add("rotary", [x, angle.cos(), angle.sin()], halves(x, angle.cos(), angle.sin(), 4).float(), width=4)
    h = x.to(torch.bfloat16)
    c.add("rotary", [h, angle.cos(), angle.sin()], halves(h, angle.cos(), angle.sin(), 4).to(torch.bfloat16), width=4)
    c.add("rotary", [torch.zeros(2, 0, 4), torch.zeros(0, 4), torch.zeros(0, 4)], torch.zeros(2, 0, 4), width=4)
    c.write()
