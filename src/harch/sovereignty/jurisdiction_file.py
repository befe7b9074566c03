"""Which frameworks and groups does this file add? TOML in, registry out, or one error with all mistakes and fixes."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import resources

from harch.base.errors import HarchError, Problems
from harch.sovereignty.countries import country_of
from harch.sovereignty.jurisdictions import WORLD, Framework, Group, Jurisdictions, bare_registry

CODE = "E0903"
HINT = "docs/reference/tags.md describes the file and shows an example"
FILE_CHARS_MAX = 1024 * 1024
ENTRIES_MAX = 1000
BIT_MAX = 255
TEXT_CHARS_MAX = 512
_FRAMEWORK_ID = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_GROUP_ID = re.compile(r"[A-Z][A-Z0-9]+(-[A-Z0-9]+)*")
_COUNTRY = re.compile(r"[A-Z]{2}")


@cache
def shipped_jurisdictions() -> Jurisdictions:
    """The registry that comes with HarchOS."""
    text = resources.files("harch.sovereignty").joinpath("shipped/jurisdictions.toml").read_text("utf-8")
    return parse_jurisdictions(text, "jurisdictions.toml", base=bare_registry())


def parse_jurisdictions(text: str, source_name: str, *, base: Jurisdictions | None = None) -> Jurisdictions:
    """`base` (the shipped registry if absent) with the file's entries added or replaced. Raises HarchError E0903."""
    known = shipped_jurisdictions() if base is None else base
    if len(text) > FILE_CHARS_MAX:
        raise HarchError(CODE, f"{source_name}: larger than {FILE_CHARS_MAX // 1024} KiB", hint=HINT)
    try:
        root = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise HarchError(CODE, f"{source_name}: not valid TOML: {str(error)[:200]}", hint=HINT) from error
    problems = Problems()
    for name in root:
        if name not in ("countries", "frameworks", "groups"):
            problems.add(name[:64], "unknown key; use countries, frameworks or groups")
    # In this order, because groups name countries and frameworks name both.
    countries = {**known.countries, **_read_countries(root.get("countries", {}), problems)}
    plain = Jurisdictions(countries=countries, frameworks={}, groups={})
    groups = {**known.groups, **{entry.id: _read_group(entry, plain) for entry in _entries(root, "groups", problems)}}
    grouped = Jurisdictions(countries=countries, frameworks={}, groups=groups)
    laws = {entry.id: _read_framework(entry, grouped) for entry in _entries(root, "frameworks", problems)}
    registry = Jurisdictions(countries=countries, frameworks={**known.frameworks, **laws}, groups=groups)
    _check_bits(known, registry, problems)
    _check_words(registry, problems)
    if problems:
        _refuse(problems, source_name)
    return registry


@dataclass(frozen=True, slots=True)
class _Entry:
    """One named table, read so that every mistake is reported and none is raised."""

    id: str
    path: str
    raw: dict[str, object]
    problems: Problems

    def only(self, *names: str) -> None:
        for name in self.raw:
            if name not in names:
                self.problems.add(f"{self.path}.{name[:64]}", f"unknown key; use {', '.join(names)}")

    def text(self, name: str) -> str:
        value = self.raw.get(name)
        if isinstance(value, str) and 0 < len(value) <= TEXT_CHARS_MAX:
            return value
        self.problems.add(f"{self.path}.{name}", f"must be a text of 1 to {TEXT_CHARS_MAX} characters")
        return ""

    def texts(self, name: str, *, required: bool) -> tuple[str, ...]:
        value = self.raw.get(name)
        if value is None and not required:
            return ()
        if (
            isinstance(value, list)
            and (value or not required)
            and all(isinstance(item, str) and len(item) <= TEXT_CHARS_MAX for item in value)
        ):
            return tuple(value)
        self.problems.add(f"{self.path}.{name}", 'must be a list of texts, e.g. `["MA", "SN"]`')
        return ()


def _entries(root: dict[str, object], table: str, problems: Problems) -> Iterator[_Entry]:
    entries = root.get(table, {})
    if not isinstance(entries, dict) or not all(isinstance(entry, dict) for entry in entries.values()):
        problems.add(table, f"must hold named tables; write e.g. `[{table}.NAME]`")
        return
    if len(entries) > ENTRIES_MAX:
        problems.add(table, f"has {len(entries)} entries, the limit is {ENTRIES_MAX}")
        return
    for id, raw in entries.items():
        yield _Entry(id, f"{table}.{id[:64]}", raw, problems)


