"""What the API tells about power: every hub, every figure with its source, and refusals that say what to do."""

from __future__ import annotations

import httpx

from unit.api.fake_hub import FakeHub

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
    lost = (await viewer.get("/carbon/forecast", params={"hub": "mars"})).json()
    assert "use one of: dakhla" in lost["error"]["detail"] + lost.get("details", "")
    assert (await nobody.get("/carbon/now")).status_code == 401


async def test_the_plan_of_a_hub_shows_each_tenant_its_own_budget(viewer: Client, operator: Client) -> None:
    own = (await viewer.get("/carbon/plan")).json()
    every = (await operator.get("/carbon/plan")).json()
    assert own["held"] == 2
    assert every["tenant_g_left"] == {"all": 5}
    assert "all" not in own["tenant_g_left"]


async def test_people_see_the_report_of_their_own_tenant_and_operators_of_all(
    user: Client, operator: Client, hub: FakeHub
) -> None:
    assert (await user.get("/carbon/report")).json()["not_booked_kwh"] == 0.5
    assert (hub.carbon.asked.tenant, hub.carbon.asked.by) == ("acme", "tenant")
    other = await user.get("/carbon/report", params={"tenant": "globex"})
    assert (other.status_code, other.json()["code"]) == (403, "E0103")
    await operator.get("/carbon/report", params={"by": "month", "data": "data_1", "month": "2026-03"})
    asked = hub.carbon.asked
    assert (asked.tenant, asked.by, asked.data, asked.month) == (None, "month", "data_1", "2026-03")


async def test_a_report_is_refused_for_what_is_no_month_and_no_workload(operator: Client) -> None:
    for params, code in (({"month": "march"}, "E0201"), ({"workload": "none"}, "E0301"), ({"by": "colour"}, "E0201")):
        assert (await operator.get("/carbon/report", params=params)).json()["code"] == code


async def test_a_report_on_what_nobody_knows_is_an_error_and_not_empty(operator: Client, user: Client) -> None:
    for params, code in (
        ({"data": "censsus"}, "E0906"),
        ({"tenant": "acmee"}, "E0350"),
        ({"workload": "wl_00000000000000000000000000"}, "E0301"),
        ({"month": "2031-01"}, "E0201"),
    ):
        assert (await operator.get("/carbon/report", params=params)).json()["code"] == code
    assert (await user.get("/carbon/report", params={"data": "censsus"})).json()["code"] == "E0906"


async def test_a_report_takes_the_name_of_data(operator: Client, hub: FakeHub) -> None:
    await operator.get("/carbon/report", params={"data": "census"})
    assert hub.carbon.asked.data == "data_1"


async def test_why_takes_names_of_work_here_and_ids_of_work_that_ran_here(user: Client, operator: Client) -> None:
    created = (await user.post("/workloads", json={"name": "job"})).json()
    assert (await user.get("/carbon/why/job")).json()["workload_id"] == created["id"]
    elsewhere = (await operator.get("/carbon/why/wl_of_another_hub")).json()
    assert elsewhere["workload_id"] == "wl_of_another_hub"
    for unknown in ("nobody", "wl_00000000000000000000000000"):
        assert (await operator.get(f"/carbon/why/{unknown}")).status_code == 404


async def test_operators_get_the_whole_ledger_line_by_line_and_others_do_not(user: Client, operator: Client) -> None:
    whole = await operator.get("/carbon/ledger")
    assert whole.content == b"row 1\nrow 2\nrow 3\n"
    assert whole.headers["content-type"] == "application/x-ndjson"
    assert (await user.get("/carbon/ledger")).status_code == 403
