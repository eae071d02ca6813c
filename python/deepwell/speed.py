"""The speed-of-light report: each step of a model's runs beside what the chip could do at best."""
from __future__ import annotations

import json
from typing import Any

from . import _core


class SpeedReport:
    """``print(report)`` for people: equal steps are one line, those that lose most first. ``runs`` for programs: what docs/report.md says of each."""

    def __init__(self, facts: str) -> None:
        self.json = facts
        self.facts: dict[str, Any] = json.loads(facts)

    @property
    def runs(self) -> list[dict[str, Any]]:
        return self.facts["runs"]

    def losses(self, count: int = 3) -> list[tuple[str, float]]:
        """Over all runs: the groups of equal steps that lose most, as words and milliseconds. Empty where nothing was measured."""
        rows = [(f"{g['count']} x {g['op']} {g['kernel']}", g["lost_seconds"] * 1e3) for run in self.runs for g in run["groups"] if "lost_seconds" in g]
        return sorted(rows, key=lambda row: -row[1])[:count]

    def table(self, *, lines: int = 0, all: bool = False) -> str:
        """lines: so many of each run, those that lose most; 0: every one. all: a line for each step, in their order."""
        return _core.report_table(self.json, all=all, lines=lines)

    def __str__(self) -> str:
        return self.table()
