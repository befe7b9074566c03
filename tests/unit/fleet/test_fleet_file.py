"""Does a fleet file become the fleet it describes, and does every mistake in it get its path and its fix?"""

from __future__ import annotations

from pathlib import Path

import pytest

from harch.base.errors import HarchError
from harch.fleet.file import load_fleet, parse_fleet
from harch.fleet.format import FILE_BYTES_MAX
from harch.fleet.model import Provenance
from harch.testing.samples import TINY_FLEET_TOML, tiny_fleet


def problems_of(text: str) -> dict[str, str]:
    """Path -> what, of a file that must be refused for its content."""
    with pytest.raises(HarchError) as caught:
        parse_fleet(text, "my.toml")
    assert caught.value.code == "E0205"
    assert "my.toml" in caught.value.message
    found = caught.value.meta["problems"]
    assert isinstance(found, list)
    for problem in found:
        assert f"{problem['where']}: {problem['what']}" in caught.value.message
    assert caught.value.field == found[0]["where"]
    return {problem["where"]: problem["what"] for problem in found}


def edited(old: str, new: str) -> str:
    """The tiny fleet with the first `old` replaced."""
    assert old in TINY_FLEET_TOML
    return TINY_FLEET_TOML.replace(old, new, 1)


def test_ids_follow_hub_rack_node_and_gpu() -> None:
    dakhla = tiny_fleet().hubs[0]
    assert dakhla.id == "dakhla"
    assert [rack.id for rack in dakhla.racks] == ["dakhla-r01", "dakhla-r02", "dakhla-r03"]
    assert [node.id for node in dakhla.racks[1].nodes] == ["dakhla-r02-n01", "dakhla-r02-n02"]
    assert dakhla.racks[1].nodes[1].gpus[5].id == "dakhla-r02-n02-g5"
    assert dakhla.racks[0].cooling_zone == dakhla.cooling_zones[0].id == "dakhla-hall-1"
    assert {node.rack_id for node in dakhla.racks[2].nodes} == {"dakhla-r03"}


def test_gpus_know_their_island_switch_and_numa_node() -> None:
    a100 = tiny_fleet().hubs[0].racks[2].nodes[0]
    assert [(gpu.island, gpu.pcie_switch, gpu.numa) for gpu in a100.gpus] == [(0, 0, 0)] * 2 + [(1, 1, 1)] * 2
    cards = tiny_fleet().hubs[1].racks[0].nodes[1]
    assert [gpu.island for gpu in cards.gpus] == [0, 1, 2, 3, 4, 5]  # no NVLink: each alone
    assert [gpu.pcie_switch for gpu in cards.gpus] == [0, 0, 0, 1, 1, 1]


def test_everything_in_a_file_is_modelled() -> None:
    fleet = tiny_fleet()
    assert {node.provenance for hub in fleet.hubs for node in hub.nodes} == {Provenance.MODELLED}


def test_counts_default_to_one_and_host_power_to_none() -> None:
    fleet = parse_fleet(TINY_FLEET_TOML.replace("host_power_w = 1000\n", ""))
    assert [len(node.gpus) for node in fleet.hubs[1].nodes] == [8, 6]
    assert fleet.hubs[1].nodes[1].power_w_max == 6 * 300


def test_links_are_optional() -> None:
    fleet = parse_fleet(TINY_FLEET_TOML.partition("[[links]]")[0])
    assert fleet.links == ()


