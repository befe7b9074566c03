"""The routes of the Carbon Aware SDK."""

from __future__ import annotations

import httpx

Client = httpx.AsyncClient


async def test_locations_are_the_hubs(viewer: Client) -> None:
    found = (await viewer.get("/locations")).json()
    assert {"dakhla", "dakar"} <= set(found)
    assert set(found["dakhla"]) == {"name", "latitude", "longitude"}


async def test_the_present_of_every_location_and_the_best_of_them(viewer: Client) -> None:
    params = {"location": ["dakhla", "SN"]}
    found = (await viewer.get("/emissions/bylocations", params=params)).json()
    assert [(one["location"], one["rating"], one["estimated"]) for one in found] == [
        ("dakhla", 630, False),
        ("SN", 512, True),
    ]
    assert (await viewer.get("/emissions/bylocations/best", params=params)).json() == found[1:]
    assert (await viewer.get("/emissions/bylocation", params={"location": "MA"})).json()[0]["rating"] == 630


async def test_the_past_is_told_by_the_hub_itself_and_others_are_pointed_at(viewer: Client) -> None:
    span = {"time": "2026-03-01T09:00:00Z", "toTime": "2026-03-01T11:00:00Z"}
    found = (await viewer.get("/emissions/bylocation", params={"location": "dakhla", **span})).json()
    assert [one["rating"] for one in found] == [600, 700]
    other = await viewer.get("/emissions/bylocation", params={"location": "dakar", **span})
    assert (other.status_code, other.json()["error"]["meta"]["hub_id"]) == (404, "dakar")


async def test_means_over_a_time_one_by_one_and_in_a_batch(viewer: Client) -> None:
    ask = {"location": "dakhla", "startTime": "2026-03-01T08:00:00Z", "endTime": "2026-03-01T10:00:00Z"}
    mean = (await viewer.get("/emissions/average-carbon-intensity", params=ask)).json()
    assert mean["carbonIntensity"] == 550
    batch = await viewer.post("/emissions/average-carbon-intensity/batch", json=[ask, ask])
    assert batch.json() == [mean, mean]
    unknown = ask | {"startTime": "2020-01-01T00:00:00Z", "endTime": "2020-01-02T00:00:00Z"}
    assert (await viewer.get("/emissions/average-carbon-intensity", params=unknown)).json()["code"] == "E0820"
    for wrong in ({"startTime": "noon"}, {"startTime": "2026-03-01T08:00:00"}):
        answer = await viewer.get("/emissions/average-carbon-intensity", params=ask | wrong)
        assert (answer.status_code, answer.json()["code"]) == (400, "E0201")


async def test_a_forecast_names_the_window_with_the_lowest_mean(viewer: Client) -> None:
    params = {"location": "dakhla", "windowSize": 90, "dataEndAt": "2026-03-01T14:00:00Z"}
    (found,) = (await viewer.get("/emissions/forecasts/current", params=params)).json()
    assert (found["windowSize"], len(found["forecastData"])) == (120, 5)
    (best,) = found["optimalDataPoints"]
    assert (best["timestamp"], best["value"], best["duration"]) == ("2026-03-01T10:00:00Z", 300, 120)
    past = {"location": "dakhla", "dataEndAt": "2020-01-01T00:00:00Z"}
    assert (await viewer.get("/emissions/forecasts/current", params=past)).json()["code"] == "E0201"
