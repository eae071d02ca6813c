"""Gradients of norms and losses, optimisers."""

import torch
import torch.nn.functional as F

from families.cases import Cases, FLOATS, apart, gradients, inf, integers, nan, normal, special


def norm_backward():
    c = Cases("norm_backward")
    layer = lambda x, w, b: F.layer_norm(x, [x.shape[-1]], w, b, 1e-5)
    rms = lambda x, w: F.rms_norm(x, [x.shape[-1]], w, 1e-5)

    def case(x, dy, weight=None, plus=None, tolerance=None):
        w = torch.ones(x.shape[-1], dtype=weight.dtype if weight is not None else x.dtype) if weight is None else weight
        more = 0 if plus is None else plus.double()
        inputs = [x, dy, weight, plus] if plus is not None else [x, dy] if weight is None else [x, dy, weight]
        dx, dw, db = gradients(layer, dy, x, w, torch.zeros_like(w))
        c.add("layer_norm_backward", inputs, [(dx + more).to(x.dtype), dw.to(w.dtype), db.to(w.dtype)], tolerance=tolerance, eps=1e-5)
        dx, dw = gradients(rms, dy, x, w)
        c.add("rms_norm_backward", inputs, [(dx + more).to(x.dtype), dw.to(w.dtype)], tolerance=tolerance, eps=1e-5)

    for dtype in FLOATS:
        x, dy, plus, w = normal(2, 3, 5, dtype=dtype), normal(2, 3, 5, dtype=dtype), normal(2, 3, 5, dtype=dtype), normal(5, dtype=dtype)
        t = {torch.float64: 2e-14, torch.float32: 5e-7}.get(dtype)
        case(x, dy, tolerance=t)
        case(x, dy, w, tolerance=t)
        case(x, dy, w, plus, tolerance=t)
        case(x, dy, None, plus, tolerance=t)
    case(normal(2, 4, dtype=torch.bfloat16), normal(2, 4), normal(4), tolerance=None)
    case(normal(1, 300), normal(1, 300), normal(300), tolerance=1e-6)
    case(normal(7), normal(7), normal(7), tolerance=1e-6)
    case(torch.zeros(2, 4), normal(2, 4), normal(4), tolerance=2e-6)
    case(torch.zeros(0, 4), torch.zeros(0, 4), normal(4))
    case(normal(3, 1), normal(3, 1), normal(1), tolerance=1e-6)
    c.write()


def cross_entropy():
    c = Cases("cross_entropy")

    def case(logits, labels, ignore=None, smoothing=0.0, tolerance=1e-6, classes=None):
        said = ({} if ignore is None else {"ignore": ignore}) | ({} if classes is None else {"classes": classes}) | ({"smoothing": smoothing} if smoothing else {})
        rows, of_rows = logits.double().reshape(-1, logits.shape[-1])[:, :classes], torch.float64 if logits.dtype == torch.float64 else torch.float32
        loss = lambda x: F.cross_entropy(x, labels.flatten().long(), reduction="none", label_smoothing=smoothing, ignore_index=-100 if ignore is None else ignore)
        lse = rows.logsumexp(1).reshape(labels.shape).to(of_rows)
        c.add("cross_entropy", [logits, labels], [loss(rows).reshape(labels.shape).to(of_rows), lse], **said)
        d = normal(*labels.shape)
        gradient = F.pad(gradients(loss, d.flatten(), rows)[0], (0, logits.shape[-1] - rows.shape[-1]))
        c.add("cross_entropy_backward", [logits, labels, lse, d], gradient.reshape(logits.shape).to(logits.dtype), tolerance=tolerance, **said)

    for dtype in FLOATS:
        logits = normal(2, 3, 7, dtype=dtype, scale=3)
        case(logits, integers(0, 7, 2, 3))
        case(logits, torch.tensor([[0, -100, 6], [-100, 1, 1]]), ignore=-100)
        case(logits, torch.tensor([[0, 2, 6], [5, 1, 2]], dtype=torch.int32), ignore=2, smoothing=0.1)
    case(normal(5), torch.tensor(3), smoothing=0.3)
    case(normal(4, 1), torch.zeros(4, dtype=torch.int64))
    case(torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64))
    case(torch.tensor([[1000.0, 999.0, -inf], [-1000.0, 0.0, 1000.0]]), torch.tensor([1, 0]), tolerance=1e-4)   # lse is a number of fp32
    with apart("classes"):
        c.note("what lies behind the classes means nothing")
        for dtype in FLOATS:
            logits = normal(2, 3, 7, dtype=dtype, scale=3)
            logits[..., 5:] = torch.tensor([nan, inf])
            case(logits, integers(0, 5, 2, 3), classes=5)
            case(logits, torch.tensor([[0, -1, 4], [3, 1, -1]]), classes=5, ignore=-1, smoothing=0.2)
        case(normal(3, 4), integers(0, 4, 3), classes=4)
        case(normal(3, 4), torch.zeros(3, dtype=torch.int64), classes=1)
    c.note("NaN and infinities; what is ignored has none")
    odd = torch.tensor([[nan, 1.0], [nan, 1.0], [-inf, 1.0], [-inf, 0.0]])
    labels = torch.tensor([0, -1, 0, 1])
    c.add("cross_entropy", [odd, labels], [torch.tensor([nan, 0.0, inf, 0.0]), torch.tensor([nan, nan, 1.0, 0.0])], ignore=-1)
    c.add("cross_entropy_backward", [odd, labels, torch.tensor([nan, nan, 1.0, 0.0]), torch.tensor([1.0, nan, 1.0, 2.0])],
          torch.tensor([[nan, nan], [0.0, 0.0], [-1.0, 1.0], [0.0, 0.0]]), ignore=-1)
    c.write()


