"""How is one table of a fleet file read so that every mistake in it is found, with its path and the fix?

Reading never raises: a bad value is reported and answered by one that cannot cause further reports (0, NaN, empty
text). That is safe because nothing is built from a file with problems.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import islice
from typing import cast

from harch.base.errors import InvariantBroken, Problems
from harch.fleet.format import FORMAT, LABEL, TEXT_CHARS_MAX, Key, Shape

SHOWN_CHARS_MAX = 64
SHOWN_NAMES_MAX = 8
COMPARED_NAMES_MAX = 1000  # comparing is slow, and a file may define tens of thousands


@dataclass(slots=True)
class Table:
    """One table: `path` as people see it (`hubs[2].racks[0]`), `form` as FORMAT names it (`hubs.racks`)."""

    raw: dict[str, object]
    path: str
    form: str
    problems: Problems

    def __post_init__(self) -> None:
        known = [key.name for key in FORMAT[self.form]]
        for name in self.raw:
            if is_full(self.problems):
                return
            if name not in known:
                self.add(shown(name), f"unknown key; {nearest(name, known)}")

    def add(self, key: str, what: str) -> None:
        self.problems.add(f"{self.path}.{key}" if self.path else key, what)

    def text(self, name: str) -> str:
        key, value = self._get(name)
        if value is None:
            return ""
        if not isinstance(value, str):
            self.add(name, f"must be a text, is {kind_of(value)}; write e.g. `{name} = {key.example}`")
            return ""
        return self._shaped(name, value, key)

    def texts(self, name: str) -> list[str]:
        """Texts of an array; none at all when one is bad, so that its absence is not reported as well."""
        key, value = self._get(name)
        if value is None:
            return []
        if not isinstance(value, list) or not key.low <= len(value) <= key.high:
            many = str(int(key.low)) if key.low == key.high else f"{int(key.low)} to {int(key.high)}"
            self.add(name, f"must be an array of {many} texts; write e.g. `{name} = {key.example}`")
            return []
        found = []
        for index, item in enumerate(value):
            if not isinstance(item, str):
                self.add(f"{name}[{index}]", f"must be a text, is {kind_of(item)}; write e.g. {key.example}")
            elif text := self._shaped(f"{name}[{index}]", item, key):
                found.append(text)
        return found if len(found) == len(value) else []

    def integer(self, name: str) -> int:
        key, value = self._get(name)
        if value is None:
            return key.default or 0
        if isinstance(value, bool) or not isinstance(value, int):
            self.add(name, f"must be a whole number, is {kind_of(value)}; write e.g. `{name} = {key.example}`")
            return 0
        return value if self._in_range(value, key) else 0

    def number(self, name: str) -> float:
        key, value = self._get(name)
        if value is None:
            return math.nan
        if isinstance(value, bool) or not isinstance(value, int | float):
            self.add(name, f"must be a number, is {kind_of(value)}; write e.g. `{name} = {key.example}`")
            return math.nan
        # The range is checked before float(), which overflows on the huge integers that TOML allows.
        return float(value) if self._in_range(value, key) else math.nan

    def boolean(self, name: str) -> bool:
        key, value = self._get(name)
        if value is None:
            return bool(key.default)
        if not isinstance(value, bool):
            self.add(name, f"must be true or false, is {kind_of(value)}; write e.g. `{name} = {key.example}`")
            return False
        return value

    def table(self, name: str) -> Table | None:
        """The one table of that name; None if it is absent, which the format must allow."""
        key, value = self._get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            self.add(name, f"must be a table; write `{key.example}`")
            return None
        form, path = self._inner(name)
        return Table(value, path, form, self.problems)

    def tables(self, name: str, *, limit: int) -> list[Table]:
        """The tables of an array of tables, at most `limit` of them."""
        key, value = self._get(name)
        if value is None:
            return []
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            self.add(name, f"must be an array of tables; write `{key.example}`")
            return []
        if not value and key.default is None:
            self.add(name, f"is empty; add at least one, as `{key.example}`")
        if len(value) > limit:
            self.add(name, f"has {len(value)} entries, the limit is {limit}; split the fleet or remove some")
        form, path = self._inner(name)
        return [Table(item, f"{path}[{index}]", form, self.problems) for index, item in enumerate(value[:limit])]

    def named_tables(self, name: str) -> dict[str, Table]:
        key, value = self._get(name)
        if value is None:
            return {}
        if not isinstance(value, dict) or not all(isinstance(item, dict) for item in value.values()):
            self.add(name, f"must hold named tables; write e.g. `{key.example}`")
            return {}
        if not value:
            self.add(name, f"is empty; add at least one, e.g. `{key.example}`")
        form, path = self._inner(name)
        found = {}
        for label, item in cast("dict[str, dict[str, object]]", value).items():
            if not _fits(label, LABEL):
                self.add(f"{name}.{shown(label)}", f"is not a name; use {LABEL.words}, at most {TEXT_CHARS_MAX}")
            found[label] = Table(item, f"{path}.{shown(label)}", form, self.problems)
        return found

    def _get(self, name: str) -> tuple[Key, object]:
        key = next((key for key in FORMAT[self.form] if key.name == name), None)
        if key is None:
            raise InvariantBroken("the reader asks for a key that the format does not have", self.form, name)
        if name not in self.raw and key.default is None:
            example = key.example if key.type.endswith("tables") else f"{name} = {key.example}"
            self.add(name, f"is missing; add e.g. `{example}`")
        return key, self.raw.get(name)

    def _inner(self, name: str) -> tuple[str, str]:
        return (f"{self.form}.{name}", f"{self.path}.{name}") if self.form else (name, name)

    def _in_range(self, value: float, key: Key) -> bool:
        if key.low <= value <= key.high:  # false for NaN too
            return True
        self.add(key.name, f"{shown(value)} is out of range; use {key.low:,.12g} to {key.high:,.12g}")
        return False

    def _shaped(self, where: str, value: str, key: Key) -> str:
        if key.shape is None or _fits(value, key.shape):
            return value
        words = f"use {key.shape.words}, at most {TEXT_CHARS_MAX} characters, e.g. {key.example}"
        if _fits(value.upper(), key.shape):
            words = f'write "{value.upper()}"'
        self.add(where, f"`{shown(value)}` is not valid; {words}")
        return ""


def is_full(problems: Problems) -> bool:
    """True when more problems would not be shown: time to stop looking for suggestions, which is slow."""
    return len(problems.found) >= problems.limit


def nearest(name: str, known_names: Collection[str]) -> str:
    """The fix for a name that is not known: the one that was probably meant, or the list."""
    known = list(islice(known_names, COMPARED_NAMES_MAX))
    close = get_close_matches(name[:SHOWN_CHARS_MAX], known, n=1)
    if not close:
        close = [other for other in known if other.lower() == name.lower()]
    if close:
        return f"did you mean `{shown(close[0])}`?"
    if not known:
        return "none is defined"
    more = ", …" if len(known) > SHOWN_NAMES_MAX else ""
    return f"known: {', '.join(shown(other) for other in known[:SHOWN_NAMES_MAX])}{more}"


def shown(value: object) -> str:
    """A value as an error shows it: one short line, whatever the file holds."""
    if isinstance(value, int) and abs(value) >= 10**18:
        return "a number with more than 18 digits"  # str() refuses integers of thousands of digits
    text = "".join(char if char.isprintable() else "?" for char in str(value)[: SHOWN_CHARS_MAX + 1])
    return text if len(text) <= SHOWN_CHARS_MAX else f"{text[:SHOWN_CHARS_MAX]}…"


def kind_of(value: object) -> str:
    """The type of a TOML value in words; scalars with their value."""
    match value:
        case bool():
            return str(value).lower()
        case int() | float():
            return shown(value)
        case str():
            return f'the text "{shown(value)}"'
        case list():
            return "an array"
        case dict():
            return "a table"
        case _:
            return "a date or time"


def _fits(text: str, shape: Shape) -> bool:
    return len(text) <= TEXT_CHARS_MAX and shape.pattern.fullmatch(text) is not None
