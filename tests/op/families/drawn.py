"""What draws: dropout and sampling, whose counter-based generator is written here once more."""

import numpy as np
import torch
import torch.nn.functional as F

from families.cases import Cases, FLOATS, inf, integers, nan, normal, number


def philox(seed, counter):
    """Philox4x32-10, by its paper: four words of 32 bits, of a counter of four."""
    word, key, most = list(counter), [seed & 0xFFFFFFFF, seed >> 32], 0xFFFFFFFF
    for _ in range(10):
        a, b = 0xD2511F53 * word[0], 0xCD9E8D57 * word[2]
        word = [(b >> 32) ^ word[1] ^ key[0], b & most, (a >> 32) ^ word[3] ^ key[1], a & most]
        key = [(key[0] + 0x9E3779B9) & most, (key[1] + 0xBB67AE85) & most]
    return word


def dropout():
    c = Cases("dropout")

    def case(x, seed, step, site, probability):
        count = x.numel()
        words = torch.tensor([philox(seed % 2**64, (g, 0, site, step % 2**32)) for g in range(-(-count // 4))], dtype=torch.int64).flatten()[:count].reshape(x.shape)
        grown = 1 / (1 - probability) if probability < 1 else 0.0
        factor = torch.where(words >= round(probability * 2**32), torch.tensor(grown, dtype=torch.float64), 0.0)
        y = x * factor if x.dtype == torch.float64 else (x.float() * factor.float()).to(x.dtype)   # one of fp32, and rounded
        c.add("dropout", [x, torch.tensor([seed, step])], y, tolerance=0, probability=probability, site=site)

    for dtype in FLOATS:
        case(normal(3, 7, dtype=dtype), 1, 0, 0, 0.1)
        case(normal(5, dtype=dtype), -5, 2**40 + 3, 2**32 - 1, 0.5)
    case(normal(2, 3, 4), 2**62 + 12345, -1, 7, 0.9)
    case(normal(9), 3, 4, 1, 0.0)
    case(torch.tensor([1.0, inf, nan, -2.0]), 3, 4, 1, 1.0)
    case(torch.zeros(0, 3), 3, 4, 1, 0.3)
    case(torch.tensor(2.0), 3, 4, 1, 0.3)
    c.write()


def token_of(logits, settings, seed, draw, counts=None, bias=None, mask=None):
    """The rule of sample in double, by sorting. An id that another number of digits could change is refused."""
    temperature, top_k, top_p, min_p, repetition, presence, frequency = settings
    x = logits.double().clone()
    if bias is not None:
        x += bias.double()
    if counts is not None:
        made = counts % 2**30
        hot = torch.where(x > 0, x / repetition, x * repetition) - frequency * made - presence * (made > 0)
        x = torch.where(counts != 0, hot, x)
    if mask is not None:
        x = torch.where(mask, x, torch.tensor(-inf, dtype=torch.float64))
    if logits.isnan().any() or (logits == inf).any() or x.isnan().any() or (x == inf).any():
        return -1
    if (x == -inf).all():
        return -2
    order = [i for i in sorted(range(len(x)), key=lambda i: (-x[i].item(), i)) if x[i] > -inf]
    if temperature == 0:
        return order[0]
    heat = (x - x.max()) / temperature
    if top_k >= 1:
        order = order[: int(top_k)]
    if 0 < top_p < 1:
        share = torch.exp(heat[order]).cumsum(0) / torch.exp(heat[order]).sum()
        assert (share - top_p).abs().min() > 1e-5
        order = order[: int((share < top_p).sum()) + 1]
    if min_p > 0:
        assert (torch.exp(heat[order]) / min_p - 1).abs().min() > 1e-5
        order = [i for i in order if torch.exp(heat[i]) >= min_p]
    score = {i: heat[i].item() - float(np.log(-np.log1p(-((philox(seed, (i // 4, draw & 0xFFFFFFFF, draw >> 32, 0))[i % 4] >> 1) + 0.5) / 2**31))) for i in order}
    best = sorted(score, key=lambda i: -score[i])
    assert len(best) == 1 or score[best[0]] - score[best[1]] > 1e-4
    return best[0]


def sample():
    c = Cases("sample")

    def rows(logits, settings, draws, counts=None, bias=None, mask=None, row=None, best=None):
        """mask: bools."""
        settings, draws = torch.tensor(settings), torch.tensor(draws)
        number = range(len(logits)) if row is None else row.tolist()
        picked = lambda x, i: None if x is None or number[i] < 0 else x[number[i]]
        ids = torch.tensor([token_of(logits[i], settings[i].tolist(), draws[i][0].item() % 2**64, draws[i][1].item() % 2**64, picked(counts, i), picked(bias, i), picked(mask, i))
                            for i in range(len(logits))])
        logs = torch.log_softmax(logits.double(), 1)
        outputs = [ids, torch.where(ids < 0, nan, logs.gather(1, ids.clamp(0)[:, None])[:, 0]).float()]
        if best is not None:
            values, places = logs.sort(dim=1, descending=True, stable=True)
            outputs += [torch.where(ids[:, None] < 0, -1, places[:, :best]), torch.where(ids[:, None] < 0, nan, values[:, :best]).float()]
        words = None
        if mask is not None:
            padded = F.pad(mask.int(), (0, -mask.shape[1] % 32)).view(len(mask), -1, 32)
            words = (padded.long() << torch.arange(32)).sum(2)
            words = torch.where(words >= 2**31, words - 2**32, words).int()
        inputs = [logits, settings, draws, row, counts, bias, words]
        while inputs[-1] is None:
            inputs.pop()
        c.add("sample", inputs, outputs, tolerance=2e-6, **({} if best is None else {"length": best}))

    plain = lambda temperature, top_k=0.0, top_p=0.0, min_p=0.0: [float(temperature), float(top_k), float(top_p), float(min_p), 1.0, 0.0, 0.0]
    c.note("the largest; of equal ones the first")
    rows(torch.tensor([[1.0, 3.0, 3.0, -2.0], [-5.0, -inf, -4.0, -4.5]]), [plain(0)] * 2, [[0, 0]] * 2)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        c.note("draws among all, and the likeliest ones in order")
        rows(normal(4, 37, dtype=dtype, scale=2), [plain(t) for t in (0.3, 1, 2, 50)], [[1, 0], [-1, 1], [2**62 + 12345, 2**40 + 3], [7, -2]], best=3)
        c.note("top_k, top_p, min_p, and all of them")
        rows(normal(5, 40, dtype=dtype, scale=2), [plain(1, 1), plain(1.5, 7), plain(1, 0, 0.6), plain(2, 0, 0, 0.1), plain(1.5, 20, 0.9, 0.05)], [[s, 3] for s in range(5)])
    c.note("what is equal at the cut: the least ids are kept")
    rows(torch.tensor([[0.0, 1.0, 1.0, 0.0, 1.0, 1.0, 0.0]] * 6), [plain(5, 3)] * 3 + [plain(5, 0, 0.45)] * 3, [[s, s] for s in range(6)])
    c.note("bias, counts of what was made and of what the prompt has, masks")
    counts = torch.tensor([0, 0, 1, 5, 2**30, 2**30 + 2, 0]).int()
    some = normal(3, 40, dtype=torch.float32)
    rows(some, [[t, 0.0, 0.0, 0.0, 1.5, 0.25, 0.5] for t in (0.0, 1.0, 2.0)], [[s, 9] for s in range(3)], counts=counts[integers(0, 7, 3, 40)])
    rows(some, [plain(1)] * 3, [[s, 9] for s in range(3)], bias=normal(3, 40, scale=3), best=2)
    rows(some, [plain(t) for t in (0, 1, 3)], [[s, 9] for s in range(3)], mask=integers(0, 3, 3, 40) == 0, best=2)
    c.note("of the rows that are named, or of none")
    rows(normal(4, 40), [[t, 9.0, 0.0, 0.0, 1.5, 0.25, 0.5] for t in (0.0, 1.0, 2.0, 1.0)], [[s, 9] for s in range(4)], counts=counts[integers(0, 7, 2, 40)], bias=normal(2, 40),
         mask=integers(0, 2, 2, 40) == 0, row=torch.tensor([1, 0, -1, 0]))
    c.note("rows that have no token")
    rows(torch.tensor([[1.0, nan, 2.0], [-inf, -inf, -inf], [0.0, 1.0, 2.0], [inf, 1.0, 2.0]]), [plain(0), plain(1), plain(1), plain(1)], [[0, 0]] * 4,
         mask=torch.tensor([[True, True, True], [True, True, True], [False, False, False], [True, True, True]]), best=1)
    c.note("counts of tokens, of one several times, of rows and ids that are not there")
    for kinds in ((torch.int64, torch.int64), (torch.int32, torch.int64)):
        x, ids, row = integers(0, 9, 3, 5).int(), torch.tensor([4, 0, 0, 7, 2, -1, 3, 0]), torch.tensor([0, 2, 2, 1, -1, 1, 3, 2])
        there = (ids >= 0) & (ids < 5) & (row >= 0) & (row < 3)
        after = x.clone().index_put_((row[there], ids[there]), torch.ones(int(there.sum()), dtype=torch.int32), accumulate=True)
        c.add("tally", [x, ids.to(kinds[0]), row.to(kinds[1])], after)
    c.write()
