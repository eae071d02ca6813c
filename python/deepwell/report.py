"""What of a model runs on Deepwell: rows with their share of FLOPs, and a reason for each that does not."""
from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Row:
    """One captured region, or one part left to PyTorch."""
    name: str                       # the module or graph, and the inputs that it was captured for
    where: str                      # "deepwell" or "pytorch"
    flops: float                    # of products, at the sizes of the first call
    reason: str = ""                # why PyTorch; of Deepwell's what is fixed
    calls: int = 0


@dataclass
class Report:
    """``print(report)`` for people; ``rows``, ``share``, ``whole`` for programs."""
    model: str
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def share(self) -> float:
        """Of the products' FLOPs, the part on Deepwell, 0 to 1; without any products, of the rows."""
        total = sum(r.flops for r in self.rows)
        if total > 0:
            return sum(r.flops for r in self.rows if r.where == "deepwell") / total
        return sum(r.where == "deepwell" for r in self.rows) / len(self.rows) if self.rows else 0.0

    @property
    def whole(self) -> bool:
        """Was each call that ran captured as one graph, with nothing of it left to PyTorch? Several regions with Python between them are not the
        whole, whatever their share."""
        return bool(self.rows) and all(r.where == "deepwell" for r in self.rows)

    @property
    def reasons(self) -> list[str]:
        """Why something is left to PyTorch, each reason once."""
        return list(dict.fromkeys(r.reason for r in self.rows if r.where == "pytorch"))

    def __str__(self) -> str:
        if not self.rows:
            return f"{self.model}: nothing has run yet" + "".join(f"\n  {n}" for n in self.notes)
        total = sum(r.flops for r in self.rows)
        head = "all" if self.whole else "part" if any(r.where == "deepwell" for r in self.rows) else "nothing"
        lines = [f"{self.model}: {head} of it on Deepwell, {100 * self.share:.1f} % of {total / 1e9:.4g} GFLOP"]
        for r in self.rows:
            share = f"{100 * r.flops / total:5.1f} %" if total else "      -"
            lines.append(f"  {r.where:8} {share}  {r.calls:6} calls  {r.name}" + (f": {r.reason}" if r.reason else ""))
        lines += [f"  {n}" for n in self.notes]
        return "\n".join(lines)