def optimizer():
    c = Cases("optimizer")

    def step(p, m, v, g, rate, count, scale=None, decay=0.01, betas=(0.9, 0.999), eps=1e-8, steps=1):
        """What torch.optim.AdamW makes of them, in f64."""
        w = torch.nn.Parameter(p.double().clone())
        adamw = torch.optim.AdamW([w], lr=rate, betas=betas, eps=eps, weight_decay=decay)
        w.grad = g.double() * (1 if scale is None else scale)
        adamw.state[w] = {"step": torch.tensor(float(count - 1)), "exp_avg": m.double().clone(), "exp_avg_sq": v.double().clone()}
        adamw.step()
        state = adamw.state[w]
        return [w.detach().to(p.dtype), state["exp_avg"].to(m.dtype), state["exp_avg_sq"].to(v.dtype)]

    def add(p, m, v, g, rate, count, scale=None, tolerance=None, **more):
        scalars = [torch.tensor(rate, dtype=torch.float64), torch.tensor(count), *([torch.tensor(scale, dtype=torch.float64)] if scale is not None else [])]
        attrs = {"beta1": more.get("betas", (0.9, 0.999))[0], "beta2": more.get("betas", (0.9, 0.999))[1], "decay": more.get("decay", 0.01), "eps": more.get("eps", 1e-8)}
        c.add("adamw", [p, m, v, g, *scalars], step(p, m, v, g, rate, count, scale, **more), tolerance=tolerance, **attrs)

    for dtype in FLOATS:
        for count in (1, 2, 1000):
            add(normal(2, 5, dtype=dtype), normal(2, 5, dtype=dtype, scale=0.1), normal(2, 5, dtype=dtype, scale=0.1).abs(), normal(2, 5, dtype=dtype), 0.01, count, betas=(0.8912347, 0.9973219))
        add(normal(7, dtype=dtype), normal(7), normal(7).abs(), normal(7, dtype=dtype), 0.003, 3, scale=0.25, decay=0.1, betas=(0.8123457, 0.9534567), eps=1e-6)
    add(normal(3), normal(3), normal(3).abs(), normal(3), 0.5, 9, decay=0, betas=(0.0, 0.0), eps=1.0)
    add(normal(0, 4), normal(0, 4), normal(0, 4), normal(0, 4), 0.5, 9)
    p, m, v = normal(3), normal(3), normal(3).abs()
    scalars = [torch.tensor(0.5), torch.tensor(1, dtype=torch.int32), torch.tensor(nan)]
    c.note("a scale of NaN leaves all as it is")
    c.add("adamw", [p, m, v, special(torch.float32)[9:], *scalars], [p, m, v], beta1=0.9, beta2=0.99, eps=1e-8, tolerance=0)
    with apart("several"):
        c.note("several parameters at once, of their own shapes and formats")
        groups = [[normal(*shape, dtype=dtype), normal(*shape), normal(*shape).abs(), normal(*shape, dtype=other)]
                  for shape, dtype, other in (((2, 3), torch.float32, torch.float32), ((5,), torch.bfloat16, torch.float32), ((), torch.float32, torch.bfloat16), ((0, 2), torch.float32, torch.float32))]
        for scale in (0.5, nan):
            scalars = [torch.tensor(0.01, dtype=torch.float64), torch.tensor(3), torch.tensor(scale, dtype=torch.float64)]
            made = [x for p, m, v, g in groups for x in ([p, m, v] if scale != scale else step(p, m, v, g, 0.01, 3, scale))]
            c.add("adamw", groups[0] + scalars + [x for group in groups[1:] for x in group], made, tolerance=0 if scale != scale else 2e-7, beta1=0.9, beta2=0.999, decay=0.01, eps=1e-8)

    def accumulate(pairs, factor):
        sums = [s if factor == 0 else (s.double() + g.double() * factor).to(s.dtype) for s, g in pairs]
        c.add("accumulate", [*pairs[0], torch.tensor(factor, dtype=torch.float64), *[x for pair in pairs[1:] for x in pair]], sums, tolerance=None if factor != 0 and any(s.dtype != torch.float32 for s, g in pairs) else 0 if factor == 0 else 2e-7)

    with apart("accumulate"):
        for dtype in FLOATS:
            accumulate([(normal(2, 5, dtype=dtype), normal(2, 5, dtype=dtype))], 0.25)
        accumulate([(normal(3), normal(3)), (normal(2, 2), normal(2, 2, dtype=torch.bfloat16)), (normal(), normal()), (normal(0, 2), normal(0, 2))], 0.3)
        c.note("a factor of 0 leaves all as it is")
        accumulate([(normal(3), special(torch.float32)[9:12]), (normal(2), normal(2))], 0.0)
    with apart("sum_squares"):
        def squares(*xs):
            c.add("sum_squares", list(xs), torch.stack([x.double().square().sum() for x in xs]).sum().to(torch.float64 if any(x.dtype == torch.float64 for x in xs) else torch.float32), tolerance=2e-7)

        for dtype in FLOATS:
            squares(normal(3, 5, dtype=dtype))
        squares(normal(2, 3), normal(), normal(4, dtype=torch.bfloat16), normal(0, 2), normal(5, dtype=torch.float16))
        squares(normal(300), torch.tensor([inf]))
    c.write()
