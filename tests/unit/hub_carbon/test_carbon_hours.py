"""Readings become hourly means, once each, in the hour that they are about, for three years."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest

from harch.carbon.signals.choice import HubSignals
from harch.carbon.values import Signal
from harch.hub.carbon.forecast import KEEP, HourBook, known_hours, past_hours
from harch.hub.store.database import Database
from harch.testing.clock import START
from unit.hub_carbon.power_samples import signals, state

GRID = Signal.GRID_AVERAGE_LIFECYCLE
HOUR = timedelta(hours=1)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    database = Database(tmp_path / "hub.db")
    yield database
    database.close()


def seen(value: float, after: timedelta, *, source: str = "meter", late: timedelta = timedelta(0)) -> HubSignals:
    return signals(state(GRID, value, at=START + after, source=source), at=START + after + late)


def write(database: Database, *looks: HubSignals) -> None:
    book = HourBook()
    for look in looks:
        book.note(look)
    database.write(book.take(looks[-1].taken_at))


def test_an_hour_is_the_mean_of_its_readings_over_several_writes(database: Database) -> None:
    write(database, seen(100, timedelta(minutes=1)), seen(200, timedelta(minutes=2)))
    write(database, seen(600, timedelta(minutes=30)))
    known = known_hours(database, GRID, START + timedelta(minutes=40))
    assert known is not None
    assert (known.history.values.tolist(), known.history.start, known.modelled) == ([300.0], START, False)


def test_a_reading_counts_once_and_for_its_own_hour_however_late_and_often_it_is_seen(database: Database) -> None:
    late = [seen(100, timedelta(0), late=timedelta(minutes=70 + minute)) for minute in range(9)]
    write(database, *late, seen(300, timedelta(minutes=30), late=HOUR))
    known = known_hours(database, GRID, START + 2 * HOUR)
    assert known is not None
    assert known.history.values[0] == 200
    assert np.isnan(known.history.values[1])
    assert known.history.end == START + 2 * HOUR


def test_a_value_with_a_stated_end_is_about_now(database: Database) -> None:
    set_long_ago = state(GRID, 250, at=START - timedelta(days=90), until=START + timedelta(days=90))
    write(database, signals(set_long_ago, at=START + HOUR))
    known = known_hours(database, GRID, START + HOUR)
    assert known is not None
    assert (known.history.start, known.history.values.tolist()) == (START + HOUR, [250.0])


def test_the_model_fills_no_gap_and_teaches_nothing_but_its_level(database: Database) -> None:
    model = [seen(630, hour * HOUR, source="modelled") for hour in range(60)]
    write(database, *model)
    alone = known_hours(database, GRID, START + 60 * HOUR)
    assert alone is not None
    assert (alone.modelled, len(alone.history.values) <= 2) == (True, True)
    write(database, seen(400, 30 * HOUR), seen(500, 32 * HOUR))
    mixed = known_hours(database, GRID, START + 33 * HOUR)
    assert mixed is not None
    assert (mixed.modelled, mixed.history.start) == (False, START + 30 * HOUR)
    assert mixed.history.values[0] == 400
    assert np.isnan(mixed.history.values[1])


def test_what_is_too_old_goes(database: Database) -> None:
    write(database, seen(100, timedelta(0)))
    write(database, seen(200, KEEP + 2 * HOUR))
    assert database.query("SELECT COUNT(*) FROM carbon_hours") == [(1,)]
    assert known_hours(database, Signal.PV_POWER, START) is None


def test_the_past_is_told_hour_by_hour_with_the_model_only_where_nobody_else_was(database: Database) -> None:
    write(database, *(seen(630, hour * HOUR, source="modelled") for hour in range(3)), seen(400, HOUR))
    found = past_hours(database, GRID, START, START + 2 * HOUR)
    assert [(hour.at, hour.g_per_kwh, hour.estimated) for hour in found] == [
        (START, 630, True),
        (START + HOUR, 400, False),
    ]
