"""How does a benchmark end? With one JSON line: what was wanted, what was got, and whether that is enough."""

from __future__ import annotations

import json
import operator
import os
import platform
from dataclasses import dataclass, field

_COMPARE = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le, "==": operator.eq}


@dataclass
class Verdict:
    """Collects goals; `print` writes the closing line that every `make bench-NAME` ends with."""

    bench: str
    goals: list[dict[str, object]] = field(default_factory=list)

    def goal(self, name: str, wanted: str, got: float, unit: str = "") -> None:
        """`wanted` is a comparison such as `> 1500`."""
        symbol, limit = wanted.split()
        met = _COMPARE[symbol](got, float(limit))
        self.goals.append({"name": name, "goal": f"{wanted} {unit}".strip(), "got": round(got, 4), "met": bool(met)})

    def not_measured(self, name: str, wanted: str, unit: str = "") -> None:
        """Whoever reads the verdict sees that nobody looked; nothing is taken for granted."""
        self.goals.append({"name": name, "goal": f"{wanted} {unit}".strip(), "got": None, "met": False})

    @property
    def names(self) -> set[object]:
        """Of the goals that there are so far."""
        return {goal["name"] for goal in self.goals}

    def print(self) -> None:
        print(json.dumps({"bench": self.bench, "goals": self.goals}), flush=True)


def conditions() -> str:
    """What the figures were obtained on."""
    return f"{os.cpu_count()} cores, {platform.system()} {platform.release()}, Python {platform.python_version()}"
