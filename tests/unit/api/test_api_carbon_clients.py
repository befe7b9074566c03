"""The public clients' questions about carbon: true figures in their shapes, and no figure that is made up."""

from __future__ import annotations

import httpx

from unit.api.fake_hub import FakeHub

Client = httpx.AsyncClient


async def test_zones_have_what_the_clients_need_and_say_what_is_not_known(viewer: Client) -> None:
    answer = (await viewer.get("/carbon/intensity")).json()
    assert (answer["total"], [zone["zone"] for zone in answer["zones"]]) == (2, ["MA", "SN"])
    morocco = (await viewer.get("/carbon/intensity/ma")).json()
    assert (morocco["carbon_intensity_gco2_kwh"], morocco["zone_name"], morocco["estimated"]) == (630, "Morocco", False)
    assert (morocco["renewable_known"], morocco["renewable_percentage"], morocco["fossil_percentage"]) == (False, 0, 0)
    assert morocco["datetime"] == "2026-03-01T08:00:00Z"
    unknown = await viewer.get("/carbon/intensity/FR")
    assert (unknown.status_code, unknown.json()["code"]) == (404, "E0310")


async def test_a_forecast_has_quarters_of_an_hour_and_both_dialects(viewer: Client) -> None:
    by_query = (await viewer.get("/carbon/forecast/MA", params={"hours": 6})).json()
    by_header = (await viewer.get("/carbon/forecast/MA", headers={"x-query-hours": "6"})).json()
    assert by_query == by_header
    assert len(by_query["forecast"]) == 24
    point = by_query["forecast"][1]
    assert (point["datetime"], point["timestamp"]) == ("2026-03-01T08:15:00Z", "2026-03-01T08:15:00Z")
    assert (point["carbon_intensity"], point["is_green_window"], by_query["estimated"]) == (600, False, True)
    assert len((await viewer.get("/carbon/forecast/MA", headers={"x-query-hours": "none"})).json()["forecast"]) == 96


async def test_the_cleanest_hub_that_has_the_gpus_is_advised(viewer: Client) -> None:
    best = (await viewer.post("/carbon/optimal-hub", json={"gpu_count": 1})).json()
    assert (best["action"], best["recommended_hub_id"], best["carbon_intensity_gco2_kwh"]) == (
        "schedule_now",
        "dakar",
        512,
    )
    assert best["estimated_carbon_saved_kg"] > 0
    at_home = (await viewer.post("/carbon/optimal-hub", json={"region": "morocco"})).json()
    assert (at_home["recommended_hub_id"], at_home["hub_region"]) == ("dakhla", "morocco")
    none = (await viewer.post("/carbon/optimal-hub", json={"gpu_count": 99999})).json()
    assert (none["action"], none["recommended_hub_id"]) == ("no_suitable_hub", None)


async def test_optimize_compares_with_this_hub_at_once(viewer: Client) -> None:
    ask = {"workload_name": "job", "gpu_count": 2, "estimated_duration_hours": 10, "cpu_cores": 4, "memory_gb": 16.0}
    found = (await viewer.post("/carbon/optimize", json=ask)).json()
    assert (found["action"], found["selected_hub_id"], found["workload_name"]) == ("schedule_now", "dakar", "job")
    assert found["carbon_saved_kg"] == found["baseline_carbon_kg"] - found["actual_carbon_kg"] > 0
    strict = (await viewer.post("/carbon/optimize", json=ask | {"carbon_max_gco2": 10})).json()
    assert (strict["action"], strict["selected_hub_id"], strict["carbon_saved_kg"]) == ("reject", None, 0)


async def test_the_terraform_client_makes_reads_changes_and_deletes_the_schedule_of_a_workload(
    user: Client, viewer: Client, hub: FakeHub
) -> None:
    workload = (await user.post("/workloads", json={"name": "train"})).json()["id"]
    body = {
        "workload_id": workload,
        "enabled": True,
        "max_carbon_intensity": 300,
        "preferred_region": "morocco",
        "defer_when_high_carbon": True,
        "green_window_only": False,
        "sovereignty": "strict",
    }
    assert (await viewer.post("/carbon/optimize", json=body)).status_code == 403
    made = await user.post("/carbon/optimize", json=body)
    assert made.status_code == 201
    assert {name: made.json()[name] for name in body} == body
    assert None not in made.json().values()
    wishes = hub.store[workload].spec.carbon
    assert (wishes.aware, wishes.slack_s, wishes.g_per_kwh_max) == (True, 86400, None)
    path = f"/carbon/optimize/{made.json()['id']}"
    assert (await viewer.get(path)).json() == made.json()
    strict = (await user.put(path, json=body | {"green_window_only": True})).json()
    assert (strict["green_window_only"], hub.store[workload].spec.carbon.g_per_kwh_max) == (True, 300)
    assert (await user.delete(path)).json()["success"]
    assert hub.store[workload].spec.carbon.wants_plan is False
    assert (await viewer.get("/carbon/optimize/sched_none")).status_code == 404


async def test_metrics_come_from_the_ledger(viewer: Client, hub: FakeHub) -> None:
    found = (await viewer.get("/carbon/metrics", headers={"x-period-days": "7"})).json()
    assert (found["total_energy_kwh"], found["total_co2_grams"], found["total_carbon_saved_kg"]) == (2, 900, 0.1)
    assert (found["total_workloads_optimized"], found["avg_intensity"], found["best_hub_id"]) == (3, 450, "dakar")
    assert (hub.carbon.asked.tenant, hub.carbon.asked.since is not None) == ("acme", True)
    page = (await viewer.get("/carbon/dashboard")).json()
    assert (len(page["hub_intensities"]), page["optimization_log"], page["metrics"]["avg_intensity"]) == (2, [], 450)
