"""Where exactly does a jurisdiction file stop being right, and what does a word in it come to mean?"""

from __future__ import annotations

from pathlib import Path

import pytest

from harch.base.errors import HarchError, Problems
from harch.sovereignty import jurisdiction_file
from harch.sovereignty.jurisdiction_file import (
    FILE_NAME,
    jurisdictions_in_force,
    parse_jurisdictions,
    shipped_jurisdictions,
)
from harch.sovereignty.jurisdictions import (
    COUNTRIES,
    HOME,
    DeclaredPlace,
    EgressRule,
    Places,
    bare_registry,
    country_of,
)

REGISTRY = shipped_jurisdictions()
HINT = "docs/reference/tags.md describes the file and shows an example"


def problems(text: str) -> list[tuple[str, str]]:
    with pytest.raises(HarchError) as caught:
        parse_jurisdictions(text, "own.toml")
    error = caught.value
    assert (error.code, error.hint, error.meta["source"]) == ("E0903", HINT, "own.toml")
    found = [(one["where"], one["what"]) for one in error.meta["problems"]]  # type: ignore[attr-defined]
    lines = [f"{where}: {what}" for where, what in found]
    several = f"own.toml: {len(lines)} problems" + "".join(f"\n  {line}" for line in lines)
    assert error.message == (f"own.toml: {lines[0]}" if len(lines) == 1 else several)
    assert error.field == found[0][0]
    return found


def is_read(text: str) -> bool:
    try:
        parse_jurisdictions(text, "own.toml")
    except HarchError:
        return False
    return True


def framework(id: str = "x", **fields: object) -> str:
    values = {"bit": 70, "name": '"n"', "summary": '"s"', **fields}
    return f"[frameworks.{id}]\n" + "".join(f"{name} = {value}\n" for name, value in values.items())


def group(id: str = "GX", **fields: object) -> str:
    values = {"name": '"n"', "countries": '["FR"]', **fields}
    return f"[groups.{id}]\n" + "".join(f"{name} = {value}\n" for name, value in values.items())


def place(id: str = "souss", **fields: object) -> str:
    values = {"country": '"MA"', "networks": '["10.1.0.0/16"]', **fields}
    return f"[places.{id}]\n" + "".join(f"{name} = {value}\n" for name, value in values.items())


LONGEST, TOO_LONG = "x" * 512, "x" * 513


@pytest.mark.parametrize(
    ("good", "bad"),
    [
        (framework(bit=255), framework(bit=256)),
        (framework(bit=64), framework(bit=-1)),
        (framework(name=f'"{LONGEST}"'), framework(name=f'"{TOO_LONG}"')),
        (framework(name='"n"'), framework(name='""')),
        (framework(summary='"s"'), framework(summary="[]")),
        (framework("x" * 48), framework("x" * 49)),
        (framework("a-1"), framework("a--1")),
        (framework("a-1"), framework("a_1")),
        (framework(in_force="[]"), framework(in_force='"MA"')),
        (framework(in_force='["MA"]'), framework(in_force="[1]")),
        (framework(aliases=f'["{LONGEST}"]'), framework(aliases=f'["{TOO_LONG}"]')),
        (framework(aliases='["y"]'), framework(aliases='["y"]', fines=1)),
        (framework("x") + framework("y", bit=71), framework("x") + framework("y")),
        (group(), group(countries="[]")),
        (group("G1-A"), group("G1-")),
        (group("GX"), group("G")),
        (group(aliases='["GXA"]'), group(aliases='["uemoa"]')),
        (group(aliases='["GX"]'), group(aliases='["france"]')),
        (group("GX") + group("GXA"), group("GX") + group("GXA", aliases='["gx"]')),
        (group(mistaken_for='["FR"]'), group(mistaken_for='["France"]')),
        (group(), group(colour=1)),
        ('[countries]\nXK = "Kosovo"', '[countries]\nXK = ""'),
        (f'[countries]\nXK = "{LONGEST}"', f'[countries]\nXK = "{TOO_LONG}"'),
        ('[countries]\nXK = "Kosovo"', "[countries]\nXK = 1"),
        ('[countries]\nXK = "Kosovo"', '[countries]\nxk = "Kosovo"'),
        ('[countries]\nXK = "Kosovo"', '[countries]\nXKO = "Kosovo"'),
        (place("s" * 48), place("s" * 49)),
        (place("a-b_c"), place("a--b")),
        (place(), place("Souss")),
        (place(networks='["10.0.0.0/8"]'), place(networks='["10.0.0.0/7"]')),
        (place(networks='["2000::/16"]'), place(networks='["2000::/15"]')),
        (place(networks='["2000::/16"]'), place(networks='["::/16"]')),
        (place(networks='["10.1.0.7"]'), place(networks='["224.0.0.0/8"]')),
        (place(networks='["10.1.0.7"]'), place(networks='["ff00::/16"]')),
        (place(networks='["10.1.0.7"]'), place(networks='["::1"]')),
        (place(networks='["10.1.0.7"]'), place(networks='["0.0.0.0/8"]')),
        (place(names='["a.example"]'), place(names='["a.localhost"]')),
        (place(names='["alocalhost"]'), place(names='["localhost"]')),
        (place(names='["*.a.example"]'), place(names='["*.*.example"]')),
        (place(names='["a.example"]'), place(names='["10.1.0.5"]')),
        (place(), place(country='""')),
        (place() + place("other"), place() + place("other", country='"SN"')),
        (
            place(names='["a.example"]') + place("other", networks='["10.2.0.0/16"]'),
            place(names='["a.example"]')
            + place("other", country='"SN"', networks='["10.2.0.0/16"]', names='["a.example"]'),
        ),
    ],
)
def test_a_limit_is_where_it_is(good: str, bad: str) -> None:
    assert is_read(good)
    assert not is_read(bad)


