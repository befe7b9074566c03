"""Does the carbon file mean what its author thinks, and is every mistake named before anything runs?"""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from harch.base.errors import HarchError
from harch.carbon.signals.assembly import SourceContext, build_registry
from harch.carbon.signals.choice import Quality
from harch.carbon.signals.config import EMPTY, load_config, parse_config
from harch.carbon.signals.registry import SignalRegistry
from harch.carbon.values import Signal
from harch.fleet.file import shipped_fleet
from harch.testing.clock import SimClock

GUIDE = Path(__file__).parents[4] / "docs" / "guides" / "carbon.md"
FLEET = shipped_fleet("five-hubs")
ENVIRONMENT = {"ELECTRICITYMAPS_TOKEN": "one", "WATTTIME_USER": "two", "WATTTIME_PASSWORD": "three"}


def board(text: str, *, environment: dict[str, str] | None = None, folder: Path = Path()) -> SignalRegistry:
    client = httpx.AsyncClient(transport=httpx.MockTransport(lambda _request: httpx.Response(500)))
    world = SourceContext(
        client=client,
        clock=SimClock(),
        jitter=lambda: 0.0,
        environment=ENVIRONMENT if environment is None else environment,
        folder=folder,
    )
    return build_registry(parse_config(text), FLEET, world)


def order(of: SignalRegistry, hub: str, signal: Signal) -> list[str]:
    """The sources in order, as the snapshot before the first answer names them."""
    return [no.subject for no in of.now(hub).states[signal].not_used]


def test_the_example_of_the_guide_is_valid(tmp_path: Path) -> None:
    text = GUIDE.read_text("utf-8").split("```toml\n", 1)[1].split("```", 1)[0]
    example = board(text, folder=tmp_path)
    assert order(example, "dakhla", Signal.GRID_AVERAGE_LIFECYCLE)[-1] == "modelled"
    assert "meters" in order(example, "dakhla", Signal.PV_POWER)


def test_an_empty_file_models_everything() -> None:
    nothing = board("")
    assert order(nothing, "dakar", Signal.GRID_AVERAGE_LIFECYCLE) == ["modelled"]
    assert Signal.PRICE not in nothing.now("dakar").states
    assert parse_config("") == EMPTY


SOURCES = """
[sources.maps]
type = "electricity-maps"
key_env = "ELECTRICITYMAPS_TOKEN"

[sources.replay]
type = "csv"
path = "replay.csv"
time = "utc"
place = "zone"
values = { grid-average-lifecycle = { column = "ci", unit = "lbs/MWh" } }
"""


def test_sources_are_used_in_file_order_with_the_model_last() -> None:
    assert order(board(SOURCES), "dakar", Signal.GRID_AVERAGE_LIFECYCLE) == ["maps", "replay", "modelled"]


def test_an_order_of_a_hub_goes_before_its_zones_and_that_before_the_files() -> None:
    text = f"""
    {SOURCES}
    [order]
    grid-average-lifecycle = ["replay", "maps"]
    [zones.MA.order]
    grid-average-lifecycle = ["maps"]
    [hubs.dakhla.order]
    grid-average-lifecycle = ["modelled", "replay"]
    """
    ordered = board(text)
    assert order(ordered, "dakar", Signal.GRID_AVERAGE_LIFECYCLE) == ["replay", "maps", "modelled"]
    assert order(ordered, "tangier", Signal.GRID_AVERAGE_LIFECYCLE) == ["maps", "modelled"]
    assert order(ordered, "dakhla", Signal.GRID_AVERAGE_LIFECYCLE) == ["modelled", "replay"]


def test_limits_can_be_moved_for_grids_that_are_beyond_the_usual() -> None:
    config = parse_config("[limits.grid-average-lifecycle]\nhigh = 1500\nstale_after_s = 60\n")
    moved = config.limits[Signal.GRID_AVERAGE_LIFECYCLE]
    assert (moved.high, moved.stale_after_s, moved.low) == (1500.0, 60.0, 2.0)


async def test_plants_of_a_hub_are_modelled_until_a_meter_is_there() -> None:
    plants = board("[hubs.dakhla.onsite]\nwind_kw = 400\nwind_capacity_factor = 0.4\n")
    await plants.refresh("dakhla")
    state = plants.now("dakhla").states[Signal.WIND_POWER]
    assert str(state.reading).startswith("160 kW [estimated, modelled")
    assert state.quality is Quality.FIRST


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("sources = 3", "sources: must hold"),
        ("colour = 'green'", "colour: unknown key"),
        ("[sources.a]\ntype = 'oracle'", "sources.a: Invalid value 'oracle'"),
        ("[sources.a]\ntype = 'csv'\npath = 'x'", "sources.a: Object missing required field"),
        ("[sources.a]\ntype = 'manual'\nevery = 5", "sources.a: Object contains unknown field `every`"),
        ("[sources.modelled]\ntype = 'manual'", "sources.modelled: is reserved for the built-in model"),
        ("[order]\nprice = ['nobody']", "order.price: no source named `nobody`"),
        ("[order]\ncolour = []", "order: Invalid"),
        ("[order]\nprice = ['modelled']", "`modelled` does not provide `price`"),
        ("[limits.colour]\nhigh = 3", "limits.colour: not a signal"),
        ("[hubs.atlantis.onsite]\nwind_kw = 3", "hubs.atlantis: no such hub in the fleet"),
        ("[hubs.dakhla.onsite]\nclearness = 3", "hubs.dakhla: Expected `float` <= 1"),
        ("[sources.a]\ntype = 'electricity-maps'\nkey_env = 'NONE'", "environment variable NONE holds no key"),
        ("[sources.a]\ntype = 'electricity-maps'\nkey_file = 'none'", "cannot be read"),
        ("[sources.a]\ntype = 'electricity-maps'", "a: no key given"),
        (SOURCES.replace("lbs/MWh", "kW"), "sources.replay: `kW` is not a unit of"),
        (
            "[sources.a]\ntype = 'prometheus'\nurl = 'http://me:secret@host'\n"
            "queries = { pv-power = { query = 'x', unit = 'W' } }",
            "not contain user and password",
        ),
        ("[sources", "not valid TOML"),
    ],
)
def test_a_mistake_is_named_with_its_place(text: str, reason: str) -> None:
    with pytest.raises(HarchError) as failure:
        board(text)
    assert failure.value.code == "E0220"
    assert reason in failure.value.message
    assert failure.value.hint


def test_all_mistakes_are_named_at_once_and_no_password_is_quoted() -> None:
    with pytest.raises(HarchError) as failure:
        parse_config("[sources.a]\ntype = 'x'\n[hubs.b]\npue = 2\n[limits.price]\nhigh = 'x'\n")
    assert [part in failure.value.message for part in ("sources.a", "hubs.b", "limits.price")] == [True] * 3


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(HarchError, match="FileNotFoundError"):
        load_config(tmp_path / "carbon.toml")
