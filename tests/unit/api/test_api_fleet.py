from __future__ import annotations

import pytest

from unit.api.conftest import Client


async def test_hubs_are_shown_with_the_age_of_their_figures(viewer: Client) -> None:
    page = (await viewer.get("/hubs")).json()
    own, near, never = page["items"]
    assert page["total"] == 3
    assert (own["own"], own["spec"]["region"], own["capacity"]["total_gpus"]) == (True, "morocco", 640)
    assert own["metadata"]["labels"]["provenance"] == "modelled"
    assert (near["age_s"], near["endpoint"]) == (1.5, "http://127.0.0.1:7704")
    assert (never["status"], never["error"], "capacity" in never) == ("offline", "refused", False)


@pytest.mark.parametrize(
    ("params", "ids"),
    [
        ({"region": "senegal"}, ["dakar"]),
        ({"region": "MA"}, ["dakhla"]),
        ({"status": "offline"}, ["abidjan"]),
        ({"tier": "enterprise"}, []),
        ({"label.country": "SN"}, ["dakar"]),
        ({"per_page": "1", "page": "2"}, ["dakar"]),
    ],
)
async def test_hubs_can_be_filtered(viewer: Client, params: dict[str, str], ids: list[str]) -> None:
    assert [hub["id"] for hub in (await viewer.get("/hubs", params=params)).json()["items"]] == ids


async def test_a_hub_is_found_by_id_or_name(viewer: Client) -> None:
    assert (await viewer.get("/hubs/Dakar")).json()["id"] == "dakar"
    capacity = (await viewer.get("/hubs/dakhla/capacity")).json()
    assert capacity["total_cpu_cores"] == 640
    assert all(
        capacity[f"available_{what}"] <= capacity[f"total_{what}"] for what in ("gpus", "cpu_cores", "memory_gb")
    )


async def test_the_terraform_client_gets_hubs_flat(terraform: Client) -> None:
    listed = (await terraform.get("http://hub/hubs", params={"region": "morocco"})).json()
    assert list(listed) == ["hubs"]
    assert listed["hubs"][0]["capacity"] == 640
    assert (await terraform.get("http://hub/hubs/dakhla")).json() == listed["hubs"][0]


async def test_hubs_cannot_be_changed_over_the_api(operator: Client, user: Client) -> None:
    answer = await operator.patch("/hubs/dakhla", json={"action": "scale", "target_gpu_count": 3})
    assert "fleet file" in answer.json()["message"]
    assert (await user.delete("/hubs/dakhla")).status_code == 403


@pytest.mark.parametrize(
    ("params", "count"),
    [({}, 8), ({"status": "allocated"}, 1), ({"model": "h100"}, 8), ({"model": "a100"}, 0), ({"hub": "dakhla"}, 8)],
)
async def test_gpus_are_listed_one_by_one(viewer: Client, params: dict[str, str], count: int) -> None:
    page = (await viewer.get("/gpus", params=params)).json()
    assert (len(page["items"]), page["total"], page["pagination"]["total"]) == (count, count, count)


async def test_the_gpus_of_another_hub_are_asked_of_that_hub(viewer: Client) -> None:
    answer = await viewer.get("/gpus", params={"hub": "dakar"})
    assert (answer.status_code, answer.json()["error"]["meta"]["url"]) == (404, "http://127.0.0.1:7704")


async def test_regions_are_the_countries_that_hubs_stand_in(viewer: Client) -> None:
    listed = (await viewer.get("/regions")).json()
    assert [region["code"] for region in listed["items"]] == ["morocco", "senegal"]
    assert listed["regions"] == listed["items"]
    assert [region["avg_carbon_intensity"] for region in listed["items"]] == [630, 512]
    assert "avg_renewable_percentage" not in listed["items"][0]  # nobody knows it: 0 would be a claim
    assert (await viewer.get("/regions/MA")).json() == (await viewer.get("/regions/morocco")).json()
    assert (await viewer.get("/regions", params={"country": "SN"})).json()["total"] == 1
    for params, codes in (
        ({"max_carbon_intensity": 600}, ["senegal"]),
        ({"max_carbon_intensity": 50}, []),
        ({"min_renewable_percentage": 1}, []),
    ):
        assert [region["code"] for region in (await viewer.get("/regions", params=params)).json()["items"]] == codes


async def test_platform_figures_sum_what_is_known(viewer: Client) -> None:
    readings = (await viewer.get("/monitoring/metrics")).json()
    assert (readings["total_hubs"], readings["total_gpus"], readings["available_gpus"]) == (3, 854, 814)
    assert readings["avg_pue"] == pytest.approx(1.2)
    detailed = (await viewer.get("/monitoring/health/detailed")).json()
    assert (detailed["status"], detailed["database_status"]) == ("healthy", "connected")
    assert detailed["total_endpoints"] > 30


async def test_the_summary_names_no_tenant(nobody: Client) -> None:
    answer = await nobody.get("/summary")
    assert answer.json()["gpus_total"] == 640
    assert "acme" not in answer.text


async def test_metrics_are_prometheus_text(nobody: Client) -> None:
    answer = await nobody.get("http://hub/metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert "harch_up 1" in answer.text
