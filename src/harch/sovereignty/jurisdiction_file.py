"""Which frameworks, groups and places does this file add, and which are in force?

TOML in, registry out, or one error with all mistakes; shipped ones with those of the operator.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import resources
from ipaddress import IPv6Network, ip_network

from harch.base.config import home_from_env
from harch.base.errors import HarchError, Problems
from harch.base.hosts import address_of, read_host
from harch.sovereignty.jurisdictions import (
    HOME_NAME,
    WORLD,
    CountryGroup,
    DeclaredPlace,
    Framework,
    Jurisdictions,
    Places,
    bare_registry,
    country_of,
)

CODE = "E0903"
HINT = "docs/reference/tags.md describes the file and shows an example"
FILE_CHARS_MAX = 1024 * 1024
ENTRIES_MAX = 1000
BIT_MAX = 255
TEXT_CHARS_MAX = 512
_FRAMEWORK_ID = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_GROUP_ID = re.compile(r"[A-Z][A-Z0-9]+(-[A-Z0-9]+)*")
_COUNTRY = re.compile(r"[A-Z]{2}")
_PLACE_ID = re.compile(r"[a-z0-9]+([-_][a-z0-9]+)*")
PREFIX_MIN_V4, PREFIX_MIN_V6 = 8, 16  # a wider network is no place, but half of the world


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
        if name not in ("countries", "frameworks", "groups", "places"):
            problems.add(name[:64], "unknown key; use countries, frameworks, groups or places")
    # In this order, because groups name countries and frameworks name both.
    countries = {**known.countries, **_read_countries(root.get("countries", {}), problems)}
    plain = Jurisdictions(countries=countries, frameworks={}, groups={})
    groups = {**known.groups, **{entry.id: _read_group(entry, plain) for entry in _entries(root, "groups", problems)}}
    grouped = Jurisdictions(countries=countries, frameworks={}, groups=groups)
    laws = {entry.id: _read_framework(entry, grouped) for entry in _entries(root, "frameworks", problems)}
    found = {entry.id: _read_place(entry, plain) for entry in _entries(root, "places", problems)}
    places = Places(tuple({**{place.id: place for place in known.places.entries}, **found}.values()))
    registry = Jurisdictions(countries=countries, frameworks={**known.frameworks, **laws}, groups=groups, places=places)
    _check_places(places, problems)
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
        self.problems.add(f"{self.path}.{name}", f"must be a string of 1 to {TEXT_CHARS_MAX} characters")
        return ""

    def strings(self, name: str, *, required: bool) -> tuple[str, ...]:
        value = self.raw.get(name)
        if value is None and not required:
            return ()
        if (
            isinstance(value, list)
            and (value or not required)
            and all(isinstance(item, str) and len(item) <= TEXT_CHARS_MAX for item in value)
        ):
            return tuple(value)
        self.problems.add(f"{self.path}.{name}", 'must be a list of strings, e.g. `["MA", "SN"]`')
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


def _read_group(entry: _Entry, registry: Jurisdictions) -> CountryGroup:
    entry.only("name", "countries", "aliases", "mistaken_for")
    if not _GROUP_ID.fullmatch(entry.id):
        entry.problems.add(entry.path, "is not a group name; use capital letters, digits and inner dashes")
    mistaken = entry.strings("mistaken_for", required=False)
    for code in mistaken:
        if code not in registry.countries:
            entry.problems.add(f"{entry.path}.mistaken_for", f"`{code[:64]}` is not a country code; remove it")
    return CountryGroup(
        id=entry.id,
        name=entry.text("name"),
        countries=registry.expand(entry.strings("countries", required=True), f"{entry.path}.countries", entry.problems),
        aliases=entry.strings("aliases", required=False),
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
        in_force=registry.expand(entry.strings("in_force", required=False), f"{entry.path}.in_force", entry.problems),
        summary=entry.text("summary"),
        aliases=entry.strings("aliases", required=False),
    )


def _read_place(entry: _Entry, registry: Jurisdictions) -> DeclaredPlace:
    entry.only("country", "networks", "names")
    if not _PLACE_ID.fullmatch(entry.id) or len(entry.id) > 48:
        entry.problems.add(entry.path, "is not the name of a place; use lower-case letters, digits and inner dashes")
    country = entry.text("country")
    if country and country not in registry.countries:
        entry.problems.add(f"{entry.path}.country", f"`{country[:64]}` is not a country; use a code such as MA")
    written = (entry.strings("networks", required=True), entry.strings("names", required=False))
    for values, name in zip(written, ("networks", "names"), strict=True):
        if len(values) > ENTRIES_MAX:
            entry.problems.add(f"{entry.path}.{name}", f"has {len(values)} entries, the limit is {ENTRIES_MAX}")
    networks = [_read_network(text, f"{entry.path}.networks[{at}]", entry) for at, text in enumerate(written[0])]
    names = [_read_name(text, f"{entry.path}.names[{at}]", entry) for at, text in enumerate(written[1])]
    return DeclaredPlace(
        id=entry.id,
        country=country,
        networks=tuple(network for network in networks if network),
        names=tuple(name for name in names if name),
    )


def _read_network(text: str, where: str, entry: _Entry) -> str:
    """As it is compared: an IPv4 network is never written inside of IPv6."""
    try:
        network = ip_network(text)
    except ValueError as error:
        entry.problems.add(where, f"is not a network ({error}); write e.g. `10.1.0.0/16`")
        return ""
    is_v6 = isinstance(network, IPv6Network)
    if isinstance(network, IPv6Network) and network.network_address.ipv4_mapped is not None:
        entry.problems.add(where, "is IPv4 within IPv6; write the IPv4 network")
    elif network.prefixlen < (PREFIX_MIN_V6 if is_v6 else PREFIX_MIN_V4):
        widest = PREFIX_MIN_V6 if is_v6 else PREFIX_MIN_V4
        entry.problems.add(where, f"is wider than /{widest}; list only the networks of the place")
    elif network.is_loopback or network.is_multicast or network.network_address.is_unspecified:
        entry.problems.add(where, "is not the network of a place: it means this machine, or many machines")
    else:
        return str(network)
    return ""


def _read_name(text: str, where: str, entry: _Entry) -> str:
    """A host, or `*.` with the domain that hosts are in."""
    wildcard = text.startswith("*.")
    try:
        name = read_host(text.removeprefix("*."))
    except ValueError as error:
        entry.problems.add(where, f"{error}; write a name such as `broker.example`, or `*.example`")
        return ""
    if address_of(name) is not None:
        entry.problems.add(where, "is an address; write it under `networks`")
        return ""
    if name == HOME_NAME or name.endswith(f".{HOME_NAME}"):
        entry.problems.add(where, "is this machine; remove it")
        return ""
    return f"*.{name}" if wildcard else name


def _check_places(places: Places, problems: Problems) -> None:
    """One network, and one name, stands in one country; a narrower network may stand in another than a wider one."""
    owners: dict[str, DeclaredPlace] = {}
    for place in places.entries:
        for word in (*place.networks, *place.names):
            other = owners.setdefault(word, place)
            if other.country != place.country:
                sentence = f"`{word}` is in {other.country} as {other.id}, too; remove it from one of them"
                problems.add(f"places.{place.id}", sentence)


def _check_bits(base: Jurisdictions, registry: Jurisdictions, problems: Problems) -> None:
    """A bit names one framework forever: two with one bit would be taken for each other."""
    owner: dict[int, str] = {}
    for law in registry.frameworks.values():
        before = base.frameworks.get(law.id)
        if before is not None and before.bit != law.bit >= 0:
            problems.add(
                f"frameworks.{law.id}.bit", f"was {before.bit} and must not change; write `bit = {before.bit}`"
            )
        elif law.bit in owner and law.bit >= 0:
            problems.add(f"frameworks.{law.id}.bit", f"{law.bit} belongs to {owner[law.bit]}; use another one")
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


# Which jurisdictions does this machine know? The shipped ones, with what the operator's own file adds or replaces.


FILE_NAME = "jurisdictions.toml"  # in the state folder (HARCH_HOME), so that hubs, agents and the CLI read the same


@lru_cache(maxsize=1)
def jurisdictions_in_force() -> Jurisdictions:
    """Read once per process. A file with a mistake is an error (E0903), never silently ignored."""
    path = home_from_env().root / FILE_NAME
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return shipped_jurisdictions()
    except (OSError, UnicodeDecodeError) as error:
        raise HarchError("E0903", f"{path} cannot be read: {error}", hint="fix or remove the file") from error
    return parse_jurisdictions(text, str(path))
