"""Energy over HTTP: our own routes, and the public client's questions, checked with the public client's own models."""

from __future__ import annotations

from datetime import timedelta

import httpx
import pytest
from harchos.models.energy import EnergyConsumption, EnergyReport, EnergySummary, GreenWindow

from harch.api.dialects.energy import energy_windows
from harch.base.errors import HarchError
from harch.wire.carbon import Figure, ForecastHour, GridForecast, HubPower
from unit.api.fake_energy import AT
from unit.api.fake_hub import FakeHub

Client = httpx.AsyncClient


async def test_plan_and_prices_are_for_all_and_bids_and_book_for_operators(viewer: Client, operator: Client) -> None:
    plan = (await viewer.get("/energy/plan")).json()
    assert (plan["modelled"], plan["steps"][0]["grid_kw"], plan["standing"]["rule_emitted_kg"]) == (True, 6, 2)
    prices = (await viewer.get("/energy/prices")).json()
    assert (prices["shadow_per_t"], prices["steps"][0]["total_per_mwh"]) == (None, 135.4)
    assert (await operator.get("/energy/bids")).json()["items"][0]["state"] == "planned"
    assert (await operator.get("/energy/book", params={"days": 7})).json()["paper"] is True
    for path in ("/energy/bids", "/energy/book"):
        refused = await viewer.get(path)
        assert (refused.status_code, refused.json()["code"]) == (403, "E0103")


async def test_days_of_the_book_are_bounded_and_reach_the_hub(hub: FakeHub, operator: Client) -> None:
    await operator.get("/energy/book", params={"days": 90})
    assert hub.energy.days_asked == 90
    assert (await operator.get("/energy/book", params={"days": 100000})).status_code == 400


async def test_why_there_is_no_plan_reaches_whoever_asks(hub: FakeHub, viewer: Client) -> None:
    hub.energy.failure = HarchError("E0340", "load_kwh: lacks 3 kW", hint="raise `import_kw_max`")
    refused = await viewer.get("/energy/plan")
    assert (refused.status_code, refused.json()["code"]) == (409, "E0340")


async def test_the_public_clients_shapes(user: Client, hub: FakeHub) -> None:
    made = (await user.post("/workloads", json={"name": "job", "command": ["true"]})).json()
    used = EnergyConsumption.model_validate((await user.get(f"/energy/consumption/{made['id']}")).json())
    assert (used.kwh_consumed, used.co2_grams, used.pue) == (2, 900, 1.2)
    assert hub.carbon.asked.job == made["id"]
    report = EnergyReport.model_validate(
        (await user.get("/energy/reports/dakhla", params={"resource_type": "hub"})).json()
    )
    assert (report.resource_type, report.region) == ("hub", "morocco")
    assert report.recommendations
    summary = EnergySummary.model_validate((await user.get("/energy/summary", params={"region": "morocco"})).json())
    assert (summary.total_kwh, summary.average_pue) == (2, 1.2)
    windows = (await user.get("/energy/green-windows")).json()
    assert isinstance(windows, list)
    for window in windows:
        GreenWindow.model_validate(window)


async def test_a_period_is_handed_to_the_ledger_and_one_that_ends_before_it_begins_is_refused(
    viewer: Client, hub: FakeHub
) -> None:
    params = {"period_start": "2026-02-01T00:00:00", "period_end": "2026-02-08T00:00:00+00:00"}
    week = (await viewer.get("/energy/summary", params=params)).json()
    assert (week["period_start"], week["period_end"]) == ("2026-02-01T00:00:00Z", "2026-02-08T00:00:00Z")
    assert (hub.carbon.asked.since.day, hub.carbon.asked.until.day) == (1, 8)
    backwards = {"period_start": params["period_end"], "period_end": "2026-02-01T00:00:00Z"}
    assert (await viewer.get("/energy/summary", params=backwards)).status_code == 400


async def test_what_is_not_here_is_not_made_up(viewer: Client) -> None:
    elsewhere = await viewer.get("/energy/summary", params={"region": "senegal"})
    assert (elsewhere.status_code, elsewhere.json()["code"]) == (404, "E0310")
    assert (await viewer.get("/energy/consumption/nothing")).json()["code"] == "E0301"


def power(load_kw: float) -> HubPower:
    readings = (
        Figure(signal="onsite-lifecycle", value=20.0),
        Figure(signal="pv-power", value=5.0),
    )
    return HubPower(hub_id="dakhla", country="MA", grid_zone="MA", at=AT, load_kw=load_kw, readings=readings)


def forecast(*onsite_kw: float) -> GridForecast:
    hours = tuple(
        ForecastHour(
            at=AT + timedelta(hours=n), g_per_kwh=630, low=600, high=660, low_half=620, high_half=640, onsite_kw=kw
        )
        for n, kw in enumerate(onsite_kw)
    )
    return GridForecast(hub_id="dakhla", grid_zone="MA", made_at=AT, hours=hours, model="persistence")


def test_hours_that_own_plants_supply_are_clean_windows() -> None:
    first, second = energy_windows(forecast(0, 10, 9, 0, 10), power(10.0), None)
    assert (first.start.hour, first.end.hour, second.start.hour) == (9, 11, 12)
    assert first.renewable_percentage == pytest.approx(95)
    assert first.estimated_co2_grams_per_kwh == pytest.approx((20 + 0.9 * 20 + 0.1 * 630) / 2)
    assert (first.energy_sources, second.energy_sources) == (("solar", "grid_mix"), ("solar",))
    assert [window.start.hour for window in energy_windows(forecast(0, 10, 9), power(10.0), 100.0)] == [9]
    assert energy_windows(forecast(0, 0), power(10.0), None) == []
