"""The tables of models.py in Markdown, of rows as it writes them: times and how many times as fast as PyTorch, geometric means by kind, errors, bounds and the largest losses. Measures nothing."""
import math

PEERS = ("eager", "compile")            # in the model's own format; "compile MODE" counts among them
KINDS = {"products": "bound by products", "launches": "bound by launches", "decode": "decode"}


def is_peer(way):
    return way in PEERS or (way.startswith("compile ") and way != "compile fp8")


def time_of(row, way, which="sustained"):
    return row["ways"].get(way, {}).get(which)


def best_peer(row, which="sustained"):
    times = [time for way in row["ways"] if is_peer(way) and (time := time_of(row, way, which))]
    return min(times) if times else None


def times_as_fast(row, way, which="sustained", beside=None):
    """beside: another way; None: the best of PyTorch's in the model's own format. None where either was not measured."""
    theirs = time_of(row, beside, which) if beside else best_peer(row, which)
    ours = time_of(row, way, which)
    return theirs / ours if theirs and ours else None


def geometric_mean(numbers):
    return math.exp(sum(map(math.log, numbers)) / len(numbers)) if numbers else None


def line(cells):
    return "| " + " | ".join(cells) + " |"


def number(value, form):
    return "" if value is None else format(value, form)


def milliseconds(row, way):
    made = row["ways"].get(way)
    if made is None:
        return ""
    if "failed" in made:
        return "fails"
    digits = 3 if made["sustained"] < 10 else 2
    return f"{made['sustained']:.{digits}f} ({made['burst']:.{digits}f})"


def ways_of(rows):
    """All that occur: PyTorch's first, then Deepwell's, in the order in which they were met."""
    met = list(dict.fromkeys(way for row in rows for way in row["ways"]))
    return [way for way in met if not way.startswith("deepwell")], [way for way in met if way.startswith("deepwell")]


def times(rows):
    peers, ours = ways_of(rows)
    short = lambda way: way.removeprefix("deepwell ")
    beside = [(way, None, f"{short(way)} x") for way in ours] + [(way, "compile fp8", f"{short(way)} x compile fp8") for way in ours if "fp8" in way and "compile fp8" in peers]
    lines = [line(["row", *peers, *ours, *[title for *_, title in beside]]), "|---" * (1 + len(peers) + len(ours) + len(beside)) + "|"]
    for row in rows:
        lines.append(line([row["row"], *[milliseconds(row, way) for way in peers + ours], *[number(times_as_fast(row, way, beside=other), ".2f") for way, other, _ in beside]]))
    return lines, beside


def means(rows, beside):
    """Geometric means of the last columns: of each kind, and of all."""
    lines = [line(["geometric mean of", "rows", *[title for *_, title in beside], *[f"{title}, burst" for *_, title in beside]]), "|---" * (2 + 2 * len(beside)) + "|"]
    for title, chosen in [*[(title, [r for r in rows if r["kind"] == kind]) for kind, title in KINDS.items()], ("all", rows)]:
        cells = []
        for which in ("sustained", "burst"):
            for way, other, _ in beside:
                cells.append(number(geometric_mean([x for row in chosen if (x := times_as_fast(row, way, which, other))]), ".2f"))
        if any(cells):
            lines.append(line([title, str(len(chosen)), *cells]))
    return lines


def errors(rows):
    peers, ours = ways_of(rows)
    lines = [line(["row", *peers, *ours]), "|---" * (1 + len(peers + ours)) + "|"]
    for row in rows:
        cells = []
        for way in peers + ours:
            made = row["ways"].get(way, {})
            cells.append(", ".join(x for x in (number(made.get("error"), ".1e"), made.get("ids", "")) if x))
        lines.append(line([row["row"], *cells]))
    return lines


def losses(rows):
    """Of Deepwell's ways: the device's time of the work's last run, its bound and estimate, and the three kinds of steps that lose most."""
    lines = [line(["row", "way", "on the device", "bound", "ratio", "estimate / measured", "three largest losses, ms"]), "|---" * 7 + "|"]
    ratios = []
    for row in rows:
        for way, made in row["ways"].items():
            if "report" not in made:
                continue
            run = made["report"]
            ratios.append(run["estimate"] / run["ms"])
            worst = "; ".join(f"{what} {ms:.3f}" for what, ms in made["losses"])
            lines.append(line([row["row"], way.split(" ", 1)[1], f"{run['ms']:.3f}", f"{run['bound']:.3f}", f"{run['bound'] / run['ms']:.2f}", f"{ratios[-1]:.2f}", worst]))
    if ratios:
        lines += ["", f"Estimate over measured: {min(ratios):.2f} to {max(ratios):.2f}, geometric mean {geometric_mean(ratios):.2f}, {sum(0.75 <= r <= 1.25 for r in ratios)} of {len(ratios)} within 25 %."]
    return lines


def failures(rows):
    return [f"- {row['row']}, {way}: {made['failed']}" for row in rows for way, made in row["ways"].items() if "failed" in made]


def markdown(rows):
    """All of it. Rows of a file that names a row twice: the last one counts."""
    rows = list({row["row"]: row for row in rows}.values())
    if not rows:
        return "No row was measured."
    timed, beside = times(rows)
    modes = sorted({made["mode"] for row in rows for made in row["ways"].values() if made.get("mode")})
    parts = [f"{rows[0]['made_by']}. Milliseconds, of decode a token of each text: sustained (burst). x: how many times as fast as the faster one of eager and compile."
             + (f" Modes of torch.compile: {', '.join(modes)}." if modes else ""), "", *timed, "", *means(rows, beside), "",
             "Relative error beside fp32, and how many first ids are fp32's:", "", *errors(rows)]
    if len(table := losses(rows)) > 2:
        parts += ["", "Each run beside its bound:", "", *table]
    if failed := failures(rows):
        parts += ["", "What failed:", "", *failed]
    return "\n".join(parts)
