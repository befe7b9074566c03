"""Can one odd value in an answer crash a source or reach a decision? The documented answers, mutated."""

from __future__ import annotations

import asyncio
import copy
import json
import math
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harch.carbon.signals.circuit_breaker import RequestLimit
from harch.carbon.signals.quality import DEFAULT_LIMITS
from harch.carbon.signals.registry import Feed, Pace
from harch.carbon.signals.source import SignalSource
from harch.carbon.signals.sources.electricity_maps import PROVIDES, ElectricityMaps
from harch.carbon.signals.sources.open_meteo import OpenMeteo
from harch.carbon.signals.sources.prometheus import Prometheus, PrometheusQuery
from harch.carbon.signals.sources.watttime import WattTime
from harch.carbon.signals.web import ApiKey, WebLimits, WebReader
from harch.carbon.values import Signal
from harch.testing.clock import SimClock
from unit.carbon.signals.carbon_apis import recorded
from unit.carbon.signals.carbon_readings import site

ANSWERS = {
    "/v3/carbon-intensity/latest": "electricity_maps_latest",
    "/v3/carbon-intensity/forecast": "electricity_maps_forecast",
    "/v3/power-breakdown/latest": "electricity_maps_power_breakdown",
    "/login": "watttime_login",
    "/v3/forecast": "watttime_forecast",
    "/v1/forecast": "open_meteo_forecast",
    "/api/v1/query": "prometheus_vector",
}
oddities: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.text(max_size=5),
    st.floats(allow_nan=True, allow_infinity=True),
    st.sampled_from([10**400, -(10**18), "1e999", "9999-12-31T23:59:59Z", "0001-01-01T00:00:00+14:00", [], {}, [[]]]),
)


def _sources(answers: dict[str, bytes]) -> list[SignalSource]:
    client = httpx.AsyncClient(
        transport=httpx.MockTransport(lambda request: httpx.Response(200, content=answers[request.url.path]))
    )
    web = WebReader(
        source="api",
        client=client,
        jitter=lambda: 0.0,
        limits=WebLimits(tries_max=1),
        requests=RequestLimit(1000, 60.0),
    )
    url, key = "http://api.test", ApiKey("key")
    return [
        ElectricityMaps(web=web, key=key, url=f"{url}/v3", provides=PROVIDES, with_forecast=True),
        WattTime(web=web, user=key, password=key, url=url, regions={"MA": "CAISO_NORTH"}),
        OpenMeteo(web=web, url=f"{url}/v1"),
        Prometheus(web=web, name="meters", url=url, queries={Signal.PV_POWER: PrometheusQuery("pv", "W")}),
    ]


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        yield from _places(child, (*path, key))


def _changed(value: Any, path: tuple[Any, ...], oddity: Any) -> Any:
    changed = copy.deepcopy(value)
    parent = changed
    for key in path[:-1]:
        parent = parent[key]
    parent[path[-1]] = oddity
    return changed


@pytest.mark.parametrize("name", ANSWERS.values())
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_no_single_odd_value_crashes_a_source_or_reaches_a_decision(name: str, data: st.DataObject) -> None:
    shape = recorded(name)
    path = data.draw(st.sampled_from(sorted(_places(shape), key=str)))
    answers = {at: json.dumps(recorded(other)).encode() for at, other in ANSWERS.items()}
    odd = json.dumps(_changed(shape, path, data.draw(oddities))).encode()
    answers |= {at: odd for at, other in ANSWERS.items() if other == name}
    asyncio.run(_check(answers))


async def _check(answers: dict[str, bytes]) -> None:
    clock = SimClock()
    for source in _sources(answers):
        feed = Feed(source=source, site=site(), pace=Pace(), limits=DEFAULT_LIMITS)
        await feed.refresh(clock)
        assert "plug-in error" not in feed.failure, feed.failure
        for signal in source.provides:
            reading = feed.candidate(signal, 0.0).reading
            for entry in (*([reading] if reading else []), *feed.outlook(signal)):
                number = entry.value.number
                assert math.isfinite(number)
                assert DEFAULT_LIMITS[signal].low <= number <= DEFAULT_LIMITS[signal].high
