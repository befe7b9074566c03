"""What does a table of a tariff file hold? Each value with its limits; every mistake is collected, none is raised."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import time

from harch.base.errors import Problems

TEXT_CHARS_MAX = 120
ENTRIES_MAX = 64
# Far above any real price, also in currencies of small units; what is above was written in another unit.
PER_MWH_MAX = 1e8
_CLOCK = re.compile(r"([01]\d|2[0-4]):([0-5]\d)")


@dataclass(frozen=True, slots=True)
class Entry:
    """One table and the path that names it to people."""

    raw: dict[str, object]
    path: str
    problems: Problems

    def at(self, name: str) -> str:
        return f"{self.path}.{name}" if self.path else name

    def wrong(self, name: str, what: str) -> None:
        self.problems.add(self.at(name), what)

    def only(self, *names: str) -> None:
        for name in self.raw:
            if name not in names:
                self.wrong(name[:64], f"unknown key; use {', '.join(names)}")

    def text(self, name: str, default: str | None = None) -> str:
        value = self.raw.get(name, default)
        if isinstance(value, str) and 0 < len(value) <= TEXT_CHARS_MAX:
            return value
        if value != default or default is None:
            self.wrong(name, f"must be a text of 1 to {TEXT_CHARS_MAX} characters")
        return default or ""

    def number(self, name: str, *, low: float, high: float, default: float | None = None) -> float:
        value = self.raw.get(name, default)
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            if low <= value <= high:
                return float(value)
            self.wrong(name, f"is {value:g}; use {low:g} to {high:g}")
        else:
            self.wrong(name, f"must be a number from {low:g} to {high:g}")
        return low if default is None else default

    def price(self, name: str, default: float | None = None) -> float:
        """Per MWh. Prices may be negative."""
        return self.number(name, low=-PER_MWH_MAX, high=PER_MWH_MAX, default=default)

    def flag(self, name: str, default: bool) -> bool:
        value = self.raw.get(name, default)
        if not isinstance(value, bool):
            self.wrong(name, "must be true or false")
            return default
        return value

    def clock(self, name: str) -> time:
        value = self.raw.get(name)
        minutes = minutes_of(value) if isinstance(value, str) else None
        if minutes is None or minutes == 24 * 60:
            self.wrong(name, 'must be a time of day, e.g. "13:00"')
            return time(0)
        return time(minutes // 60, minutes % 60)

    def table(self, name: str) -> Entry | None:
        value = self.raw.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            self.wrong(name, f"must be a table; write `[{self.at(name)}]`")
            return None
        return Entry(value, self.at(name), self.problems)

    def tables(self, name: str) -> Iterator[Entry]:
        value = self.raw.get(name, [])
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            self.wrong(name, f"must be tables; write `[[{self.at(name)}]]`")
            return
        if len(value) > ENTRIES_MAX:
            self.wrong(name, f"has {len(value)} entries, the limit is {ENTRIES_MAX}")
            return
        for index, item in enumerate(value):
            yield Entry(item, f"{self.at(name)}[{index}]", self.problems)


def minutes_of(text: str) -> int | None:
    """Minutes after midnight of `HH:MM`, up to 24:00; None if it is no time."""
    found = _CLOCK.fullmatch(text)
    if found is None:
        return None
    minutes = int(found[1]) * 60 + int(found[2])
    return minutes if minutes <= 24 * 60 else None
