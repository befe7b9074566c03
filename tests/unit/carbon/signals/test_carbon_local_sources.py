"""Do tables, an operator's word and the model say what they should, at the time they should?"""

from __future__ import annotations

import gzip
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harch.base.errors import HarchError
from harch.carbon.signals.sites import OnSite, site_of
from harch.carbon.signals.source import SourceFailed
from harch.carbon.signals.sources.csv_file import CsvColumn, CsvFile
from harch.carbon.signals.sources.manual import Manual, manual_value
from harch.carbon.signals.sources.modelled import PROVIDES, modelled, shipped_facts
from harch.carbon.values import Evidence, KindsMixed, Signal
from harch.fleet.file import shipped_fleet
from harch.testing.clock import START, SimClock
from unit.carbon.signals.carbon_readings import GRID, site

HOUR = timedelta(hours=1)
TABLE = """\
utc,zone,ci_direct,ci_lifecycle
2026-01-01 00:00:00,ES,100,140.5
2026-01-01 02:00:00,ES,,150
2026-01-01 01:00:00+00:00,ES,110,inf
2026-01-01T00:00:00Z,FR,20,56
"""


def table(folder: Path, text: str = TABLE, **settings: object) -> CsvFile:
    path = folder / "replay.csv"
    path.write_text(text)
    columns = {
        Signal.GRID_AVERAGE_DIRECT: CsvColumn("ci_direct", "g/kWh"),
        Signal.GRID_AVERAGE_LIFECYCLE: CsvColumn("ci_lifecycle", "g/kWh"),
    }
    given: dict[str, object] = {"time_column": "utc", "place_column": "zone", "naive_is_utc": True}
    return CsvFile(name="replay", path=path, columns=columns, **(given | settings))  # type: ignore[arg-type]


async def test_a_table_is_replayed_row_by_row_and_shows_nothing_of_the_future(tmp_path: Path) -> None:
    clock = SimClock()
    source = table(tmp_path)
    shown = []
    for _ in range(3):
        readings = await source.fetch(site(zone="ES"), clock)
        shown.append([(reading.value.number, reading.at - START) for reading in readings])
        clock.jump(3600)
    assert shown[0] == [(100.0, 0 * HOUR), (140.5, 0 * HOUR)]
    assert shown[1][0] == (110.0, HOUR)
    assert shown[2] == [(150.0, 2 * HOUR)], "an empty cell is no value"


async def test_a_table_that_grows_is_read_again_and_may_be_gzipped(tmp_path: Path) -> None:
    clock = SimClock(START + 3 * HOUR)
    source = table(tmp_path)
    source.path = tmp_path / "replay.csv.gz"
    for text in (TABLE, TABLE + "2026-01-01 03:00:00,ES,90,130\n2026-01-01 04:0"):  # the last line is being written
        with gzip.open(source.path, "wt") as file:
            file.write(text)
        readings = await source.fetch(site(zone="ES"), clock)
    assert [reading.value.number for reading in readings] == [90.0, 130.0]


@pytest.mark.parametrize(
    ("text", "settings", "reason"),
    [
        (TABLE, {"naive_is_utc": False}, "line 2: the time has no time zone"),
        (TABLE.replace("ci_direct", "direct"), {}, "has no column ci_direct"),
        (TABLE.replace("2026-01-01T00", "yesterday"), {}, "is not a time"),
        ("", {}, "has no column"),
        ("utc,zone,ci_direct,ci_lifecycle\n", {}, "no row"),
    ],
)
async def test_a_table_that_cannot_be_used_says_why(
    tmp_path: Path, text: str, settings: dict[str, object], reason: str
) -> None:
    with pytest.raises(SourceFailed, match=reason):
        await table(tmp_path, text, **settings).fetch(site(zone="ES"), SimClock())


async def test_a_table_that_is_not_there_or_broken_is_a_failure(tmp_path: Path) -> None:
    source = table(tmp_path)
    source.path = tmp_path / "none.csv"
    with pytest.raises(SourceFailed, match="FileNotFoundError"):
        await source.fetch(site(zone="ES"), SimClock())
    source.path = tmp_path / "half.csv.gz"
    source.path.write_bytes(gzip.compress(TABLE.encode())[:60])
    with pytest.raises(SourceFailed, match="EOFError"):
        await source.fetch(site(zone="ES"), SimClock())


