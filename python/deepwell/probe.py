"""What this machine has, and what Deepwell can use of it. Needs no torch."""
from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from . import _core


@dataclass(frozen=True)
class CPU:
    """level: the row of the chip table whose kernels run here, such as "cpu-avx512bf16"."""
    level: str
    model: str
    threads: int
    features: tuple[str, ...]
    memory_bytes: int


@dataclass(frozen=True)
class GPU:
    """One GPU. facts: everything that the core knows of it."""
    name: str
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def compute_capability(self) -> tuple[int, int] | None:
        """(10, 0) for sm_100; None where the core does not say."""
        arch = str(self.facts.get("arch", self.facts.get("sm", ""))).removeprefix("sm_").rstrip("af")
        return (int(arch[:-1]), int(arch[-1])) if len(arch) >= 2 and arch.isdigit() else None

    @property
    def is_blackwell(self) -> bool:
        """sm_100, sm_103, sm_110, sm_120 and sm_121."""
        capability = self.compute_capability
        return capability is not None and 10 <= capability[0] <= 12

    @property
    def is_hopper(self) -> bool:
        return self.compute_capability == (9, 0)


@dataclass(frozen=True)
class Hardware:
    """``hw.cpu``, ``hw.gpus`` (an empty list where there is none; ``print(hw)`` says so), ``hw.version``, ``hw.gpu_code``: whether this build has kernels for GPUs."""
    version: str
    cpu: CPU
    gpus: list[GPU]
    gpu_code: bool = True

    def __str__(self) -> str:
        cpu = self.cpu
        lines = [f"{cpu.level} ({cpu.model}): {cpu.threads} threads, {cpu.memory_bytes / 1e9:.1f} GB; {', '.join(cpu.features)}"]
        lines += [f"gpu {i}: {g.name}" for i, g in enumerate(self.gpus)] or ["gpus: none that Deepwell can use; it runs on the CPU"]
        lines += [] if self.gpu_code else ["gpu code: none in this build, which was made for CPUs alone"]
        return "\n".join(lines)


def probe() -> Hardware:
    """Looks at the machine: the CPU's level and features, and the GPUs."""
    facts = json.loads(_core.probe())
    cpu = facts["cpu"]
    gpus = [GPU(str(g.get("name", g.get("model", "?"))), g) for g in facts.get("gpus", [])]
    return Hardware(facts["version"], CPU(cpu["level"], cpu["model"], cpu["threads"], tuple(cpu["features"]), cpu["memory_bytes"]), gpus, facts["gpu_code"])
