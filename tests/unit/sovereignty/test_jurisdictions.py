"""Is the registry right, can it be extended, and does a bad file say what to mend?"""

from __future__ import annotations

import pytest

from harch.base.errors import HarchError, Problems
from harch.sovereignty.jurisdiction_file import parse_jurisdictions, shipped_jurisdictions
from harch.sovereignty.jurisdictions import COUNTRIES, country_bit, country_mask

REGISTRY = shipped_jurisdictions()
OWN = """
[countries]
XK = "Kosovo"
[groups.MAGHREB]
name = "Maghreb"
countries = ["MA", "DZ", "TN", "LY", "MR"]
[frameworks.house-rules]
bit = 64
name = "House rules"
in_force = ["MAGHREB", "XK"]
summary = "What we promised our customers."
"""


def expand(*words: str) -> tuple[tuple[str, ...], str]:
    problems = Problems()
    return REGISTRY.expand(words, "tag.process_in", problems), str(problems)


def test_the_shipped_groups_have_their_members() -> None:
    sizes = {id: len(group.countries) for id, group in REGISTRY.groups.items()}
    assert sizes == {"UEMOA": 8, "ECOWAS": 12, "AFRICAN-UNION": 55, "EU": 27}


@pytest.mark.parametrize(
    ("country", "laws"),
    [
        ("MA", ("ma-law-09-08",)),
        ("SN", ("malabo-convention", "sn-law-2008-12")),
        ("CI", ("ci-law-2013-450", "malabo-convention")),
        ("FR", ("gdpr",)),
        ("US", ()),
    ],
)
def test_each_country_has_its_frameworks(country: str, laws: tuple[str, ...]) -> None:
    assert REGISTRY.frameworks_in(country) == laws


def test_groups_expand_to_countries_under_any_of_their_names() -> None:
    assert expand("CEDEAO") == expand("ecowas")
    assert expand("UEMOA", "morocco")[0] == ("BF", "BJ", "CI", "GW", "MA", "ML", "NE", "SN", "TG")
    assert expand("WORLD")[0] == tuple(sorted(COUNTRIES))


@pytest.mark.parametrize("words", [("AU",), ("AU", "SN"), ("AU", "UEMOA")])
def test_australia_is_not_taken_for_the_african_union(words: tuple[str, ...]) -> None:
    _, problems = expand(*words)
    assert "write `AFRICAN-UNION` for the African Union, or `australia`" in problems


@pytest.mark.parametrize("words", [("australia",), ("AU", "NZ"), ("WORLD", "AU")])
def test_australia_can_be_said(words: tuple[str, ...]) -> None:
    found, problems = expand(*words)
    assert "AU" in found
    assert problems == ""


def test_no_two_countries_share_a_bit_and_no_two_frameworks_do() -> None:
    assert len({country_bit(code) for code in COUNTRIES}) == len(COUNTRIES)
    assert country_mask(["MA", "SN"]) == 1 << country_bit("MA") | 1 << country_bit("SN")
    assert REGISTRY.framework_mask(REGISTRY.frameworks) == 0b11111
    assert (country_bit("AA"), country_bit("MA"), country_bit("ZZ")) == (0, 312, 675)  # forever


def test_a_file_of_ones_own_adds_to_the_registry() -> None:
    registry = parse_jurisdictions(OWN, "own.toml")
    assert registry.frameworks_in("XK") == ("house-rules",)
    assert registry.frameworks_in("MA") == ("house-rules", "ma-law-09-08")
    assert registry.framework_mask(["House-Rules"]) == 1 << 64
    assert registry.country("XK") == "XK"
    assert "XK" not in REGISTRY.countries


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("countries = ", "not valid TOML"),
        ("zones = {}", "zones: unknown key"),
        ("groups = 3", "groups: must hold named tables"),
        ('[groups.AU]\nname = "x"\ncountries = ["SN"]', "`AU` already means a country"),
        ('[groups.FRANCE]\nname = "x"\ncountries = ["FR"]', "`FRANCE` already means a country"),
        ('[groups.world]\nname = "x"\ncountries = ["FR"]', "is not a group name"),
        ('[groups.WORLD]\nname = "x"\ncountries = ["FR"]', "already means the group of all countries"),
        ('[groups.GX]\nname = "x"\ncountries = ["UEMOA"]', "groups.GX.countries[0]: `UEMOA` is not a country"),
        ('[groups.GX]\nname = "x"\ncountries = []', "groups.GX.countries: must be a list"),
        ('[groups.GX]\nname = 1\ncountries = ["FR"]', "groups.GX.name: must be a string"),
        ('[groups.GX]\nname = "x"\ncountries = ["FR"]\nmistaken_for = ["Q"]', "`Q` is not a country code"),
        ('[countries]\nMA = "Here"', "countries.MA: is Morocco in ISO 3166-1"),
        ('[countries]\nKos = "x"', "two capital letters"),
        ("countries = 1", "countries: must be a table"),
        ('[frameworks.x]\nbit = 3\nname = "x"\nsummary = "x"', "frameworks.x.bit: 3 belongs to gdpr"),
        ('[frameworks.gdpr]\nbit = 70\nname = "x"\nsummary = "x"', "write `bit = 3`"),
        ('[frameworks.x]\nbit = true\nname = "x"\nsummary = "x"', "must be a whole number"),
        ('[frameworks.X]\nbit = 70\nname = "x"\nsummary = "x"', "is not a framework name"),
        ('[frameworks.x]\nbit = 70\nname = "x"\nsummary = "x"\naliases = ["GDPR"]', "`gdpr` already names gdpr"),
        ('[frameworks.x]\nbit = 70\nname = "x"\nsummary = "x"\nin_force = ["ZZ"]', "`ZZ` is not a country"),
        ('[frameworks.x]\nbit = 70\nname = "x"\nsummary = "x"\nfines = 1', "frameworks.x.fines: unknown key"),
        ("# " + "x" * 2**20, "larger than 1024 KiB"),
    ],
)
def test_a_bad_file_is_refused_with_its_place(text: str, says: str) -> None:
    with pytest.raises(HarchError) as caught:
        parse_jurisdictions(text, "own.toml")
    assert caught.value.code == "E0903"
    assert caught.value.message.startswith("own.toml: ")
    assert says in caught.value.message


