"""How does a benchmark end? With one JSON line: what was wanted, what was got, and whether that is enough."""

from __future__ import annotations

import json
import operator
import os
import platform
import sys
from dataclasses import dataclass, field
from typing import Any, TextIO

from harch.cli.views.progress import ProgressLine, is_visible

_COMPARE = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le, "==": operator.eq}


@dataclass
class Verdict:
    """Collects goals; `print` writes the closing line that every `make bench-NAME` ends with."""

    bench: str
    goals: list[dict[str, object]] = field(default_factory=list)
    _line: ProgressLine | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        """At a terminal, a line says how long it has been running and how many goals are measured, until `print`."""
        if is_visible():
            self._line = ProgressLine(self._progress(), enabled=True)
            sys.stdout = _Above(sys.stdout, self._line)  # type: ignore[assignment] # it writes as the stream does

    def _progress(self) -> str:
        return f"{self.bench}: {len(self.goals)} {'goal' if len(self.goals) == 1 else 'goals'} measured"

    def _add(self, goal: dict[str, object]) -> None:
        self.goals.append(goal)
        if self._line is not None:
            self._line.update(0, None, self._progress())

    def goal(self, name: str, wanted: str, got: float, unit: str = "") -> None:
        """`wanted` is a comparison such as `> 1500`."""
        symbol, limit = wanted.split()
        met = _COMPARE[symbol](got, float(limit))
        self._add({"name": name, "goal": f"{wanted} {unit}".strip(), "got": round(got, 4), "met": bool(met)})

    def not_measured(self, name: str, wanted: str, unit: str = "") -> None:
        """Whoever reads the verdict sees that nobody looked; nothing is taken for granted."""
        self._add({"name": name, "goal": f"{wanted} {unit}".strip(), "got": None, "met": False})

    @property
    def names(self) -> set[object]:
        """Of the goals that there are so far."""
        return {goal["name"] for goal in self.goals}

    def print(self) -> None:
        if self._line is not None:
            self._line.finish()
        print(json.dumps({"bench": self.bench, "goals": self.goals}), flush=True)


class _Above:
    """A stream that erases the line about progress before it writes."""

    def __init__(self, stream: TextIO, line: ProgressLine) -> None:
        self._stream, self._line = stream, line

    def write(self, text: str) -> int:
        self._line.erase()
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def conditions() -> str:
    """What the figures were obtained on."""
    return f"{os.cpu_count()} cores, {platform.system()} {platform.release()}, Python {platform.python_version()}"
