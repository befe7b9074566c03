"""What the API tells about power: every hub, every figure with its source, and refusals that say what to do."""

from __future__ import annotations

import httpx

Client = httpx.AsyncClient


async def test_every_hub_is_listed_with_its_figures_or_the_reason_for_none(viewer: Client) -> None:
    answer = (await viewer.get("/carbon/now")).json()
    own, told, silent = answer["items"]
    assert (answer["total"], own["own"], own["power"]["figures"][0]["evidence"]) == (3, True, "measured")
    assert told["power"]["figures"][0]["evidence"] == "estimated"
    assert (silent["power"], silent["error"]) == (None, "never heard")


async def test_a_forecast_is_of_the_asked_hub_unless_another_is_named(viewer: Client) -> None:
    own = (await viewer.get("/carbon/forecast", params={"hours": 5})).json()
    assert (own["hub_id"], len(own["hours"]), own["evidence"]) == ("dakhla", 5, "estimated")
    other = (await viewer.get("/carbon/forecast", params={"hub": "Dakar"})).json()
    assert (other["hub_id"], len(other["hours"])) == ("dakar", 96)


async def test_what_cannot_be_told_is_refused_with_a_reason(viewer: Client, nobody: Client) -> None:
    for params, status, code in (
        ({"hub": "atlantis"}, 404, "E0305"),
        ({"hub": "abidjan"}, 503, "E0801"),
        ({"hours": "97"}, 400, "E0201"),
    ):
        answer = await viewer.get("/carbon/forecast", params=params)
        assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert (await nobody.get("/carbon/now")).status_code == 401