def test_all_mistakes_of_a_file_are_told_at_once() -> None:
    with pytest.raises(HarchError) as caught:
        parse_jurisdictions('[countries]\nMA = "x"\n[frameworks.y]\nbit = 999', "own.toml")
    assert len(caught.value.meta["problems"]) == 4  # type: ignore[arg-type]


def test_an_unknown_framework_names_the_known_ones() -> None:
    with pytest.raises(HarchError, match="known: ma-law-09-08") as caught:
        REGISTRY.framework("hipaa")
    assert caught.value.code == "E0905"


SOUSS = """
[places.souss]
country = "MA"
networks = ["10.1.0.0/16", "2001:db8:1::/48"]
names = ["broker.souss.example", "*.valves.souss.example"]
[places.souss-to-dakar]
country = "SN"
networks = ["10.1.9.0/24"]
"""


@pytest.mark.parametrize(
    ("host", "country"),
    [
        ("10.1.0.5", "MA"),
        ("10.1.9.5", "SN"),  # the narrower network
        ("2001:db8:1::7", "MA"),
        ("10.2.0.5", None),
        ("127.3.2.1", ""),
        ("::1", ""),
        ("localhost", ""),
        ("broker.souss.example", "MA"),
        ("east.valves.souss.example", "MA"),
        ("valves.souss.example", None),
        ("souss.example", None),
        ("localhost.evil.example", None),
        ("0.0.0.0", None),
    ],
)
def test_a_host_stands_where_the_operator_says_and_otherwise_nowhere(host: str, country: str | None) -> None:
    assert parse_jurisdictions(SOUSS, "own.toml").places.of_host(host) == country


def test_no_places_are_shipped() -> None:
    assert REGISTRY.places.entries == ()


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        ('country = "Morocco"\nnetworks = ["10.1.0.0/16"]', "is not a country"),
        ('country = "MA"', "networks: must be a list"),
        ('country = "MA"\nnetworks = []', "networks: must be a list"),
        ('country = "MA"\nnetworks = ["10.1.0.1/16"]', "is not a network"),
        ('country = "MA"\nnetworks = ["0.0.0.0/0"]', "wider than /8"),
        ('country = "MA"\nnetworks = ["2000::/3"]', "wider than /16"),
        ('country = "MA"\nnetworks = ["127.0.0.0/8"]', "this machine"),
        ('country = "MA"\nnetworks = ["::ffff:10.1.0.0/112"]', "IPv4 within IPv6"),
        ('country = "MA"\nnetworks = ["10.1.0.0/16"]\nnames = ["127.1"]', "four decimal numbers"),
        ('country = "MA"\nnetworks = ["10.1.0.0/16"]\nnames = ["10.1.0.5"]', "write it under `networks`"),
        ('country = "MA"\nnetworks = ["10.1.0.0/16"]\nnames = ["localhost"]', "this machine"),
        ('country = "MA"\nnetworks = ["10.1.0.0/16"]\nhub = "dakhla"', "unknown key"),
        ('country = "MA"\nnetworks = ["10.1.9.0/24"]', "is in SN as other, too"),
    ],
)
def test_a_place_with_a_mistake_says_what_to_mend(entry: str, told: str) -> None:
    other = '[places.other]\ncountry = "SN"\nnetworks = ["10.1.9.0/24"]\n'
    with pytest.raises(HarchError, match="E0903") as refused:
        parse_jurisdictions(f"{other}[places.souss]\n{entry}\n", "own.toml")
    assert told in refused.value.message