def word(place: str, number: float, hours: int, *, signal: Signal = Signal.PRICE, unit: str = "USD/MWh") -> object:
    return manual_value(place, signal, number, unit, set_at=START, valid_until=START + hours * HOUR, note="contract 7")


async def test_an_operators_word_holds_until_its_end_and_the_hubs_goes_before_the_zones() -> None:
    clock, source = SimClock(), Manual()
    source.set(word("MA", 95.0, 48))  # type: ignore[arg-type]
    source.set(word("dakhla", 80.0, 24))  # type: ignore[arg-type]
    (of_hub,) = await source.fetch(site("dakhla"), clock)
    (of_zone,) = await source.fetch(site("tangier"), clock)
    assert (of_hub.value.number, of_zone.value.number) == (80.0, 95.0)
    assert (of_hub.valid_until, of_hub.note) == (START + 24 * HOUR, "set 2026-01-01 00:00 UTC; contract 7")
    clock.jump(25 * 3600)
    (after,) = await source.fetch(site("dakhla"), clock)
    assert after.value.number == 95.0


async def test_a_word_that_is_taken_back_is_told_as_ended() -> None:
    clock, source = SimClock(), Manual()
    source.set(word("dakhla", 80.0, 24))  # type: ignore[arg-type]
    clock.jump(60)
    source.clear("dakhla", Signal.PRICE, now=clock.now())
    (ended,) = await source.fetch(site(), clock)
    assert ended.valid_until == clock.now()


@pytest.mark.parametrize("hours", [0, -1, 24 * 401])
def test_a_word_without_a_near_end_is_refused(hours: int) -> None:
    with pytest.raises(HarchError, match="must expire within"):
        Manual().set(word("dakhla", 80.0, hours))  # type: ignore[arg-type]


def test_a_word_in_the_wrong_unit_is_refused() -> None:
    with pytest.raises(KindsMixed):
        word("dakhla", 80.0, 1, unit="g/kWh")


def test_the_model_knows_every_country_of_the_shipped_fleets() -> None:
    for name in ("five-hubs", "twenty-hubs"):
        for hub in shipped_fleet(name).hubs:
            number, citation = shipped_facts().grid(hub.grid_zone, hub.country)
            assert 10 < number < 900
            assert "Ember" in citation
            assert "world" not in citation


def test_an_unknown_country_gets_the_mean_of_the_world_and_says_so() -> None:
    number, citation = shipped_facts().grid("XX", "XX")
    assert number == 486.0
    assert "no value for XX" in citation


@pytest.mark.parametrize(
    ("zone", "country", "expected"), [("SE-SE3", "SE", 40.7), ("ES", "MA", 174.1), ("EH", "MA", 630.0)]
)
def test_power_is_as_clean_as_the_zone_that_it_comes_from_whatever_the_jurisdiction(
    zone: str, country: str, expected: float
) -> None:
    assert shipped_facts().grid(zone, country)[0] == expected


@given(st.datetimes(min_value=START.replace(tzinfo=None), max_value=START.replace(year=2040, tzinfo=None)))
def test_the_model_is_a_function_of_time_and_site_and_stays_within_the_plates(moment: datetime) -> None:
    when = moment.replace(tzinfo=UTC)
    hub = shipped_fleet("five-hubs").hubs[0]
    place = site_of(hub, OnSite(pv_kw_peak=1000.0, wind_kw=500.0))
    first, again = (modelled().readings(place, when, received_at=when) for _ in range(2))
    assert first == again
    assert {reading.signal for reading in first} == PROVIDES
    assert {reading.evidence for reading in first} == {Evidence.ESTIMATED}
    values = {reading.signal: reading.value.number for reading in first}
    assert 0 <= values[Signal.PV_POWER] <= 1000
    assert values[Signal.WIND_POWER] == 250.0
    assert values[GRID] == 630.0


async def test_the_model_looks_96_hours_ahead_and_its_nights_are_dark() -> None:
    clock = SimClock()
    readings = await modelled().fetch(site(onsite=OnSite(pv_kw_peak=1000.0)), clock)
    ahead = [reading for reading in readings if reading.ahead and reading.signal is Signal.PV_POWER]
    assert len(ahead) == 96
    assert all(reading.value.number == 0 for reading in ahead if reading.at.hour in (22, 23, 0, 1, 2, 3))
    assert all(reading.value.number > 300 for reading in ahead if reading.at.hour == 13)
