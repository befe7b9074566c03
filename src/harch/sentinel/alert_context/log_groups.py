"""Which log lines tell most? Those that differ only in numbers and ids are one group; bad and new ones come first."""

# harch: pure

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from harch.sentinel.model.logs import LEVELS
from harch.sentinel.traces.search import TraceLine

TEXT_CHARS = 400  # of a line, which identify its group
TRACES_MAX = 5  # of one group
GROUPS_MAX = 2000  # different kinds of lines that are counted apart

_VARIABLE = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9:.,]+(?:Z|[+-][0-9:]+)?"  # times
    r"|\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b"  # UUIDs
    r"|\b(?=[a-fA-F]*[0-9])[0-9a-fA-F]{8,}\b"  # ids in hexadecimal
    r"|\b(?=(?:[^\W0-9]*+[0-9]){3})\w{12,}\b"  # and others: long words with several digits
    r"|[0-9]+(?:\.[0-9]+)*"
)
_WORDS = {
    "warning": "warn",
    "err": "error",
    "fatal": "critical",
    "panic": "critical",
    "emerg": "critical",
    "alert": "critical",
    "crit": "critical",
    "information": "info",
    "notice": "info",
}
_IN_TEXT = re.compile(r"\b(trace|debug|info|warn|warning|err|error|fatal|panic|critical)\b", re.IGNORECASE)
_HEAD_CHARS = 120  # where a line says its own level, if it does
_SEVERE = LEVELS.index("warn")


@dataclass(slots=True)
class LineGroup:
    """Lines of one kind. `before` of them were written before the trouble began."""

    pattern: str
    level: str
    example: TraceLine
    count: int = 0
    before: int = 0
    first_ns: int = 0
    last_ns: int = 0
    trace_ids: list[str] = field(default_factory=list)

    @property
    def is_new(self) -> bool:
        return self.before == 0

    @property
    def severity(self) -> int:
        """0 for all that is no warning, so that among these frequency decides."""
        rank = LEVELS.index(self.level) if self.level in LEVELS else 0
        return rank if rank >= _SEVERE else 0

    @property
    def json(self) -> dict[str, object]:
        return {
            "level": self.level,
            "count": self.count,
            "countBefore": self.before,
            "new": self.is_new,
            "firstUnixNano": str(self.first_ns),
            "lastUnixNano": str(self.last_ns),
            "pattern": self.pattern,
            "example": self.example.json,
            "traceIDs": list(self.trace_ids),
        }


def grouped(lines: Iterable[TraceLine], *, began_ns: int) -> list[LineGroup]:
    """The groups of these lines; a line that comes twice counts once."""
    groups: dict[tuple[str, str], LineGroup] = {}
    seen: set[TraceLine] = set()
    for line in lines:
        if line in seen:
            continue
        seen.add(line)
        level, pattern = level_of(line), pattern_of(line.text)
        group = groups.get((level, pattern))
        if group is None:
            if len(groups) >= GROUPS_MAX:
                continue
            group = groups[level, pattern] = LineGroup(
                pattern, level, line, first_ns=line.time_ns, last_ns=line.time_ns
            )
        _count(group, line, began_ns)
    return list(groups.values())


def _count(group: LineGroup, line: TraceLine, began_ns: int) -> None:
    group.count += 1
    group.before += line.time_ns < began_ns
    group.first_ns, group.last_ns = min(group.first_ns, line.time_ns), max(group.last_ns, line.time_ns)
    if line.trace_id and line.trace_id not in group.trace_ids and len(group.trace_ids) < TRACES_MAX:
        group.trace_ids.append(line.trace_id)
    if line.time_ns >= began_ns > group.example.time_ns:
        group.example = line


def select_groups(groups: Sequence[LineGroup], limit: int) -> list[LineGroup]:
    """The worst first; among equals what was not there before, then what is more frequent than before."""

    def weight(group: LineGroup) -> tuple[int, bool, int, int]:
        return (-group.severity, not group.is_new, group.before - (group.count - group.before), group.first_ns)

    return sorted(groups, key=weight)[:limit]


def pattern_of(text: str) -> str:
    """The line without what changes from one to the next."""
    return _VARIABLE.sub("#", text[:TEXT_CHARS])


def level_of(line: TraceLine) -> str:
    """The level that came with the line, or that its beginning names; empty if neither."""
    level = line.level.lower()
    if level:
        return _WORDS.get(level, level)
    found = _IN_TEXT.search(line.text[:_HEAD_CHARS])
    if found is None:
        return ""
    word = found[0].lower()
    return _WORDS.get(word, word)
