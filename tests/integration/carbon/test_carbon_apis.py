"""Do all web sources work from a carbon file over real sockets, and survive what a wire can do? Loopback only."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
import pytest

from harch.base.clock import SystemClock
from harch.carbon.signals.assembly import SourceContext, build_registry
from harch.carbon.signals.choice import Quality
from harch.carbon.signals.config import parse_config
from harch.carbon.signals.registry import SignalRegistry
from harch.carbon.values import Evidence, Signal
from harch.fleet.file import shipped_fleet
from integration.carbon.carbon_loopback import (
    Loopback,
    WireFault,
    babble,
    drip,
    hang_up,
    silence,
    truncation,
)
from unit.carbon.signals.carbon_apis import (
    ElectricityMapsDouble,
    OpenMeteoDouble,
    PrometheusDouble,
    WattTimeDouble,
    status,
)

GRID = Signal.GRID_AVERAGE_LIFECYCLE
SECRETS = (ElectricityMapsDouble.TOKEN, WattTimeDouble.PASSWORD, "weather-key", "abcdef0123456789fedcabc")


class Services:
    """The four web APIs on loopback, and a board that reads them by way of a carbon file."""

    def __init__(self) -> None:
        clock = SystemClock()
        self.clock = clock
        self.maps = Loopback(ElectricityMapsDouble(clock))
        self.watt = Loopback(WattTimeDouble(clock))
        self.meteo = Loopback(OpenMeteoDouble(clock))
        self.meters = Loopback(PrometheusDouble(clock))
        self.client = httpx.AsyncClient()

    def board(self, folder: Path, *, maps_timeout_s: float = 10.0) -> SignalRegistry:
        (folder / "maps.key").write_text(ElectricityMapsDouble.TOKEN)
        text = f"""
        [sources.maps]
        type = "electricity-maps"
        key_file = "maps.key"
        url = "{self.maps.url}/v3"
        timeout_s = {maps_timeout_s}
        [sources.marginal]
        type = "watttime"
        user_env = "WT_USER"
        password_env = "WT_PASSWORD"
        url = "{self.watt.url}"
        regions = {{ MA = "CAISO_NORTH" }}
        [sources.weather]
        type = "open-meteo"
        key_env = "METEO_KEY"
        url = "{self.meteo.url}/v1"
        [sources.meters]
        type = "prometheus"
        url = "{self.meters.url}"
        queries = {{ pv-power = {{ query = 'sum(pv_watts{{site="$hub"}})', unit = "W" }} }}
        [hubs.dakhla.onsite]
        pv_kw_peak = 1200
        """
        environment = {
            "WT_USER": WattTimeDouble.USER,
            "WT_PASSWORD": WattTimeDouble.PASSWORD,
            "METEO_KEY": "weather-key",
        }
        world = SourceContext(
            client=self.client, clock=self.clock, jitter=lambda: 1.0, environment=environment, folder=folder
        )
        return build_registry(parse_config(text), shipped_fleet("five-hubs"), world)


@pytest.fixture
async def services() -> AsyncIterator[Services]:
    all_of_them = Services()
    async with AsyncExitStack() as stack:
        for loopback in (all_of_them.maps, all_of_them.watt, all_of_them.meteo, all_of_them.meters):
            await stack.enter_async_context(loopback.listening())
        await stack.enter_async_context(all_of_them.client)
        yield all_of_them


async def test_a_carbon_file_brings_all_signals_of_a_hub_together(
    services: Services, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    assert isinstance(services.meters.double, PrometheusDouble)
    services.meters.double.samples = {'sum(pv_watts{site="dakhla"})': "412500"}
    board = services.board(tmp_path)
    await board.refresh("dakhla")
    snapshot = board.now("dakhla")
    used = {
        signal: (state.reading.source, state.reading.evidence, state.quality)
        for signal, state in snapshot.states.items()
        if state.reading is not None
    }
    assert used[GRID] == ("maps", Evidence.ESTIMATED, Quality.FIRST)
    assert used[Signal.GRID_MARGINAL_DIRECT] == ("marginal", Evidence.ESTIMATED, Quality.FIRST)
    assert used[Signal.CLOUD_COVER] == ("weather", Evidence.ESTIMATED, Quality.FIRST)
    assert used[Signal.PV_POWER] == ("meters", Evidence.MEASURED, Quality.FIRST)
    assert used[Signal.WIND_POWER] == ("modelled", Evidence.ESTIMATED, Quality.FIRST)
    assert len(board.outlook("dakhla", Signal.WIND_SPEED_80M)) >= 96
    for secret in SECRETS:
        assert secret not in caplog.text
        assert secret not in str(snapshot.as_plain())


@pytest.mark.parametrize("fault", [silence, drip, truncation, hang_up, babble], ids=lambda fault: fault.__name__)
async def test_what_goes_wrong_on_the_wire_is_a_reason_and_the_model_steps_in(
    services: Services, tmp_path: Path, fault: WireFault
) -> None:
    services.maps.fault = fault
    board = services.board(tmp_path, maps_timeout_s=0.3)
    await board.refresh("dakhla")
    state = board.now("dakhla").states[GRID]
    assert state.reading is not None
    assert (state.reading.source, state.quality) == ("modelled", Quality.FALLBACK)
    (reason,) = [no for no in state.not_used if no.subject == "maps"]
    assert reason.rule == "failing"
    assert "127.0.0.1" in reason.detail


async def test_an_api_that_says_429_is_left_alone_as_long_as_it_asks(services: Services, tmp_path: Path) -> None:
    services.maps.double.always = status(429, Retry_After="120")
    board = services.board(tmp_path)
    await board.refresh("dakhla")
    await board.refresh("tangier")
    assert len(services.maps.double.requests) == 1
    (reason,) = [no for no in board.now("tangier").states[GRID].not_used if no.subject == "maps"]
    assert "HTTP 429" in reason.detail
    assert "next attempt in 1" in reason.detail


async def test_a_service_that_is_not_there_is_a_reason_too(services: Services, tmp_path: Path) -> None:
    services.maps.port = 1  # nobody listens there
    board = services.board(tmp_path)
    await board.refresh("dakar")
    (reason,) = [no for no in board.now("dakar").states[GRID].not_used if no.subject == "maps"]
    assert "cannot be read (ConnectError)" in reason.detail
