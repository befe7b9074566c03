"""A hub keeps its signals, writes its hours, forecasts, bids and publishes; whatever fails, it goes on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path

import pytest

from harch.base.errors import HarchError
from harch.hub.carbon.accounts import ENDED_AT_ONCE
from harch.hub.carbon.forecast import HourBook
from harch.hub.carbon.signals import CARBON, CARBON_AHEAD, CARBON_FILE_NAME
from harch.hub.service import HubService, build_hub
from harch.hub.views import PeerView
from harch.testing.clock import START, SimClock
from harch.testing.samples import tiny_fleet

PRICED = """
[sources.operator]
type = "manual"
[[sources.operator.values]]
place = "dakhla"
signal = "price"
value = 95
unit = "USD/MWh"
since = 2025-12-31T00:00:00Z
until = 2026-12-31T00:00:00Z
[hubs.dakhla.onsite]
wind_kw = 500
"""


async def settled(done: Callable[[], bool]) -> None:
    """Threads and the disk take real time, though the clock stands still."""
    async with asyncio.timeout(20):
        while not done():
            await asyncio.sleep(0.005)


def service(folder: Path, clock: SimClock) -> HubService:
    fleet = tiny_fleet()
    return build_hub(
        fleet=fleet,
        hub=fleet.hubs[0],
        state_dir=folder,
        clock=clock,
        version="1",
        url="http://hub",
        peer_urls={"dakar": "http://dakar"},
        on_broken=lambda broken: None,
    )


@pytest.fixture
async def clock() -> SimClock:
    return SimClock(START + timedelta(minutes=20))


@pytest.fixture
async def hub(tmp_path: Path, clock: SimClock) -> AsyncIterator[HubService]:
    (tmp_path / CARBON_FILE_NAME).write_text(PRICED)
    hub = service(tmp_path, clock)
    running = asyncio.create_task(hub.carbon.run())
    yield hub
    running.cancel()
    await asyncio.wait([running])
    await hub.close()


async def test_after_a_moment_the_hub_bids_with_its_power_and_tells_it_to_others(
    hub: HubService, clock: SimClock
) -> None:
    assert (hub._jobs.context().power.carbon_g_per_kwh, hub.carbon.published()) == (None, {})
    await clock.advance(0.5)
    await settled(lambda: CARBON_AHEAD in hub.carbon.published())
    assert hub._jobs.context().power.price_per_kwh == pytest.approx(0.095)
    assert hub._jobs.context().power.carbon_g_per_kwh == pytest.approx(20 * hub._jobs.machine.state.hub.pue)
    assert CARBON in hub.carbon.published()


async def test_every_hub_is_shown_and_one_that_says_nothing_is_shown_with_the_reason(
    hub: HubService, clock: SimClock
) -> None:
    await clock.advance(0.5)
    own, other = hub.carbon.now()
    assert own.power is not None
    assert (own.own, own.hub_id, own.power.figure("grid-average-lifecycle").evidence) == (True, "dakhla", "estimated")
    assert (other.hub_id, other.power, bool(other.error)) == ("dakar", None, True)


async def test_a_hub_believes_what_another_says_of_itself(
    hub: HubService, clock: SimClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await clock.advance(0.5)
    await settled(lambda: CARBON_AHEAD in hub.carbon.published())
    said = hub.carbon.published()
    monkeypatch.setattr(hub.carbon, "_received", lambda key: {"dakar": said[key]})
    other = hub.carbon.now()[1]
    assert (other.hub_id, other.power is not None, other.error) == ("dakar", True, "")
    assert len(hub.carbon.forecast("dakar", 5).hours) == 5
    with pytest.raises(HarchError, match="no hub named"):
        hub.carbon.forecast("atlantis", 5)


async def test_the_past_is_on_disk_and_the_forecast_is_made_anew_each_hour(hub: HubService, clock: SimClock) -> None:
    await clock.advance(0.5)
    await settled(lambda: CARBON_AHEAD in hub.carbon.published())
    first = hub.carbon.forecast("dakhla")
    assert hub._database.query("SELECT COUNT(*) > 0 FROM carbon_hours") == [(1,)]
    await clock.advance(3600)
    await settled(lambda: hub.carbon.forecast("dakhla").made_at > first.made_at)
    assert hub.carbon.forecast("dakhla").made_at >= START + timedelta(hours=1) > first.made_at


async def test_before_the_first_forecast_people_are_told_to_wait(hub: HubService) -> None:
    with pytest.raises(HarchError, match="no forecast yet") as raised:
        hub.carbon.forecast("dakhla")
    assert raised.value.code == "E0801"


async def test_a_fault_about_power_costs_a_log_line_and_not_the_hub(
    hub: HubService, clock: SimClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(book: HourBook, signals: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(HourBook, "note", broken)
    with caplog.at_level(logging.ERROR):
        await clock.advance(0.5)
        await settled(lambda: caplog.text.count("sampling the power failed") == 1)
        async with asyncio.timeout(20):
            while caplog.text.count("sampling the power failed") < 2:  # the accounts' thread may not have ended yet
                await clock.advance(30.5)


async def test_mistakes_of_the_carbon_file_are_told_at_the_start(tmp_path: Path, clock: SimClock) -> None:
    (tmp_path / CARBON_FILE_NAME).write_text("[hubs.atlantis]\n")
    with pytest.raises(HarchError, match="atlantis") as raised:
        service(tmp_path, clock)
    assert raised.value.code == "E0220"


async def test_without_a_carbon_file_nobody_is_asked(tmp_path: Path, clock: SimClock) -> None:
    hub = service(tmp_path, clock)
    assert hub.carbon._sources.client is None
    assert isinstance(hub.peers()[0], PeerView)
    await hub.close()


async def test_many_ended_jobs_are_accounted_for_in_turns_with_whoever_waits(hub: HubService, clock: SimClock) -> None:
    accounts, turns = hub.carbon._accounts, 0

    async def somebody_else() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    accounts._started = {f"wl_{number}" for number in range(10 * ENDED_AT_ONCE)}
    other = asyncio.create_task(somebody_else())
    assert await accounts._ended({}, {}, clock.now(), (clock.now(), clock.now())) == []
    other.cancel()
    assert turns >= 10
    assert accounts._started == set()