def test_the_text_itself_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jurisdiction_file, "FILE_CHARS_MAX", 1024)
    assert is_read("#" * 1024)
    with pytest.raises(HarchError) as caught:
        parse_jurisdictions("#" * 1025, "own.toml")
    assert (caught.value.message, caught.value.hint) == ("own.toml: larger than 1 KiB", HINT)
    with pytest.raises(HarchError) as caught:
        parse_jurisdictions("x = [", "own.toml")
    assert caught.value.message.startswith("own.toml: not valid TOML: ")


def test_entries_networks_and_names_are_limited_in_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jurisdiction_file, "ENTRIES_MAX", 2)
    two, three = '["10.1.0.0/16", "10.2.0.0/16"]', '["10.1.0.0/16", "10.2.0.0/16", "10.3.0.0/16"]'
    assert is_read(place(networks=two, names='["a", "b"]'))
    assert problems(place(networks=three)) == [("places.souss.networks", "has 3 entries, the limit is 2")]
    assert problems(place(names='["a", "b", "c"]')) == [("places.souss.names", "has 3 entries, the limit is 2")]
    assert is_read(place() + place("b"))
    assert problems(place() + place("b") + place("c")) == [("places", "has 3 entries, the limit is 2")]


def test_a_bit_belongs_to_one_framework_for_ever_the_first_bit_too() -> None:
    first = min(REGISTRY.frameworks.values(), key=lambda law: law.bit)
    assert first.bit == 0
    assert problems(framework(first.id, bit=70)) == [
        (f"frameworks.{first.id}.bit", "was 0 and must not change; write `bit = 0`")
    ]
    assert problems(framework("gdpr", bit=0)) == [("frameworks.gdpr.bit", "was 3 and must not change; write `bit = 3`")]
    assert problems(framework("x", bit=0)) == [("frameworks.x.bit", f"0 belongs to {first.id}; use another one")]
    assert is_read(framework("gdpr", bit=3, name='"anew"'))
    wrong = problems(framework("x", bit='"a"') + framework("y", bit='"b"'))
    assert [where for where, _ in wrong] == ["frameworks.x.bit", "frameworks.y.bit"]


def test_what_is_wrong_is_reported_in_exact_words() -> None:
    assert problems("zones = 1") == [("zones", "unknown key; use countries, frameworks, groups or places")]
    assert problems("countries = 1") == [
        ("countries", 'must be a table; write e.g. `XK = "Kosovo"` under `[countries]`')
    ]
    assert problems("groups = 1") == [("groups", "must hold named tables; write e.g. `[groups.NAME]`")]
    assert problems("[groups]\nGX = 1") == [("groups", "must hold named tables; write e.g. `[groups.NAME]`")]
    assert problems('[countries]\nMA = "x"') == [
        ("countries.MA", "is Morocco in ISO 3166-1; remove it or use another code")
    ]
    assert problems(group("FRANCE")) == [("groups.FRANCE", "`FRANCE` already means a country; rename")]
    assert problems(group(aliases='["eu"]')) == [("groups.GX", "`EU` already means the group EU; rename")]
    assert problems(group(mistaken_for='["Q"]')) == [("groups.GX.mistaken_for", "`Q` is not a country code; remove it")]
    assert problems(place(country='"Morocco"')) == [
        ("places.souss.country", "`Morocco` is not a country; use a code such as MA")
    ]
    assert problems(place() + place("z", country='"SN"')) == [
        ("places.z", "`10.1.0.0/16` is in MA as souss, too; remove it from one of them")
    ]
    assert problems(framework(aliases='["GDPR"]')) == [("frameworks.x", "`gdpr` already names gdpr; rename it")]


