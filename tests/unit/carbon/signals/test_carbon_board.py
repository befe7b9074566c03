"""What does a decision rest on while sources fail, lie and come back? A simulated clock; no time passes."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta

import httpx
import pytest

from harch.base.clock import Clock
from harch.base.errors import HarchError
from harch.carbon.signals.choice import Quality, SignalState
from harch.carbon.signals.circuit_breaker import RequestLimit
from harch.carbon.signals.registry import Pace, SignalRegistry, SourcePlan
from harch.carbon.signals.sites import SignalSite
from harch.carbon.signals.sources.electricity_maps import ElectricityMaps
from harch.carbon.signals.sources.manual import Manual, manual_value
from harch.carbon.signals.sources.modelled import modelled
from harch.carbon.signals.web import ApiKey, WebLimits, WebReader
from harch.carbon.values import Quantity, Reading, Signal
from harch.testing.clock import START, SimClock
from unit.carbon.signals.carbon_apis import ElectricityMapsDouble, Fault, body, status, timeout
from unit.carbon.signals.carbon_readings import GRID, reading, site

HOUR_S = 3600.0


class World:
    """Two hubs of one zone that are served by Electricity Maps and the model."""

    def __init__(self, *, hubs: tuple[str, ...] = ("dakhla", "tangier")) -> None:
        self.clock, self.hubs = SimClock(), hubs
        self.double = ElectricityMapsDouble(self.clock)
        web = WebReader(
            source="maps",
            client=self.double.client(),
            jitter=lambda: 0.0,
            limits=WebLimits(tries_max=1),  # further tries are tested with the web reader; here they would sleep
            requests=RequestLimit(600, HOUR_S),
        )
        maps = ElectricityMaps(web=web, key=ApiKey(self.double.TOKEN), url="http://maps.test/v3", name="maps")
        plans = [SourcePlan(source=maps, pace=Pace(every_s=300.0)), SourcePlan(source=modelled(), is_model=True)]
        orders = {hub: {GRID: ("maps", "modelled")} for hub in hubs}
        self.board = SignalRegistry([site(hub) for hub in hubs], plans, orders, self.clock)

    async def go_on(self, seconds: float, *, step_s: float = 300.0) -> None:
        """Lets time pass in steps of the pace: a day costs milliseconds. `run` has tests of its own."""
        for _ in range(int(seconds // step_s)):
            for hub in self.hubs:
                await self.board.refresh(hub)
            self.clock.jump(step_s)
        for hub in self.hubs:
            await self.board.refresh(hub)

    def state(self, hub: str = "dakhla") -> SignalState:
        return self.board.now(hub).states[GRID]

    def used(self, hub: str = "dakhla") -> tuple[str, float]:
        state = self.state(hub)
        assert state.reading is not None
        return state.reading.source, state.reading.value.number


async def test_hubs_of_one_zone_share_the_answers_of_an_api() -> None:
    world = World()
    await world.go_on(0)
    await world.go_on(HOUR_S)
    assert world.used("dakhla") == world.used("tangier") == ("maps", 617.0)
    assert 12 <= len(world.double.requests) <= 13


@pytest.mark.parametrize(
    "fault",
    [status(500), timeout, status(429, Retry_After="60"), body(b'{"zone": "MA"}'), body(b'{"zone": "MA", "ca')],
    ids=["500", "timeout", "429", "wrong JSON", "truncated"],
)
async def test_an_api_that_is_down_for_a_day_leaves_the_model_and_comes_back_by_itself(fault: Fault) -> None:
    world = World()
    await world.go_on(0)
    assert world.used() == ("maps", 617.0)
    world.double.always, before = fault, len(world.double.requests)
    for hour in range(24):
        await world.go_on(HOUR_S)
        source, number = world.used()
        assert (source, number) == (("maps", 617.0) if hour < 3 else ("modelled", 630.0))
    state = world.state()
    assert state.quality is Quality.FALLBACK
    reasons = {no.rule: no.detail for no in state.not_used}
    assert set(reasons) == {"failing", "stale"}
    assert "since 2026-01-01 00:" in reasons["failing"]
    assert world.board.health()[0].failures > 0
    assert len(world.double.requests) - before < 24 * 4 * 3 + 20, "an API that is down is asked now and then only"
    world.double.always = None
    await world.go_on(1200)
    assert world.used() == ("maps", 617.0)
    assert world.state().quality is Quality.FIRST


@pytest.mark.parametrize("lie", [6170.0, 61.7, float("nan"), -617.0, 617.0 / 0.45359237, 0.617])
async def test_a_source_that_begins_to_lie_is_not_followed_and_everything_is_said(lie: float) -> None:
    world = World(hubs=("dakhla",))
    await world.go_on(0)
    for hour in range(48):
        world.double.g_per_kwh = 600.0 + hour % 12
        await world.go_on(HOUR_S, step_s=1800)
    honest = world.used()[1]
    if lie != lie:  # JSON of Python has NaN; the recorded shape does not
        world.double.always = body(
            b'{"zone": "MA", "carbonIntensity": NaN, "datetime": "2026-01-03T00:00:00Z", '
            b'"emissionFactorType": "lifecycle"}'
        )
    world.double.g_per_kwh = lie
    for _ in range(24):
        await world.go_on(HOUR_S, step_s=1800)
        source, number = world.used()
        assert (source, number) in {("maps", honest), ("modelled", 630.0)}
        assert world.state().not_used
    assert world.used() == ("modelled", 630.0)


async def test_time_going_backwards_leaves_the_newer_value_until_it_is_stale() -> None:
    world = World()
    await world.go_on(0)
    world.double.hour = START - timedelta(hours=2)
    world.double.g_per_kwh = 500.0
    await world.go_on(600)
    assert world.used() == ("maps", 617.0)
    assert "backwards" in {no.rule for no in world.state().not_used}
    await world.go_on(3 * HOUR_S)
    assert world.used() == ("modelled", 630.0)


async def test_a_source_with_a_clock_that_runs_ahead_is_not_used() -> None:
    world = World()
    world.double.hour = START + timedelta(hours=1)
    await world.go_on(0)
    assert world.used() == ("modelled", 630.0)
    assert "future" in {no.rule for no in world.state().not_used}


class _Plugin:
    """A source of somebody else, with whatever behaviour a test needs."""

    name, provides, by_zone = "plugin", frozenset({GRID, Signal.PUE}), False

    def __init__(self) -> None:
        self.calls = 0
        self.error: Exception | None = None
        self.delay_s = 0.0
        self.answer: list[Reading[Quantity]] = []

    async def fetch(self, _site: SignalSite, clock: Clock) -> list[Reading[Quantity]]:
        self.calls += 1
        if self.delay_s:
            await clock.sleep(self.delay_s)
        if self.error is not None:
            raise self.error
        return self.answer


def with_plugin(plugin: _Plugin, clock: SimClock) -> SignalRegistry:
    plans = [SourcePlan(source=plugin), SourcePlan(source=modelled(), is_model=True)]
    return SignalRegistry([site()], plans, {"dakhla": {GRID: ("plugin", "modelled")}}, clock)


async def test_a_fault_in_a_plug_in_is_logged_and_silences_nobody_else(caplog: pytest.LogCaptureFixture) -> None:
    plugin, clock = _Plugin(), SimClock()
    plugin.error = ZeroDivisionError("a bug")
    board = with_plugin(plugin, clock)
    with caplog.at_level(logging.ERROR):
        await board.refresh("dakhla")
    state = board.now("dakhla").states[GRID]
    assert state.reading is not None
    assert (state.reading.source, state.quality) == ("modelled", Quality.FALLBACK)
    assert "plug-in error (ZeroDivisionError)" in state.not_used[0].detail
    assert "a bug" in caplog.text


async def test_a_slow_source_delays_no_other_and_is_not_asked_twice_at_once() -> None:
    plugin, clock = _Plugin(), SimClock()
    plugin.delay_s = 45.0
    plugin.answer = [reading(600.0, source="plugin")]
    board = with_plugin(plugin, clock)
    task = asyncio.create_task(board.run())
    await clock.advance(40)
    assert plugin.calls == 1
    state = board.now("dakhla").states[GRID]
    assert state.reading is not None
    assert state.reading.source == "modelled"
    await board.refresh("dakhla")
    assert plugin.calls == 1
    await clock.advance(10)
    after = board.now("dakhla").states[GRID]
    assert after.reading is not None
    assert after.reading.source == "plugin"
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_every_source_is_asked_every_30_seconds() -> None:
    plugin, clock = _Plugin(), SimClock()
    task = asyncio.create_task(with_plugin(plugin, clock).run())
    await clock.advance(299)
    assert plugin.calls == 10
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_signals_that_a_source_did_not_promise_are_not_taken_from_it() -> None:
    plugin, clock = _Plugin(), SimClock()
    plugin.answer = [reading(1.0, signal=Signal.PRICE, source="plugin"), reading(600.0, source="plugin")]
    plans = [SourcePlan(source=plugin), SourcePlan(source=Manual())]
    board = SignalRegistry([site()], plans, {"dakhla": {Signal.PRICE: ("plugin", "manual")}}, clock)
    await board.refresh("dakhla")
    assert board.now("dakhla").states[Signal.PRICE].reading is None


async def test_an_operator_can_overrule_a_source_and_take_it_back() -> None:
    clock, operator = SimClock(), Manual()
    plans = [SourcePlan(source=operator), SourcePlan(source=modelled(), is_model=True)]
    board = SignalRegistry([site()], plans, {"dakhla": {GRID: ("manual", "modelled")}}, clock)
    operator.set(
        manual_value("dakhla", GRID, 412.0, "g/kWh", set_at=START, valid_until=START + timedelta(hours=5), note="audit")
    )
    await board.refresh("dakhla")
    assert "412 g/kWh" in str(board.now("dakhla").states[GRID])
    clock.jump(31)
    operator.clear("dakhla", GRID, now=clock.now())
    await board.refresh("dakhla")
    assert "630 g/kWh" in str(board.now("dakhla").states[GRID])


async def test_a_snapshot_is_a_value_with_everything_that_json_needs() -> None:
    world = World(hubs=("dakhla",))
    await world.go_on(0)
    before = world.board.now("dakhla")
    plain = before.as_plain()
    await world.go_on(5 * HOUR_S)
    assert plain == before.as_plain(), "a snapshot does not change with the board"
    signals = plain["signals"]
    assert isinstance(signals, dict)
    grid = signals["grid-average-lifecycle"]
    assert grid["quality"] == "first"
    assert grid["reading"]["kind"] == ["average, lifecycle, location"]
    assert grid["reading"]["evidence"] == "estimated"
    assert grid["not_used"] == [
        {"source": "modelled", "rule": "order", "detail": "ranked after maps", "nearest_fix": ""}
    ]
    assert before.reading(Signal.PRICE) is None


async def test_the_outlook_is_the_best_sources_and_begins_now() -> None:
    clock = SimClock()
    order = {"dakhla": {Signal.IRRADIANCE: ("modelled",)}}
    board = SignalRegistry([site()], [SourcePlan(source=modelled(), is_model=True)], order, clock)
    await board.refresh("dakhla")
    clock.jump(10 * HOUR_S)
    ahead = board.outlook("dakhla", Signal.IRRADIANCE)
    assert ahead[0].at == START + timedelta(hours=10)
    assert len(ahead) == 87
    assert board.outlook("dakhla", Signal.PRICE) == ()


def test_a_hub_that_is_not_on_the_board_is_an_error_for_people() -> None:
    world = World()
    with pytest.raises(HarchError, match="atlantis") as failure:
        world.board.now("atlantis")
    assert failure.value.code == "E0305"


async def test_nothing_outside_is_asked_by_the_default_board() -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        raise AssertionError(f"queried {request.url}")

    clock = SimClock()
    async with httpx.AsyncClient(transport=httpx.MockTransport(refuse)):
        board = SignalRegistry(
            [site()], [SourcePlan(source=modelled(), is_model=True)], {"dakhla": {GRID: ("modelled",)}}, clock
        )
        await board.refresh("dakhla")
        assert board.now("dakhla").states[GRID].reading is not None