# What is changed in the tiny fleet, where the problem must be seen, and a part of what must be said.
MISTAKES = [
    ("pue = 1.2", "", "hubs[0].pue", "add e.g. `pue = 1.2`"),
    ("pue = 1.2", "pue = 0.9", "hubs[0].pue", "use 1 to 5"),
    ("pue = 1.2", "pue = nan", "hubs[0].pue", "nan is out of range"),
    ("pue = 1.2", "pue = inf", "hubs[0].pue", "inf is out of range"),
    ("pue = 1.2", 'pue = "low"', "hubs[0].pue", 'must be a number, is the text "low"'),
    ("pue = 1.2", "pue = true", "hubs[0].pue", "must be a number, is true"),
    ("pue = 1.2", "pue = 2026-01-01", "hubs[0].pue", "a date or time"),
    ("pue = 1.2", "pue = 1.2\npeu = 2", "hubs[0].peu", "did you mean `pue`?"),
    ("latitude = 23.7158", "latitude = 91", "hubs[0].latitude", "use -90 to 90"),
    ("longitude = -15.9369", "longitude = -181", "hubs[0].longitude", "use -180 to 180"),
    ('country = "MA"', 'country = "ma"', "hubs[0].country", 'write "MA"'),
    ('country = "MA"', 'country = "MAR"', "hubs[0].country", "two capital letters"),
    ('grid_zone = "MA"', "grid_zone = 7", "hubs[0].grid_zone", "must be a text, is 7"),
    ('name = "Dakhla"', 'name = "Dakhla One"', "hubs[0].name", "letters, digits and inner dashes"),
    ('name = "Dakhla"', 'name = "dakar"', "hubs[1].name", "already used by hubs[0]"),
    ("gpus = 8", "gpus = 0", "node_kinds.h100-8.gpus", "use 1 to 72"),
    ("gpus = 8", "gpus = -8", "node_kinds.h100-8.gpus", "-8 is out of range"),
    ("gpus = 8", "gpus = 8.0", "node_kinds.h100-8.gpus", "must be a whole number, is 8.0"),
    ("gpus = 8", "gpus = 0x" + "f" * 5000, "node_kinds.h100-8.gpus", "more than 18 digits"),
    ("gpus = 8", "gpus = 6", "node_kinds.h100-8.nvlink_island_size", "use 6 or less"),
    ("pcie_switch_size = 2", "pcie_switch_size = 16", "node_kinds.h100-8.pcie_switch_size", "use 8 or less"),
    ("nvlink_gb_per_s = 900", "nvlink_gb_per_s = 0", "node_kinds.h100-8.nvlink_island_size", "has no NVLink"),
    ('gpu_model = "h100-80gb"', 'gpu_model = "h100"', "node_kinds.h100-8.gpu_model", "did you mean `h100-80gb`?"),
    ("[node_kinds.h100-8]", "[node_kinds.H100]", "node_kinds.H100", "lower-case letters"),
    ('kind = "h100-8"', 'kind = "h100-9"', "hubs[0].racks[0].nodes[0].kind", "did you mean `h100-8`?"),
    ('kind = "inference-6"', 'kind = "zzz"', "hubs[1].racks[0].nodes[1].kind", "known: h100-8, a100-4, inference-6"),
    ('{ kind = "inference-6" }', "{ count = 1 }", "hubs[1].racks[0].nodes[1].kind", "is missing"),
    ('{ kind = "inference-6" }', "7", "hubs[1].racks[0].nodes", "must be an array of tables"),
    ('nodes = [{ kind = "h100-8", count = 2 }]', "nodes = []", "hubs[0].racks[0].nodes", "add at least one"),
    ("count = 2", "count = 0", "hubs[0].racks[0].count", "use 1 to 100,000"),
    ('cooling_zone = "hall-1"', 'cooling_zone = "hal-1"', "hubs[0].racks[0].cooling_zone", "did you mean `hall-1`?"),
    ("power_kw_max = 24", "power_kw_max = 20", "hubs[0].racks[0].power_kw_max", "raise it to 21"),
    ("heat_kw_max = 60", "heat_kw_max = 46", "hubs[0].cooling_zones[0].heat_kw_max", "raise it to 47"),
    ("heat_kw_max = 60", "heat_kw_max = 0", "hubs[0].cooling_zones[0].heat_kw_max", "0 is out of range"),
    ('["Dakhla", "Dakar"]', '["Dakhla", "Daker"]', "links[0].between[1]", "did you mean `Dakar`?"),
    ('["Dakhla", "Dakar"]', '["Dakhla", "dakar"]', "links[0].between[1]", "did you mean `Dakar`?"),
    ('["Dakhla", "Dakar"]', '["Dakhla", "Dakhla"]', "links[0].between", "to itself"),
    ('["Dakhla", "Dakar"]', '["Dakhla"]', "links[0].between", "array of 2 texts"),
    ('["Dakhla", "Dakar"]', '["Dakhla", 3]', "links[0].between[1]", "must be a text, is 3"),
    ('["MA", "MR", "SN"]', '["MA", "MR"]', "links[0].countries_crossed", 'lacks "SN", where Dakar stands'),
    ('["MA", "MR", "SN"]', '["MA", "SN", "MA"]', "links[0].countries_crossed", 'names "MA" twice'),
    ('["MA", "MR", "SN"]', '["MA", "mr", "SN"]', "links[0].countries_crossed[1]", 'write "MR"'),
    ("rtt_ms = 14", "rtt_ms = 0", "links[0].rtt_ms", "0 is out of range"),
    ("rtt_ms = 14", "rtt_ms = 5", "links[0].rtt_ms", "faster than light"),
    ("bandwidth_gbps = 200", "bandwidth_gbps = -1", "links[0].bandwidth_gbps", "-1 is out of range"),
    ('name = "tiny"', 'name = "tiny"\nlink = 1', "link", "did you mean `links`?"),
    ('name = "tiny"', 'name = "Tiny Fleet"', "name", "lower-case letters"),
]


@pytest.mark.parametrize(("old", "new", "where", "what"), MISTAKES)
def test_a_mistake_is_named_with_its_path_and_fix(old: str, new: str, where: str, what: str) -> None:
    found = problems_of(edited(old, new))
    assert what in found[where]


