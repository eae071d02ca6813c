#!/usr/bin/env python3
"""Writes the tables in docs/*.md and README.md from the rows of .def files. A table stands between the lines

    <!-- table NAME -->
    <!-- end -->

and NAME is an entry of TABLES below. Without arguments it rewrites the files; with --check it changes nothing, names what is stale and exits 1.
To add a table: an entry in TABLES, the two lines in a document, and run this."""
import glob
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


# ---- rows ---------------------------------------------------------------------------------------------------------------------


def without_comments(text):
    """C comments become blanks; strings stay."""
    return re.sub(r'"(?:\\.|[^"\\])*"|/\*.*?\*/|//[^\n]*', lambda m: m[0] if m[0][0] == '"' else " ", text, flags=re.S)


def arguments(text, at):
    """Splits MACRO's arguments, text[at] being the character after its parenthesis, at commas outside strings and parentheses."""
    found, current, depth = [], "", 0
    while True:
        token = re.compile(r'"(?:\\.|[^"\\])*"|.', re.S).match(text, at)[0]
        at += len(token)
        if depth == 0 and token in ",)":
            found.append(current.strip())
            current = ""
            if token == ")":
                return found
            continue
        depth += (token in "([{") - (token in ")]}")
        current += token


def plain(argument):
    """Adjacent string literals as their text; anything else as it is."""
    if not argument.startswith('"'):
        return argument
    return "".join(re.sub(r"\\(.)", r"\1", s) for s in re.findall(r'"((?:\\.|[^"\\])*)"', argument))


def rows(path, macro, names):
    """The rows MACRO(...) of a .def file, each a dict by the given column names."""
    with open(os.path.join(ROOT, path)) as file:
        text = without_comments(file.read())
    found = []
    for match in re.finditer(rf"^{macro}\s*\(", text, flags=re.M):
        values = [plain(a) for a in arguments(text, match.end())]
        if len(values) != len(names):
            raise SystemExit(f"gen_docs: {path}: {macro}({', '.join(values)}) has {len(values)} columns, TABLES in gen_docs.py names {len(names)}: {' '.join(names)}")
        found.append(dict(zip(names, values)))
    if not found:
        raise SystemExit(f"gen_docs: {path} has no rows {macro}(...)")
    return found


# ---- tables -------------------------------------------------------------------------------------------------------------------


class Table:
    """columns: heading -> a pattern for str.format with the row, or a function of the row. where: which rows, all by default."""

    def __init__(self, path, macro, names, columns, where=lambda row: True):
        self.path, self.macro, self.names, self.columns, self.where = path, macro, names.split(), columns, where

    def text(self):
        lines = ["| " + " | ".join(self.columns) + " |", "|" + "---|" * len(self.columns)]
        for row in filter(self.where, rows(self.path, self.macro, self.names)):
            cells = [column(row) if callable(column) else column.format(**row) for column in self.columns.values()]
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
        return "\n".join(lines)


def power(exponent):
    return f"2^{exponent}"


def smallest(row, normal):
    """The smallest positive number of a FLOAT row."""
    bias, mantissa = int(row["bias"]), int(row["mantissa"])
    return power(1 - bias - (0 if normal else mantissa))


def largest(row):
    value = float(row["max"])
    return f"{value:g}" if value < 1e6 else f"{value:.5g}"


def block_shape(row):
    if row["rows"] == "0":
        return "all elements"
    return f"{row['rows']} x {'the row' if row['cols'] == '0' else row['cols']}"


def bits_per_element(row):
    """Elements and scales; fp32 per row and per tensor count as nothing."""
    bits = {"e4m3": 8, "e5m2": 8, "e3m2": 6, "e2m3": 6, "e2m1": 4, "e8m0": 8, "f32": 32}
    count = int(row["rows"]) * int(row["cols"])
    return f"{bits[row['element']] + (bits[row['scale']] / count if count else 0):g}"


def span(first, last):
    """"2" or "2 to 4"."""
    return lambda row: row[first] if row[first] == row[last] else f"{row[first]} to {row[last]}"


def ops(*families):
    return Table("src/op/op.def", "OP", "name min_in max_in min_out max_out family attributes traits meaning", {
        "op": "`{name}`", "operands": span("min_in", "max_in"), "results": span("min_out", "max_out"),
        "attributes": lambda row: f"`{row['attributes']}`" if row["attributes"] else "", "meaning": "{meaning}",
    }, where=lambda row: row["family"] in families)


