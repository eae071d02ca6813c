"""bench/models.py: its tables, which rows it runs, where a broken-off one goes on; and one small model of each kind of work through it on the CPU."""
import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parent.parent.parent / "bench"
sys.path.insert(0, str(BENCH))

import model_rows
import model_table


def made(time, **more):
    return {"sustained": time, "burst": time / 2, "first": 1.0, **more}


def row(name, kind, **ways):
    return {"row": name, "kind": kind, "made_by": "a machine", "ways": {way.replace("_", " "): what for way, what in ways.items()}}


def test_the_best_peer_is_the_fastest_in_the_models_own_format():
    measured = row("m/w", "products", eager=made(8.0), compile=made(6.0), compile_fp8=made(1.0), deepwell_bf16=made(3.0))
    assert model_table.best_peer(measured) == 6.0
    assert model_table.times_as_fast(measured, "deepwell bf16") == 2.0
    assert model_table.times_as_fast(measured, "deepwell bf16", beside="compile fp8") == pytest.approx(1 / 3)
    assert model_table.best_peer(row("m/w", "products", eager=made(8.0), **{"compile max-autotune-no-cudagraphs": made(5.0)})) == 5.0


def test_what_failed_or_was_not_measured_is_in_no_mean():
    rows = [row("a/1", "decode", eager=made(4.0), deepwell_bf16=made(1.0)), row("b/1", "decode", eager={"failed": "why"}, deepwell_bf16=made(1.0)),
            row("c/1", "decode", eager=made(1.0), deepwell_bf16=made(1.0))]
    text = model_table.markdown(rows)
    assert "| decode | 3 | 2.00 | 2.00 |" in text
    assert "- b/1, eager: why" in text


def test_of_a_row_that_is_there_twice_the_last_one_counts():
    text = model_table.markdown([row("a/1", "decode", eager=made(40.0)), row("a/1", "decode", eager=made(20.0))])
    assert "20.00 (10.00)" in text and "40.00" not in text


def test_losses_and_estimates_are_told_of_each_way():
    report = {"ms": 2.0, "bound": 1.0, "estimate": 1.8}
    text = model_table.markdown([row("a/1", "decode", deepwell_bf16=made(2.0, report=report, losses=[["3 x matmul k", 0.5], ["1 x norm k", 0.1]]))])
    assert "| a/1 | bf16 | 2.000 | 1.000 | 0.50 | 0.90 | 3 x matmul k 0.500; 1 x norm k 0.100 |" in text
    assert "1 of 1 within 25 %" in text


def test_rows_are_chosen_by_a_part_of_their_names():
    assert [(model.name, [work.name for work in works]) for model, works in model_rows.rows(["vit-large/64", "whisper-large/enc"])] == [
        ("vit-large", ["64"]), ("whisper-large", ["encoder 1", "encoder 8"])]
    everything = model_rows.rows([])
    assert [model.name for model, _ in everything] == list(model_rows.MODELS)
    assert {work.kind for _, works in everything for work in works} == set(model_table.KINDS)


def run(*arguments):
    return subprocess.run([sys.executable, str(BENCH / "models.py"), "--device", "cpu", "--small", "--rounds", "1", "--sustain", "0", "--pause", "0", "--ways", "eager,deepwell bf16", *arguments],
                          capture_output=True, text=True)


def test_no_such_row_is_said():
    done = run("nothing-like-it")
    assert done.returncode == 2 and "no row contains nothing-like-it" in done.stderr


@pytest.mark.long
def test_small_models_run_and_a_broken_off_table_goes_on(tmp_path):
    rows, tables = tmp_path / "rows.jsonl", tmp_path / "models.md"
    done = run("vit-large/1", "--rows", str(rows), "--markdown", str(tables))
    assert done.returncode == 0, done.stdout + done.stderr
    assert [json.loads(line)["row"] for line in rows.read_text().splitlines()] == ["vit-large/1"]
    done = run("vit-large/1", "t5-large/decode 1 ", "--rows", str(rows), "--continue", "--markdown", str(tables))
    assert done.returncode == 0, done.stdout + done.stderr
    kept = [json.loads(line) for line in rows.read_text().splitlines()]
    assert [one["row"] for one in kept] == ["vit-large/1", "t5-large/decode 1 behind 4"]
    text = tables.read_text()
    for one in kept:
        assert f"| {one['row']} |" in text
        ours = one["ways"]["deepwell bf16"]
        assert ours["sustained"] > 0 and ours["report"]["bound"] > 0 and len(ours["losses"]) == 3
    assert kept[-1]["ways"]["deepwell bf16"]["ids"] == "1 of 1"


@pytest.mark.long
def test_gpu_serve_tells_of_each_way():
    """On the CPU, where nothing else runs it: a service that looks ahead or not, draws, and engine.generate give a line each, and all tokens."""
    done = subprocess.run([sys.executable, str(BENCH / "gpu_serve.py"), "--device", "cpu", "--small", "--model", "gpt2", "--texts", "2", "--prompt", "8", "--tokens", "4", "--rounds", "1",
                           "--ways", "service,waits,draws,generate"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = {words[1]: words for words in map(str.split, done.stdout.splitlines()[2:])}
    assert list(lines) == ["service", "waits", "draws", "generate"], done.stdout
    assert all(float(words[3]) > 0 for words in lines.values()) and all(float(lines[way][8]) > 0 for way in ("service", "waits", "draws")), done.stdout