def test_one_mistake_is_told_once_and_not_again_for_what_follows_from_it() -> None:
    for old, new in (
        ("pue = 1.2", ""),
        ('country = "MA"', ""),
        ("power_w = 700", "power_w = -1"),
        ("gpus = 8", "gpus = 0"),
    ):
        assert len(problems_of(edited(old, new))) == 1
    assert len(problems_of(edited('["MA", "MR", "SN"]', '["MA", "MR", "sn"]'))) == 1
    assert len(problems_of(edited("rtt_ms = 14", "rtt_ms = nan"))) == 1


def test_all_mistakes_are_told_at_once() -> None:
    text = edited("pue = 1.2", "pue = 0.5").replace("gpus = 6", "gpus = 600").replace('"Dakar"]', '"Dakor"]')
    assert list(problems_of(text)) == ["node_kinds.inference-6.gpus", "hubs[0].pue", "links[0].between[1]"]


def test_no_more_than_twenty_problems_are_told() -> None:
    text = TINY_FLEET_TOML + "".join(f"key_{number} = 1\n" for number in range(5000))
    with pytest.raises(HarchError, match="the first 20 problems"):
        parse_fleet(text)


def test_an_empty_file_says_what_to_begin_with() -> None:
    assert set(problems_of("")) == {"name", "gpu_models", "node_kinds", "hubs"}


def test_a_fleet_needs_a_hub() -> None:
    head = TINY_FLEET_TOML.partition("[[hubs]]")[0]
    assert "is empty" in problems_of(f"hubs = []\n{head}")["hubs"]


def test_hubs_are_limited_to_64() -> None:
    head, _, rest = TINY_FLEET_TOML.partition("[[hubs]]")
    hub = "[[hubs]]" + rest.partition("[[hubs]]")[0]
    many = "".join(hub.replace("Dakhla", f"Hub-{number}") for number in range(65))
    assert problems_of(head + many) == {
        "hubs": "has 65 entries, the limit is 64; split the fleet or remove some",
    }


def test_gpus_are_limited_before_they_are_built() -> None:
    text = edited("count = 2", "count = 100000").replace("heat_kw_max = 60", "heat_kw_max = 999999")
    found = problems_of(text.replace("power_kw_max = 24", "power_kw_max = 9999"))
    assert "the limit is 100,000" in found["hubs"]


def test_two_hubs_have_one_link_whatever_the_direction() -> None:
    link = TINY_FLEET_TOML[TINY_FLEET_TOML.index("[[links]]") :]
    found = problems_of(TINY_FLEET_TOML + link.replace('"Dakhla", "Dakar"', '"Dakar", "Dakhla"'))
    assert "already used by links[0]" in found["links[1].between"]


def test_cooling_zones_of_a_hub_have_different_names() -> None:
    zone = '[[hubs.cooling_zones]]\nname = "hall-1"\nheat_kw_max = 60\n'
    assert "already used" in problems_of(edited(zone, zone + zone))["hubs[0].cooling_zones[1].name"]


@pytest.mark.parametrize(
    ("text", "line", "column", "what"),
    [
        ('name = "tiny"\nx = [', 2, 6, "Invalid value"),
        ("name = 'a'\nname = 'b'\n", 2, 11, "Cannot overwrite a value"),
        ("a = 1\nb = 1 1\n", 2, 7, "Expected newline or end of document after a statement"),
        ("a = 1\nb = " + "1" * 5000, 2, 5, "too many digits"),
        ("a = " + "[" * 100_000, 1, 1, "nested too deeply"),
        ("a = 'é'\nb = '\ud800'", 2, 6, "not UTF-8"),
    ],
)
def test_a_syntax_error_has_line_and_column(text: str, line: int, column: int, what: str) -> None:
    with pytest.raises(HarchError) as caught:
        parse_fleet(text, "my.toml")
    assert caught.value.code == "E0205"
    assert caught.value.message.startswith(f"my.toml, line {line}, column {column}: ")
    assert what in caught.value.message
    assert caught.value.hint


def test_a_file_is_loaded_from_its_path(tmp_path: Path) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text(TINY_FLEET_TOML, "utf-8")
    assert load_fleet(path) == load_fleet(str(path)) == tiny_fleet()


def test_errors_of_a_file_name_it(tmp_path: Path) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text(edited("pue = 1.2", "pue = 0"), "utf-8")
    with pytest.raises(HarchError, match=r"fleet\.toml: hubs\[0\]\.pue"):
        load_fleet(path)


@pytest.mark.parametrize("name", ["missing.toml", ".", "a\0b"])
def test_a_file_that_cannot_be_read_is_refused_with_a_way_out(tmp_path: Path, name: str) -> None:
    with pytest.raises(HarchError, match="cannot be read") as caught:
        load_fleet(tmp_path / name)
    assert caught.value.code == "E0205"
    assert "five-hubs" in caught.value.hint


def test_a_file_above_the_limit_is_refused_unparsed(tmp_path: Path) -> None:
    path = tmp_path / "fleet.toml"
    path.write_bytes(b"#" * (FILE_BYTES_MAX + 1))
    with pytest.raises(HarchError, match="larger than 4 MiB"):
        load_fleet(path)
