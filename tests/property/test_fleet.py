"""Does every fleet survive being written and read, and does no file, however broken, break the reader?"""

from __future__ import annotations

import math
from datetime import date

from hypothesis import given, settings
from hypothesis import strategies as st

from harch.base.errors import HarchError
from harch.fleet.blueprint import FleetBlueprint, HubBlueprint, NodeKind, RackGroup, expand
from harch.fleet.file import parse_blueprint, parse_fleet
from harch.fleet.format import FORMAT, QUOTED_CHARS_MAX
from harch.fleet.model import CoolingZone, GpuModel
from harch.testing.fleet_generator import generate_blueprint
from harch.testing.fleet_writer import to_toml
from harch.testing.samples import TINY_FLEET_TOML

LINES = TINY_FLEET_TOML.splitlines()
KEYS = sorted({key.name for keys in FORMAT.values() for key in keys})
labels = st.from_regex(r"[a-z][a-z0-9]{0,8}([.-][a-z0-9]{1,4})?", fullmatch=True)
NUMBERS = ("0", "-1", "1e400", "nan", "inf", "-inf", "1.5", "9" * 30, "0x" + "f" * 30)
TEXTS = ('""', '"MA"', '"ma"', '"h100-8"', '"Dakhla"', '"\\u0000"', '"é"')
OTHERS = ("true", "2026-01-01", "07:00:00", "[]", "{}", "[[]]", "[{}]", "[1]", '["Dakhla"]', "{a=1}", "[{kind=1}]")
VALUES = NUMBERS + TEXTS + OTHERS


def refused_or_read(text: str) -> None:
    """The one property of reading: a fleet, or E0205 with something to act on."""
    refusal: HarchError | None = None
    try:
        assert parse_fleet(text, "some.toml").gpu_count > 0
    except HarchError as error:
        refusal = error
    if refusal is not None:
        assert refusal.code == "E0205"
        assert "some.toml" in refusal.message
        assert refusal.hint
        assert all(len(line) < 6 * QUOTED_CHARS_MAX for line in refusal.message.splitlines())


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 64), st.integers(0, 4_000), st.integers(0, 2**32))
def test_generated_fleets_have_the_size_asked_for_and_can_be_read_again(hubs: int, more: int, seed: int) -> None:
    blueprint = generate_blueprint(hub_count=hubs, gpu_count=8 * hubs + more, seed=seed)
    assert len(blueprint.hubs) == hubs
    assert blueprint.gpu_count == 8 * hubs + more
    assert parse_blueprint(to_toml(blueprint)) == blueprint


@st.composite
def blueprints(draw: st.DrawFn) -> FleetBlueprint:
    """One hub with whatever hardware the format allows, and limits that just hold it."""
    names = draw(st.lists(labels, min_size=1, max_size=3, unique=True))
    models = [
        GpuModel(name, draw(st.integers(1, 500)), draw(st.integers(1, 2_000)), draw(st.integers(1, 5_000)), 64)
        for name in names
    ]
    kinds = []
    for name in draw(st.lists(labels, min_size=1, max_size=3, unique=True)):
        gpus = draw(st.integers(1, 72))
        sizes = st.integers(1, gpus)
        model = draw(st.sampled_from(models))
        kinds.append(NodeKind(name, model, gpus, draw(sizes), draw(sizes), draw(st.integers(1, 8)), 8, 64, 100))
    groups = []
    for _ in range(draw(st.integers(1, 3))):
        nodes = draw(st.lists(st.tuples(st.sampled_from(kinds), st.integers(1, 3)), min_size=1, max_size=3))
        need_kw = sum(kind.power_w_max * count for kind, count in nodes) / 1000
        groups.append(RackGroup(draw(st.integers(1, 3)), "A", "z", max(0.1, need_kw), tuple(nodes)))
    heat_kw = sum(group.count * group.power_kw_per_rack for group in groups)
    place = draw(st.floats(-90, 90)), draw(st.floats(-180, 180)), draw(st.floats(1, 5))
    zones = (CoolingZone("z", max(0.1, heat_kw)),)
    hub = HubBlueprint("Here", "MA", "MA", *place, cooling_zones=zones, racks=tuple(groups))
    return FleetBlueprint("any", tuple(models), tuple(kinds), (hub,), ())


@settings(max_examples=60, deadline=None)
@given(blueprints())
def test_any_fleet_can_be_written_and_read_again(blueprint: FleetBlueprint) -> None:
    assert parse_blueprint(to_toml(blueprint)) == blueprint


@settings(max_examples=60, deadline=None)
@given(blueprints())
def test_expansion_keeps_count_power_and_distinct_ids(blueprint: FleetBlueprint) -> None:
    hub = expand(blueprint).hubs[0]
    gpus = [gpu for node in hub.nodes for gpu in node.gpus]
    assert len({gpu.id for gpu in gpus}) == len(gpus) == blueprint.gpu_count
    assert all(rack.power_kw_max * 1000 + 0.01 >= sum(node.power_w_max for node in rack.nodes) for rack in hub.racks)
    assert math.isclose(
        sum(node.power_w_max for node in hub.nodes) / 1000,
        sum(group.count * group.power_kw_per_rack for group in blueprint.hubs[0].racks),
    )
    for node in hub.nodes:
        # Neighbourhoods are numbered without gaps, in the order of the devices.
        for numbers in ([gpu.island for gpu in node.gpus], [gpu.pcie_switch for gpu in node.gpus]):
            assert sorted(set(numbers)) == list(range(max(numbers) + 1))
            assert numbers == sorted(numbers)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, len(LINES) - 1), st.sampled_from(VALUES)), min_size=1, max_size=4))
def test_a_wrong_value_anywhere_is_refused_for_people(edits: list[tuple[int, str]]) -> None:
    lines = list(LINES)
    for index, value in edits:
        key, equals, _ = lines[index].partition(" = ")
        lines[index] = f"{key}{equals}{value}" if equals else lines[index]
    refused_or_read("\n".join(lines))


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_lines_dropped_doubled_or_moved_are_refused_for_people(data: st.DataObject) -> None:
    lines = list(LINES)
    for _ in range(data.draw(st.integers(1, 4))):
        line = lines.pop(data.draw(st.integers(0, len(lines) - 1)))
        for _ in range(data.draw(st.integers(0, 2))):
            lines.insert(data.draw(st.integers(0, len(lines))), line)
    refused_or_read("\n".join(lines))


@settings(max_examples=150, deadline=None)
@given(st.integers(0, len(TINY_FLEET_TOML)), st.integers(0, 40), st.text(max_size=20))
def test_text_cut_or_typed_anywhere_is_refused_for_people(start: int, length: int, typed: str) -> None:
    refused_or_read(TINY_FLEET_TOML[:start] + typed + TINY_FLEET_TOML[start + length :])


scalars = st.one_of(st.integers(), st.floats(), st.booleans(), st.text(max_size=8), st.just(date(2026, 1, 1)))


def as_toml(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {as_toml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(as_toml(item) for item in value) + "]"
    if isinstance(value, str):
        return '"' + "".join(f"\\U{ord(char):08x}" for char in value) + '"'
    return str(value).lower() if isinstance(value, bool) else str(value)


@settings(max_examples=150, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from([key.name for key in FORMAT[""]]),
        st.recursive(
            scalars,
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=6),
            max_leaves=20,
        ),
    )
)
def test_any_document_with_the_right_words_is_refused_for_people(document: dict[str, object]) -> None:
    refused_or_read("\n".join(f"{key} = {as_toml(value)}" for key, value in document.items()))
