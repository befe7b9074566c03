"""What may a fleet file say, and how is one table of it read?

Every table and key with type, limits and example; every mistake is found with its path and the fix.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import islice
from typing import Literal, cast

from harch.base.errors import InvariantBroken, Problems

FILE_BYTES_MAX = 4 * 1024 * 1024
HUBS_MAX = 64
GPUS_MAX = 100_000
NODE_GPUS_MAX = 72  # the widest machines that exist


@dataclass(frozen=True, slots=True)
class Shape:
    """What a text must look like, for the machine and in words."""

    pattern: re.Pattern[str]
    words: str


# Names become ids, folder names and parts of addresses, so they are kept plain.
SITE = Shape(re.compile(r"[A-Za-z][A-Za-z0-9]*(-[A-Za-z0-9]+)*"), "letters, digits and inner dashes")
LABEL = Shape(re.compile(r"[a-z0-9]+([.-][a-z0-9]+)*"), "lower-case letters, digits, inner dots and dashes")
ROW = Shape(re.compile(r"[A-Za-z0-9]+([.-][A-Za-z0-9]+)*"), "letters, digits, inner dots and dashes")
COUNTRY = Shape(re.compile(r"[A-Z]{2}"), "two capital letters (ISO 3166-1)")
GRID_ZONE = Shape(re.compile(r"[A-Z0-9]+([_-][A-Z0-9]+)*"), "capital letters and digits, e.g. a country code")
TEXT_CHARS_MAX = 48

KeyType = Literal["text", "texts", "integer", "number", "boolean", "table", "tables", "named tables"]


@dataclass(frozen=True, slots=True)
class FormatKey:
    """One key of a table. Without a default it must be there."""

    name: str
    type: KeyType
    example: str
    low: float = 0
    high: float = 0
    shape: Shape | None = None
    default: int | None = None


def _text(name: str, shape: Shape, example: str) -> FormatKey:
    return FormatKey(name, "text", f'"{example}"', shape=shape)


def _integer(name: str, low: int, high: int, example: int, default: int | None = None) -> FormatKey:
    return FormatKey(name, "integer", str(example), low, high, default=default)


def _number(name: str, low: float, high: float, example: float, default: int | None = None) -> FormatKey:
    return FormatKey(name, "number", str(example), low, high, default=default)


# A key's path in the file, without the numbers: `hubs.racks` holds the keys of each `[[hubs.racks]]`.
FORMAT: dict[str, tuple[FormatKey, ...]] = {
    "": (
        _text("name", LABEL, "my-fleet"),
        FormatKey("gpu_models", "named tables", "[gpu_models.h100-80gb]"),
        FormatKey("node_kinds", "named tables", "[node_kinds.h100-8]"),
        FormatKey("hubs", "tables", "[[hubs]]"),
        FormatKey("links", "tables", "[[links]]", default=0),
    ),
    "gpu_models": (
        _integer("memory_gb", 1, 10_000, 80),
        _integer("power_w", 1, 100_000, 700),
        _integer("nvlink_gb_per_s", 0, 100_000, 900),
        _integer("pcie_gb_per_s", 1, 100_000, 128),
    ),
    "node_kinds": (
        _text("gpu_model", LABEL, "h100-80gb"),
        _integer("gpus", 1, NODE_GPUS_MAX, 8),
        _integer("nvlink_island_size", 1, NODE_GPUS_MAX, 8),
        _integer("pcie_switch_size", 1, NODE_GPUS_MAX, 2),
        _integer("numa_nodes", 1, 16, 2),
        _integer("cpus", 1, 4_096, 112),
        _integer("memory_gb", 1, 1_000_000, 2_048),
        _integer("storage_gb", 1, 100_000_000, 30_000),
        _integer("host_power_w", 0, 100_000, 4_600, default=0),
    ),
    "hubs": (
        _text("name", SITE, "Dakhla"),
        _text("country", COUNTRY, "MA"),
        _text("grid_zone", GRID_ZONE, "MA"),
        _number("latitude", -90, 90, 23.7),
        _number("longitude", -180, 180, -15.9),
        _number("pue", 1, 5, 1.2),
        FormatKey("cooling_zones", "tables", "[[hubs.cooling_zones]]"),
        FormatKey("racks", "tables", "[[hubs.racks]]"),
        FormatKey("safeguards", "table", "[hubs.safeguards]", default=0),
    ),
    "hubs.safeguards": (
        FormatKey("encrypts_at_rest", "boolean", "true", default=0),
        FormatKey("encrypts_in_transit", "boolean", "true", default=0),
        FormatKey("keys_in", "texts", '["MA"]', 0, 32, COUNTRY, default=0),
        FormatKey("frameworks", "texts", '["gdpr"]', 0, 32, LABEL, default=0),
    ),
    "hubs.cooling_zones": (
        _text("name", LABEL, "hall-1"),
        _number("heat_kw_max", 0.1, 1_000_000, 540),
    ),
    "hubs.racks": (
        _integer("count", 1, GPUS_MAX, 6, default=1),
        _text("row", ROW, "A"),
        _text("cooling_zone", LABEL, "hall-1"),
        _number("power_kw_max", 0.1, 10_000, 44),
        FormatKey("nodes", "tables", 'nodes = [{ kind = "h100-8", count = 4 }]'),
    ),
    "hubs.racks.nodes": (
        _text("kind", LABEL, "h100-8"),
        _integer("count", 1, GPUS_MAX, 4, default=1),
    ),
    "links": (
        FormatKey("between", "texts", '["Dakhla", "Tangier"]', 2, 2, SITE),
        _number("rtt_ms", 0.01, 1_000, 20),
        _number("bandwidth_gbps", 0.001, 1_000_000, 100),
        FormatKey("countries_crossed", "texts", '["MA"]', 1, 32, COUNTRY),
        FormatKey("dedicated", "boolean", "true", default=0),
        _number("reserved_gbps", 0, 1_000_000, 40, default=0),
    ),
}


# How is one table of a fleet file read so that every mistake in it is found, with its path and the fix?
#
# Reading never raises: a bad value is reported and answered by one that cannot cause further reports (0, NaN, empty
# text). That is safe because nothing is built from a file with problems.


QUOTED_CHARS_MAX = 64
LISTED_NAMES_MAX = 8
COMPARED_NAMES_MAX = 1000  # comparing is slow, and a file may define tens of thousands


@dataclass(slots=True)
class TomlTable:
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
                self.add(quoted(name), f"unknown key; {nearest(name, known)}")

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

    def strings(self, name: str) -> list[str]:
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
            return math.nan if key.default is None else float(key.default)
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

    def table(self, name: str) -> TomlTable | None:
        """The one table of that name; None if it is absent, which the format must allow."""
        key, value = self._get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            self.add(name, f"must be a table; write `{key.example}`")
            return None
        form, path = self._inner(name)
        return TomlTable(value, path, form, self.problems)

    def tables(self, name: str, *, limit: int) -> list[TomlTable]:
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
        return [TomlTable(item, f"{path}[{index}]", form, self.problems) for index, item in enumerate(value[:limit])]

    def named_tables(self, name: str) -> dict[str, TomlTable]:
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
                self.add(f"{name}.{quoted(label)}", f"is not a name; use {LABEL.words}, at most {TEXT_CHARS_MAX}")
            found[label] = TomlTable(item, f"{path}.{quoted(label)}", form, self.problems)
        return found

    def _get(self, name: str) -> tuple[FormatKey, object]:
        key = next((key for key in FORMAT[self.form] if key.name == name), None)
        if key is None:
            raise InvariantBroken("the reader requests a key that the format does not have", self.form, name)
        if name not in self.raw and key.default is None:
            example = key.example if key.type.endswith("tables") else f"{name} = {key.example}"
            self.add(name, f"is missing; add e.g. `{example}`")
        return key, self.raw.get(name)

    def _inner(self, name: str) -> tuple[str, str]:
        return (f"{self.form}.{name}", f"{self.path}.{name}") if self.form else (name, name)

    def _in_range(self, value: float, key: FormatKey) -> bool:
        if key.low <= value <= key.high:  # false for NaN too
            return True
        self.add(key.name, f"{quoted(value)} is out of range; use {key.low:,.12g} to {key.high:,.12g}")
        return False

    def _shaped(self, where: str, value: str, key: FormatKey) -> str:
        if key.shape is None or _fits(value, key.shape):
            return value
        words = f"use {key.shape.words}, at most {TEXT_CHARS_MAX} characters, e.g. {key.example}"
        if _fits(value.upper(), key.shape):
            words = f'write "{value.upper()}"'
        self.add(where, f"`{quoted(value)}` is not valid; {words}")
        return ""


def is_full(problems: Problems) -> bool:
    """True when more problems would not be shown: time to stop looking for suggestions, which is slow."""
    return len(problems.found) >= problems.limit


def nearest(name: str, known_names: Collection[str]) -> str:
    """The fix for a name that is not known: the one that was probably meant, or the list."""
    known = list(islice(known_names, COMPARED_NAMES_MAX))
    close = get_close_matches(name[:QUOTED_CHARS_MAX], known, n=1)
    if not close:
        close = [other for other in known if other.lower() == name.lower()]
    if close:
        return f"did you mean `{quoted(close[0])}`?"
    if not known:
        return "none is defined"
    more = ", …" if len(known) > LISTED_NAMES_MAX else ""
    return f"known: {', '.join(quoted(other) for other in known[:LISTED_NAMES_MAX])}{more}"


def quoted(value: object) -> str:
    """A value as an error shows it: one short line, whatever the file holds."""
    if isinstance(value, int) and abs(value) >= 10**18:
        return "a number with more than 18 digits"  # str() refuses integers of thousands of digits
    text = "".join(char if char.isprintable() else "?" for char in str(value)[: QUOTED_CHARS_MAX + 1])
    return text if len(text) <= QUOTED_CHARS_MAX else f"{text[:QUOTED_CHARS_MAX]}…"


def kind_of(value: object) -> str:
    """The type of a TOML value in words; scalars with their value."""
    match value:
        case bool():
            return str(value).lower()
        case int() | float():
            return quoted(value)
        case str():
            return f'the text "{quoted(value)}"'
        case list():
            return "an array"
        case dict():
            return "a table"
        case _:
            return "a date or time"


def _fits(text: str, shape: Shape) -> bool:
    return len(text) <= TEXT_CHARS_MAX and shape.pattern.fullmatch(text) is not None