def as_exported(row, column):
    return "as exported" if row[column] == "f32" else f"`{row[column]}`"


def commands_of(row):
    """The names behind an option's letters."""
    if row["commands"] == "*":
        return "all"
    names = {command["letter"].strip("'"): command["name"] for command in rows("src/cli/cmd.def", "CLI_COMMAND", ["name", "letter", "operand", "meaning"])}
    return ", ".join(names[letter] for letter in row["commands"])


def has_weights_form(row):
    return row["weight"] not in ("f32", "bf16") and row["weight"].split("_")[0] == row["activation"].split("_")[0]


CHIP_GPU = "name arch sms ghz memory us f32 bf16 fp8 fp4 fp4_k96 gb l2_mb shared features".split()
CHIP_MEASURED = "chip rate by value date source".split()


def rate_of(rate):
    """"4800 / 4503": nominal, and measured of whole kernels; "?" where nobody did, "-" where there is no such unit or it is not published."""
    def cell(row):
        nominal = row.get(rate, "0").strip()
        measured = [m["value"] for m in rows("src/chip/chip.def", "CHIP_MEASURED", CHIP_MEASURED) if (m["chip"], m["rate"], m["by"]) == (row["name"], rate, "WHOLE")]
        if nominal == "0" and not measured:
            return "?" if rate == "l2" else "-"
        return f"{'-' if nominal == '0' else nominal} / {measured[0] if measured else '?'}"
    return cell


def known(column):
    return lambda row: "-" if row[column] == "0" else row[column]


class Coverage:
    """Ops that run alike, by family, and what runs them: on the CPU, and on a GPU of each generation by the features of one chip. From the rows of kernel.def and of the ways.def below it."""

    CHIPS = {"Hopper": "h200", "Blackwell": "b200", "sm_120, sm_121": "rtx5090", "older GPUs": "rtx4090"}
    BY_NAME = {"matmul": "cuda_matmul_", "grouped_matmul": "cuda_grouped_", "grouped_outer": "cuda_grouped_outer_", "attention": "cuda_attention_", "attention_backward": "cuda_attention_backward_", "mqa_logits": "cuda_mqa_logits_"}   # whose kernels are listed by name

    @staticmethod
    def needs(text):
        return frozenset(re.findall(r"HAS\((\w+)\)", text))

    def kernels(self):
        """(name, op, needs) of each row and way. Rows may come of other .def files, so the C preprocessor reads them; macros that nobody defines stay as they are."""
        for path in ["kernels/kernel.def", *sorted(glob.glob("kernels/**/*ways.def", root_dir=ROOT, recursive=True))]:
            read = ["cc", "-E", "-P", "-x", "c", "-I", "src", "-I", "include", "-I", ".", path]
            text = subprocess.run(read, cwd=ROOT, capture_output=True, text=True, check=True).stdout
            for match in re.finditer(r"\b(KERNEL|PACKED|CUDA|TUNED|NAMED|WAY)\s*\(", text):
                values = arguments(text, match.end())
                if match[1] == "WAY":
                    op = max((prefix, op) for op, prefix in self.BY_NAME.items() if values[0].startswith(prefix))[1]
                    yield values[0], op, self.needs(values[1])
                else:
                    yield values[0], values[1], self.needs(values[2])

    def cell(self, op, features, kernels):
        """What runs an op on a GPU that has these features."""
        able = [(name, needs) for name, needs in kernels if name.startswith("cuda_") and needs <= features]
        if op["name"] in self.BY_NAME:
            return ", ".join(name.removeprefix(self.BY_NAME[op["name"]]) for name, _ in able) or "no"
        return "fast" if any(needs for _, needs in able) else "yes" if able else "no"

    def text(self):
        chips = {row["name"]: self.needs(row["features"]) for row in rows("src/chip/chip.def", "CHIP_GPU", CHIP_GPU)}
        found, alike = list(self.kernels()), {}
        for op in rows("src/op/op.def", "OP", "name min_in max_in min_out max_out family attributes traits meaning".split()):
            kernels = [(name, needs) for name, of, needs in found if of == op["name"]]
            on_cpu = "yes" if any(not name.startswith("cuda_") for name, _ in kernels) else "reference"
            cells = (on_cpu, *(self.cell(op, chips[chip], kernels) for chip in self.CHIPS.values()))
            alike.setdefault((op["family"], cells), []).append(op["name"])
        lines = ["| op | CPU | " + " | ".join(self.CHIPS) + " |", "|" + "---|" * (2 + len(self.CHIPS))]
        for (_, cells), names in alike.items():
            shown = "pointwise ops" if len(names) > 20 else ", ".join(f"`{name}`" for name in names)
            lines.append(f"| {shown} | " + " | ".join(cells) + " |")
        return "\n".join(lines)


