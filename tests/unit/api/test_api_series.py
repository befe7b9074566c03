"""The page that SENTINEL scrapes has the series of the public dashboards, and says what is modelled."""

from __future__ import annotations

import msgspec
import pytest

from harch.sentinel.collect.exposition import read_page
from harch.sentinel.model.labels import METRIC_NAME
from unit.api.conftest import Client
from unit.api.fake_hub import FakeHub


async def readings(client: Client) -> dict[str, list[tuple[dict[str, str], float]]]:
    answer = await client.get("/metrics/series")
    assert answer.status_code == 200
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for batch in read_page(answer.text, 0).samples:
        pairs = dict(batch.labels)
        value = batch.values[0]
        assert isinstance(value, float)
        found.setdefault(pairs.pop(METRIC_NAME), []).append((pairs, value))
    return found


async def test_the_page_has_the_series_of_the_public_dashboards(operator: Client) -> None:
    found = await readings(operator)
    assert {
        "harchos_hub_status",
        "harchos_hub_error_rate_percent",
        "harchos_hub_request_duration_seconds_bucket",
        "energy_consumption_watts",
        "energy_renewable_percent",
        "carbon_emissions_grams",
        "carbon_intensity_gco2_kwh",
        "carbon_intensity_forecast_gco2_kwh",
        "carbon_savings_grams",
        "sovereignty_compliance",
    } <= set(found)
    assert found["carbon_emissions_grams"][0][1] == 900.0
    assert found["harchos_inference_requests_total"][0][1] == 40.0
    assert [value for _, value in found["harchos_inference_duration_seconds_bucket"]] == [39.0, 40.0]
    by_hub = {pairs["hub"]: (pairs["type"], value) for pairs, value in found["carbon_intensity_gco2_kwh"]}
    assert by_hub == {"dakhla": ("measured", 630.0), "dakar": ("estimated", 512.0)}


@pytest.mark.parametrize(
    ("status", "expected"), [("ready", (1, 0)), ("draining", (0, 1)), ("cordoned", (0, 1)), ("error", (0, 0))]
)
async def test_a_hub_that_is_closed_on_purpose_says_so(
    operator: Client, hub: FakeHub, monkeypatch: pytest.MonkeyPatch, status: str, expected: tuple[int, int]
) -> None:
    shown = msgspec.structs.replace(hub.summary(), status=status)
    monkeypatch.setattr(hub, "summary", lambda: shown)
    found = await readings(operator)
    assert (found["harchos_hub_status"][0][1], found["harchos_hub_closed"][0][1]) == expected


async def test_modelled_gpus_say_so(operator: Client) -> None:
    found = await readings(operator)
    assert found["harchos_gpu_utilization_percent"]
    assert all(pairs["source"] == "modelled" for pairs, _ in found["harchos_gpu_power_draw_watts"])


@pytest.mark.parametrize("accept", ["text/plain", "application/openmetrics-text"])
async def test_all_lines_of_a_metric_of_the_gpus_stand_together(operator: Client, accept: str) -> None:
    page = (await operator.get("/metrics/series", headers={"accept": accept})).text
    names = [line.partition("{")[0] for line in page.splitlines() if line.startswith("harchos_gpu_")]
    runs = [name for name, before in zip(names, ["", *names], strict=False) if name != before]
    assert len(runs) == len(set(runs)) > 1


async def test_requests_are_counted_by_status_and_time(operator: Client) -> None:
    await operator.get("/health")
    await operator.get("/no-such-path")
    found = await readings(operator)
    counts = {pairs["code"]: value for pairs, value in found["harchos_hub_requests_total"]}
    assert (counts["2xx"], counts["4xx"]) == (1.0, 1.0)
    buckets = [value for _, value in found["harchos_hub_request_duration_seconds_bucket"]]
    assert buckets == sorted(buckets)
    assert buckets[-1] == 2.0


async def test_others_than_operators_do_not_see_it(user: Client) -> None:
    assert (await user.get("/metrics/series")).status_code == 403
