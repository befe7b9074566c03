"""Does each source read the answers that its API documents, in the right unit and kind, and refuse all others?"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta

import pytest

from harch.carbon.signals.circuit_breaker import RequestLimit
from harch.carbon.signals.source import AccessRefused, SignalSource, SourceFailed
from harch.carbon.signals.sources.electricity_maps import PROVIDES, ElectricityMaps
from harch.carbon.signals.sources.open_meteo import OpenMeteo
from harch.carbon.signals.sources.prometheus import Prometheus, PrometheusQuery
from harch.carbon.signals.sources.watttime import WattTime
from harch.carbon.signals.web import ApiKey, WebLimits, WebReader
from harch.carbon.values import Evidence, Quantity, Reading, Signal
from harch.testing.clock import START, SimClock
from unit.carbon.signals.carbon_apis import (
    Double,
    ElectricityMapsDouble,
    OpenMeteoDouble,
    PrometheusDouble,
    WattTimeDouble,
    body,
    recorded,
    status,
)
from unit.carbon.signals.carbon_readings import site

PV, GPU = Signal.PV_POWER, Signal.GPU_POWER


def web(double: Double) -> WebReader:
    return WebReader(
        source="api",
        client=double.client(),
        jitter=lambda: 0.0,
        limits=WebLimits(tries_max=1),
        requests=RequestLimit(10_000, 3600.0),
    )


def maps(double: ElectricityMapsDouble, **settings: object) -> ElectricityMaps:
    return ElectricityMaps(web=web(double), key=ApiKey(double.TOKEN), url="http://maps.test/v3", **settings)  # type: ignore[arg-type]


def watt(double: WattTimeDouble) -> WattTime:
    regions = {"MA": "CAISO_NORTH"}
    user, password = ApiKey(double.USER), ApiKey(double.PASSWORD)
    return WattTime(web=web(double), user=user, password=password, url="http://watt.test", regions=regions)


def meters(double: PrometheusDouble) -> Prometheus:
    queries = {PV: PrometheusQuery('sum(pv_watts{site="$hub"})', "W"), GPU: PrometheusQuery("gpu_kw", "kW")}
    return Prometheus(web=web(double), name="meters", url="http://prometheus.test", queries=queries)


def now_and_ahead(readings: list[Reading[Quantity]], signal: Signal) -> tuple[Reading[Quantity], int]:
    mine = [reading for reading in readings if reading.signal is signal]
    (current,) = [reading for reading in mine if not reading.ahead]
    return current, len(mine) - 1


async def test_electricity_maps_gives_lifecycle_direct_and_share_each_of_its_kind() -> None:
    clock = SimClock()
    readings = await maps(ElectricityMapsDouble(clock), provides=PROVIDES).fetch(site(), clock)
    assert [str(reading) for reading in readings] == [
        "617 g/kWh (average, lifecycle, location) "
        "[estimated, electricity-maps, 2026-01-01T00:00:00Z; TIME_SLICER_AVERAGE]",
        "617 g/kWh (average, direct, location) "
        "[estimated, electricity-maps, 2026-01-01T00:00:00Z; TIME_SLICER_AVERAGE]",
        "0.16 renewable [estimated, electricity-maps, 2026-01-01T00:00:00Z; TIME_SLICER_AVERAGE]",
    ]


async def test_electricity_maps_is_asked_with_its_own_name_of_the_zone_and_for_the_forecast_if_paid() -> None:
    clock = SimClock()
    double = ElectricityMapsDouble(clock)
    source = maps(double, zones={"MA": "EH"}, with_forecast=True)
    readings = await source.fetch(site(), clock)
    assert {request.url.params["zone"] for request in double.requests} == {"EH"}
    assert now_and_ahead(readings, Signal.GRID_AVERAGE_LIFECYCLE)[1] == 3


@pytest.mark.parametrize(
    ("lie", "reason"),
    [
        ({"zone_answered": "FR"}, "received FR"),
        ({"factor_type_answered": "direct"}, "requested lifecycle, received direct"),
        ({"g_per_kwh": None}, "no value"),
    ],
)
async def test_an_answer_to_another_question_is_refused(lie: dict[str, object], reason: str) -> None:
    clock = SimClock()
    double = ElectricityMapsDouble(clock)
    for name, value in lie.items():
        setattr(double, name, value)
    with pytest.raises(SourceFailed, match=reason):
        await maps(double).fetch(site(), clock)


async def test_watttime_converts_pounds_and_looks_a_day_ahead() -> None:
    clock = SimClock(START + timedelta(minutes=7))
    readings = await watt(WattTimeDouble(clock)).fetch(site(), clock)
    current, ahead = now_and_ahead(readings, Signal.GRID_MARGINAL_DIRECT)
    assert current.value.number == pytest.approx(475.55, abs=0.01)
    assert (current.at, current.evidence, ahead) == (START + timedelta(minutes=5), Evidence.ESTIMATED, 287)
    assert "marginal, direct, location" in str(current)


async def test_watttime_logs_in_once_renews_before_the_end_and_after_a_refusal() -> None:
    clock = SimClock()
    double = WattTimeDouble(clock)
    source = watt(double)
    for _ in range(10):
        await source.fetch(site(), clock)
    assert double.logins == 1
    clock.jump(26 * 60)
    await source.fetch(site(), clock)
    assert double.logins == 2
    double.token_good = "ended early"
    await source.fetch(site(), clock)
    assert double.logins == 3


async def test_watttime_does_not_log_in_for_ever_when_a_region_is_not_in_the_contract() -> None:
    clock = SimClock()
    double = WattTimeDouble(clock)
    source = watt(double)
    await source.fetch(site(), clock)
    double.faults = [status(403), body(json.dumps(recorded("watttime_login")).encode()), status(403)]
    with pytest.raises(AccessRefused):
        await source.fetch(site(), clock)
    assert len(double.requests) == 5


async def test_watttime_in_a_unit_that_is_not_known_is_refused() -> None:
    clock = SimClock()
    double = WattTimeDouble(clock)
    double.units = "kg_co2_per_mwh"
    with pytest.raises(SourceFailed, match="kg_co2_per_mwh"):
        await watt(double).fetch(site(), clock)


async def test_open_meteo_gives_weather_now_and_at_least_96_hours_ahead() -> None:
    clock = SimClock(START + timedelta(hours=23))
    readings = await OpenMeteo(web=web(OpenMeteoDouble(clock)), url="http://meteo.test/v1").fetch(site(), clock)
    values = {}
    for signal in (Signal.CLOUD_COVER, Signal.WIND_SPEED_10M, Signal.WIND_SPEED_80M, Signal.TEMPERATURE):
        current, ahead = now_and_ahead(readings, signal)
        values[str(signal)] = str(current.value)
        assert ahead == 96
        assert current.evidence is Evidence.ESTIMATED
    assert values == {
        "cloud-cover": "0.25 of the sky",
        "wind-speed-10m": "8.2 m/s (10 m above ground)",
        "wind-speed-80m": "10.9 m/s (80 m above ground)",
        "temperature": "17.4 °C",
    }


async def test_open_meteo_is_believed_about_its_unit_and_refused_in_one_that_is_not_known() -> None:
    clock = SimClock()
    double = OpenMeteoDouble(clock)
    source = OpenMeteo(web=web(double), url="http://meteo.test/v1")
    double.wind_unit = "km/h"
    current, _ = now_and_ahead(await source.fetch(site(), clock), Signal.WIND_SPEED_10M)
    assert current.value.number == pytest.approx(8.2 / 3.6)
    double.wind_unit = "furlongs"
    with pytest.raises(SourceFailed, match="furlongs"):
        await source.fetch(site(), clock)


async def test_prometheus_reads_the_meters_of_the_hub_in_the_unit_that_the_operator_states() -> None:
    clock = SimClock()
    double = PrometheusDouble(clock)
    double.samples = {'sum(pv_watts{site="dakhla"})': "412500", "gpu_kw": "811.5"}
    readings = await meters(double).fetch(site(), clock)
    assert [str(reading.value) for reading in readings] == ["412.5 kW", "811.5 kW"]
    assert {reading.evidence for reading in readings} == {Evidence.MEASURED}


async def test_a_meter_that_is_gone_does_not_take_the_others_with_it() -> None:
    clock = SimClock()
    double = PrometheusDouble(clock)
    double.samples = {"gpu_kw": "811.5"}
    with pytest.raises(SourceFailed, match="the query of pv-power returned 0 series") as failure:
        await meters(double).fetch(site(), clock)
    assert [str(reading.value) for reading in failure.value.readings] == ["811.5 kW"]


async def test_a_meter_that_shows_no_number_is_read_as_such_and_left_to_the_quality_rules() -> None:
    clock = SimClock()
    double = PrometheusDouble(clock)
    double.samples = {'sum(pv_watts{site="dakhla"})': "NaN", "gpu_kw": "+Inf"}
    readings = await meters(double).fetch(site(), clock)
    assert [str(reading.value) for reading in readings] == ["nan kW", "inf kW"]


_SOURCES: dict[str, tuple[type[Double], Callable[..., SignalSource]]] = {
    "electricity-maps": (ElectricityMapsDouble, maps),
    "watttime": (WattTimeDouble, watt),
    "open-meteo": (OpenMeteoDouble, lambda double: OpenMeteo(web=web(double), url="http://meteo.test/v1")),
    "prometheus": (PrometheusDouble, meters),
}


@pytest.mark.parametrize("name", _SOURCES)
@pytest.mark.parametrize("answer", ["null", "[]", "{}", "42", '"text"', '{"data": null}', '{"data": {"result": {}}}'])
async def test_json_of_another_shape_is_a_failure_and_never_a_crash(name: str, answer: str) -> None:
    double_type, make = _SOURCES[name]
    clock = SimClock()
    double = double_type(clock)
    double.always = body(answer.encode())
    with pytest.raises(SourceFailed, match="shape"):
        await make(double).fetch(site(), clock)


@pytest.mark.parametrize("name", _SOURCES)
async def test_every_cut_of_a_good_answer_is_a_failure_and_never_a_crash(name: str) -> None:
    double_type, make = _SOURCES[name]
    clock = SimClock()
    double = double_type(clock)
    files = {
        "electricity-maps": "electricity_maps_latest",
        "watttime": "watttime_forecast",
        "open-meteo": "open_meteo_forecast",
        "prometheus": "prometheus_vector",
    }
    text = json.dumps(recorded(files[name])).encode()
    source = make(double)
    for length in range(0, len(text) - 1, 17):
        double.always = body(text[:length])
        with pytest.raises(SourceFailed):
            await source.fetch(site(), clock)