ELEMENT = "name bits class exponent mantissa bias infinity nan max doc"
FORMATS = "include/deepwell/format.def"

TABLES = {
    "coverage": Coverage(),
    "float-formats": Table(FORMATS, "DW_ELEMENT", ELEMENT, {
        "format": "`{name}`", "bits": "{bits}", "exponent, mantissa, bias": "{exponent}, {mantissa}, {bias}", "largest": largest,
        "smallest normal": lambda row: smallest(row, True), "smallest": lambda row: smallest(row, False),
        "infinity": lambda row: {"0": "no", "1": "yes"}[row["infinity"]],
        "NaN": lambda row: {"NONE": "none", "IEEE": "as IEEE 754", "ALL_ONES": "all ones"}[row["nan"]], "meaning": "{doc}",
    }, where=lambda row: row["class"] == "FLOAT"),
    "other-formats": Table(FORMATS, "DW_ELEMENT", ELEMENT, {"format": "`{name}`", "bits": "{bits}", "largest": largest, "meaning": "{doc}"},
                           where=lambda row: row["class"] != "FLOAT"),
    "block-formats": Table(FORMATS, "DW_BLOCK", "name element scale rows cols second doc", {
        "format": "`{name}`", "elements": "`{element}`", "scales": "`{scale}`", "block": block_shape,
        "second level": lambda row: {"0": "no", "1": "fp32 per tensor", "2": "fp32 per row"}[row["second"]], "bits per element": bits_per_element, "meaning": "{doc}",
    }),
    "chips": Table("src/chip/chip.def", "CHIP_GPU", " ".join(CHIP_GPU), {
        "chip": "`{name}`", "sm": "{arch}", "multiprocessors": "{sms}", "memory GB": "{gb}", "L2 MB": known("l2_mb"), "shared KB": "{shared}", "memory GB/s": rate_of("memory"),
        "L2 GB/s": rate_of("l2"), "f32": rate_of("f32"), "bf16": rate_of("bf16"), "fp8": rate_of("fp8"), "fp4, K = 64": rate_of("fp4"), "fp4, K = 96": rate_of("fp4_k96"),
    }),
    "measurements": Table("src/chip/chip.def", "CHIP_MEASURED", " ".join(CHIP_MEASURED), {
        "chip": "`{chip}`", "rate": "{rate}", "measured": "{value}", "of": lambda row: {"WHOLE": "a whole kernel", "ALONE": "the instruction alone", "UNIT": "a unit", "FIT": "a fit"}[row["by"]], "when": "{date}", "by what": "{source}",
    }),
    "commands": Table("src/cli/cmd.def", "CLI_COMMAND", "name letter operand meaning", {
        "command": lambda row: f"`deepwell {row['name']}{'' if row['operand'] == 'NULL' else ' ' + row['operand']}`", "what it gives": "{meaning}"}),
    "options": Table("src/cli/option.def", "CLI_OPTION", "name value commands meaning", {
        "option": lambda row: f"`--{row['name'].replace('_', '-')}{'' if row['value'] == 'NULL' else ' ' + row['value']}`",
        "commands": commands_of, "meaning": "{meaning}"}),
    "pointwise-ops": ops("pointwise"),
    "create-ops": ops("create"),
    "view-ops": ops("view"),
    "move-ops": ops("move", "index"),
    "reduce-ops": ops("reduce", "scan"),
    "norm-ops": ops("norm"),
    "sample-ops": ops("sample"),
    "collective-ops": ops("collective"),
    "training-ops": ops("optimizer", "squares"),
    "contraction-ops": ops("matmul", "grouped", "route", "attention", "mqa_logits", "cache", "rotary", "conv"),
    "quantize-ops": ops("quantize"),
    "optimizers": Table("src/train/optimizer.def", "OPTIMIZER", "name settings matrices meaning", {
        "optimiser": "`{name}`", "settings and their defaults": "`{settings}`", "what a step does": "{meaning}"}),
    "recompute": Table("src/pass/gradient/recompute.def", "RECOMPUTE", "name meaning", {"level": "`{name}`", "what is made again": "{meaning}"}),
    "attributes": Table("src/op/attr.def", "OP_ATTR", "name kind meaning", {
        "attribute": "`{name}`", "kind": lambda row: row["kind"].lower(), "meaning": "{meaning}",
    }),
    "aten-operators": Table("src/capture/aten.def", "ATEN", "target arguments in_place rule op becomes", {
        "operator": "`{target}`", "arguments": "`{arguments}`", "in place": lambda row: {"0": "", "1": "yes"}[row["in_place"]], "becomes": "{becomes}",
    }),
    "links": Table("src/chip/link.def", "CHIP_LINK", "name us gbs date source", {
        "ranks are": "{name}", "a meeting": "{us} us", "GB/s of the others' bytes": lambda row: "a copy's" if row["gbs"] == "0" else row["gbs"], "date": "{date}", "source": "{source}"}),
    "splits": Table("src/pass/shard/split.def", "SPLIT", "name meaning", {
        "split": "`{name}`", "what it means": "{meaning}"}),
    "precisions": Table("src/pass/precision/precision.def", "PRECISION", "name weight activation cache scores head meaning", {
        "precision": "`{name}`", "weight": lambda row: as_exported(row, "weight"), "activation": lambda row: as_exported(row, "activation"),
        "weights alone": lambda row: f"`{row['name']}-weights`" if has_weights_form(row) else "", "cache": lambda row: "" if row["cache"] == "COUNT" else as_exported(row, "cache"),
        "scores": lambda row: "" if row["scores"] == "COUNT" else as_exported(row, "scores"), "`lm_head`": "`{head}`", "meaning": "{meaning}",
    }),
    "passes": Table("src/pass/pass.def", "PASS", "name stages meaning", {
        "pass": "`{name}`", "stages": lambda row: row["stages"].lower().replace("|", ", "), "what it does": "{meaning}"}),
    "fusions": Table("src/pass/fuse/fuse.def", "FUSE", "name part meaning", {"fusion": "`{name}`", "what it makes of what": "{meaning}"}),
    "ptx-forms": Table("sim/isa/ptx.def", "PTX", "pattern types operands family evidence section meaning", {
        "instruction": "`{pattern}`", "types": "{types}", "known by": lambda row: row["evidence"].strip("'"), "PTX ISA": "{section}", "meaning": "{meaning}",
    }),
    "post-steps": Table("src/op/post.def", "OP_POST", "name operand halves meaning", {
        "step": "`{name}`", "operand": lambda row: {"NONE": "", "COLUMN": "[n]", "FULL": "broadcast to the result"}[row["operand"]],
        "columns left": lambda row: {"0": "n", "1": "n/2"}[row["halves"]], "y becomes": "`{meaning}`",
    }),
}