def test_an_entry_of_ones_own_is_read_with_all_its_fields_and_replaces_the_shipped_one() -> None:
    registry = parse_jurisdictions(
        group(aliases='["Gx2"]', mistaken_for='["FR"]', countries='["senegal", "MA"]')
        + framework("gdpr", bit=3, in_force='["GX"]', aliases='["Dsgvo"]')
        + place(names='["Broker.example", "*.valves.example"]')
        + '[countries]\nXK = "Kosovo"\n',
        "own.toml",
    )
    own = registry.groups["GX"]
    assert (own.id, own.name, own.countries, own.aliases, own.mistaken_for) == (
        "GX",
        "n",
        ("MA", "SN"),
        ("Gx2",),
        ("FR",),
    )
    law = registry.frameworks["gdpr"]
    assert (law.bit, law.name, law.summary, law.in_force, law.aliases) == (3, "n", "s", ("MA", "SN"), ("Dsgvo",))
    assert registry.frameworks_in("FR") == ()
    assert registry.framework(" dsgvo ") == "gdpr"
    assert registry.places.entries == (
        DeclaredPlace(
            id="souss",
            country="MA",
            networks=("10.1.0.0/16",),
            names=("broker.example", "*.valves.example"),
        ),
    )
    assert registry.countries["XK"] == "Kosovo"
    assert len(registry.countries) == len(COUNTRIES) + 1
    assert set(registry.groups) == {*REGISTRY.groups, "GX"}


def test_a_file_builds_on_the_registry_that_it_is_given() -> None:
    bare = parse_jurisdictions(group(), "own.toml", base=bare_registry())
    assert (set(bare.groups), bare.frameworks) == ({"GX"}, {})
    more = parse_jurisdictions(
        place("b", networks='["10.9.0.0/16"]'), "own.toml", base=parse_jurisdictions(place(), "x")
    )
    assert [one.id for one in more.places.entries] == ["souss", "b"]
    assert parse_jurisdictions("", "own.toml").groups == REGISTRY.groups


def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARCH_HOME", str(tmp_path))
    (tmp_path / FILE_NAME).write_bytes(b"\xff\xfe")
    jurisdictions_in_force.cache_clear()
    try:
        with pytest.raises(HarchError) as refused:
            jurisdictions_in_force()
    finally:
        jurisdictions_in_force.cache_clear()
    assert (refused.value.code, refused.value.hint) == ("E0903", "fix or remove the file")


# Words


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("Moroco", "use `MA` for Morocco"),
        ("Togoo", "use `TG` for Togo"),
        ("tog", "use an ISO 3166-1 alpha-2 code such as `MA`, `SN` or `CI`"),
        ("chax", "use `TD` for Chad"),
        ("cha", "use an ISO 3166-1 alpha-2 code such as `MA`, `SN` or `CI`"),
        ("qqqqqq", "use an ISO 3166-1 alpha-2 code such as `MA`, `SN` or `CI`"),
    ],
)
def test_a_name_is_suggested_for_what_is_long_enough_to_be_one(word: str, hint: str) -> None:
    with pytest.raises(HarchError) as caught:
        country_of(word)
    assert caught.value.hint == hint


def test_what_is_not_understood_is_reported_by_its_place_in_the_list_and_the_rest_is_read() -> None:
    reported = Problems()
    assert REGISTRY.expand(["MA", "xx", "UEMOA", "yy"], "tag.rest_in", reported)[:3] == ("BF", "BJ", "CI")
    assert [where for where, _ in reported.found] == ["tag.rest_in[1]", "tag.rest_in[3]"]


PLACES = Places(
    (
        DeclaredPlace(id="wide", country="MA", networks=("10.0.0.0/8",), names=("*.example", "a.b.example")),
        DeclaredPlace(id="narrow", country="SN", networks=("10.1.0.0/16",), names=("*.b.example", "b")),
        DeclaredPlace(id="one", country="CI", networks=("10.1.1.1/32", "2001:db8::/32")),
    )
)


@pytest.mark.parametrize(
    ("host", "country"),
    [
        ("10.9.9.9", "MA"),
        ("10.1.9.9", "SN"),
        ("10.1.1.1", "CI"),
        ("10.1.1.2", "SN"),
        ("2001:db8::1", "CI"),
        ("11.0.0.1", None),
        ("127.0.0.1", HOME),
        ("localhost", HOME),
        ("a.b.example", "MA"),  # by its own name
        ("c.b.example", "SN"),  # by the nearest domain
        ("b.example", "MA"),
        ("example", None),
        ("b", "SN"),
        ("x.b", None),
        ("x.localhost", None),
    ],
)
def test_the_narrowest_network_and_the_nearest_name_say_where_a_host_stands(host: str, country: str | None) -> None:
    assert PLACES.of_host(host) == country


@pytest.mark.parametrize(
    ("rule", "address", "refusal"),
    [
        (EgressRule("MA", PLACES), "10.9.9.9", ""),
        (EgressRule("MA", PLACES), "10.1.9.9", "10.1.9.9 is in SN, and in MA was verified"),
        (EgressRule("MA", PLACES), "127.0.0.1", "127.0.0.1 is this machine, and in MA was verified"),
        (EgressRule("MA", PLACES), "11.0.0.1", "11.0.0.1 is not in a declared place"),
        (EgressRule("MA", PLACES), "a.b.example", "a.b.example is not in a declared place"),
        (EgressRule(), "127.0.0.1", ""),
        (EgressRule(HOME, PLACES), "10.9.9.9", "10.9.9.9 is in MA, and this machine was verified"),
    ],
)
def test_a_connection_leads_only_where_it_was_verified(rule: EgressRule, address: str, refusal: str) -> None:
    assert rule.refusal(address) == refusal