def _read_countries(raw: object, problems: Problems) -> dict[str, str]:
    """Codes that ISO has not assigned, e.g. `XK`; the assigned ones cannot be renamed."""
    if not isinstance(raw, dict):
        problems.add("countries", 'must be a table; write e.g. `XK = "Kosovo"` under `[countries]`')
        return {}
    found = {}
    assigned = bare_registry().countries
    for code, name in raw.items():
        if not _COUNTRY.fullmatch(code) or not isinstance(name, str) or not 0 < len(name) <= TEXT_CHARS_MAX:
            problems.add(f"countries.{code[:64]}", 'must be two capital letters and a name, e.g. `XK = "Kosovo"`')
        elif code in assigned:
            problems.add(f"countries.{code}", f"is {assigned[code]} in ISO 3166-1; remove it or use another code")
        else:
            found[code] = name
    return found


def _read_group(entry: _Entry, registry: Jurisdictions) -> Group:
    entry.only("name", "countries", "aliases", "mistaken_for")
    if not _GROUP_ID.fullmatch(entry.id):
        entry.problems.add(entry.path, "is not a group name; use capital letters, digits and inner dashes")
    mistaken = entry.texts("mistaken_for", required=False)
    for code in mistaken:
        if code not in registry.countries:
            entry.problems.add(f"{entry.path}.mistaken_for", f"`{code[:64]}` is not a country code; remove it")
    return Group(
        id=entry.id,
        name=entry.text("name"),
        countries=registry.expand(entry.texts("countries", required=True), f"{entry.path}.countries", entry.problems),
        aliases=entry.texts("aliases", required=False),
        mistaken_for=tuple(code for code in mistaken if code in registry.countries),
    )


def _read_framework(entry: _Entry, registry: Jurisdictions) -> Framework:
    entry.only("bit", "name", "in_force", "summary", "aliases")
    if not _FRAMEWORK_ID.fullmatch(entry.id) or len(entry.id) > 48:
        entry.problems.add(entry.path, "is not a framework name; use lower-case letters, digits and inner dashes")
    bit = entry.raw.get("bit")
    if isinstance(bit, bool) or not isinstance(bit, int) or not 0 <= bit <= BIT_MAX:
        entry.problems.add(f"{entry.path}.bit", f"must be a whole number; use a free one from 64 to {BIT_MAX}")
        bit = -1
    return Framework(
        id=entry.id,
        bit=bit,
        name=entry.text("name"),
        in_force=registry.expand(entry.texts("in_force", required=False), f"{entry.path}.in_force", entry.problems),
        summary=entry.text("summary"),
        aliases=entry.texts("aliases", required=False),
    )


def _check_bits(base: Jurisdictions, registry: Jurisdictions, problems: Problems) -> None:
    """A bit names one framework for ever: two with one bit would be taken for each other."""
    owner: dict[int, str] = {}
    for law in registry.frameworks.values():
        before = base.frameworks.get(law.id)
        if before is not None and before.bit != law.bit >= 0:
            problems.add(f"frameworks.{law.id}.bit", f"was {before.bit} and must stay so; write `bit = {before.bit}`")
        elif law.bit in owner and law.bit >= 0:
            problems.add(f"frameworks.{law.id}.bit", f"{law.bit} belongs to {owner[law.bit]}; use a free one")
        owner.setdefault(law.bit, law.id)


def _check_words(registry: Jurisdictions, problems: Problems) -> None:
    """A word means one thing: no group is called like a country, and no two entries share a name."""
    seen: dict[str, str] = {WORLD: "the group of all countries"}
    for group in registry.groups.values():
        for word in dict.fromkeys(word.upper() for word in (group.id, *group.aliases)):
            if word in seen or _is_country(registry, word):
                problems.add(f"groups.{group.id}", f"`{word[:64]}` already means {seen.get(word, 'a country')}; rename")
            seen.setdefault(word, f"the group {group.id}")
    laws: dict[str, str] = {}
    for law in registry.frameworks.values():
        for word in dict.fromkeys(word.lower() for word in (law.id, *law.aliases)):
            if word in laws:
                problems.add(f"frameworks.{law.id}", f"`{word[:64]}` already names {laws[word]}; rename it")
            laws.setdefault(word, law.id)


def _is_country(registry: Jurisdictions, word: str) -> bool:
    if word in registry.countries:
        return True
    try:
        country_of(word)
    except HarchError:
        return False
    return True


def _refuse(problems: Problems, source_name: str) -> None:
    lines = [f"{where}: {what}" for where, what in problems.found]
    head = f"{source_name}: {lines[0]}" if len(lines) == 1 else f"{source_name}: {len(lines)} problems"
    message = head if len(lines) == 1 else head + "".join(f"\n  {line}" for line in lines)
    meta: dict[str, object] = {
        "source": source_name,
        "problems": [{"where": where, "what": what} for where, what in problems.found],
    }
    raise HarchError(CODE, message, hint=HINT, field=problems.found[0][0], meta=meta)