# ---- documents ----------------------------------------------------------------------------------------------------------------

MARKED = re.compile(r"^<!-- table (\S+) -->\n(.*?)^<!-- end -->$", flags=re.M | re.S)


def renewed(path, text, used):
    def fill(match):
        name = match[1]
        if name not in TABLES:
            raise SystemExit(f"gen_docs: {path}: there is no table '{name}'; gen_docs.py knows {', '.join(TABLES)}")
        used.add(name)
        return f"<!-- table {name} -->\n{TABLES[name].text()}\n<!-- end -->"

    return MARKED.sub(fill, text)


def main():
    check = sys.argv[1:] == ["--check"]
    if sys.argv[1:] and not check:
        raise SystemExit(__doc__)
    used, stale = set(), []
    for path in sorted(glob.glob(os.path.join(ROOT, "docs", "*.md")) + glob.glob(os.path.join(ROOT, "*.md"))):
        with open(path) as file:
            old = file.read()
        shown = os.path.relpath(path, ROOT)
        new = renewed(shown, old, used)
        if new != old and check:
            stale.append(shown)
        elif new != old:
            with open(path, "w") as file:
                file.write(new)
            print(f"wrote {shown}")
    unused = set(TABLES) - used
    if unused:
        raise SystemExit(f"gen_docs: no document has the table {', '.join(sorted(unused))}")
    if stale:
        raise SystemExit(f"gen_docs: stale: {', '.join(stale)}: run scripts/gen_docs.py and commit the result")


if __name__ == "__main__":
    main()
