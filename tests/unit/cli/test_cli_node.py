"""`harch node`, `harch defrag`, and what `why`, `gpus` and `ps` tell of placement."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import Result
from hub_double import HubDouble

Harch = Callable[..., Result]

NODE = "dakhla-r01-n01"


def node(**more: Any) -> dict[str, Any]:
    base = {"id": NODE, "rack_id": "dakhla-r01", "row": "A", "model": "h100-80gb", "gpus_total": 8, "gpus_free": 7}
    return base | more


def page(*items: Any) -> dict[str, Any]:
    return {"items": list(items), "total": len(items), "pagination": {}}


def plan(**more: Any) -> dict[str, Any]:
    move = {
        "workload_id": "wl_1",
        "name": "small",
        "gpus": 1,
        "from_nodes": [NODE],
        "to_nodes": ["dakhla-r01-n02"],
        "lost_gpu_s": 30,
    }
    base = {
        "workload_id": "wl_2",
        "possible": True,
        "sentence": "moving 1 (wl_1) frees one node for wl_2; 30 GPU-seconds are repeated",
        "pays": True,
        "level": "node",
        "nodes": [NODE],
        "lost_gpu_s": 30,
        "moves": [move],
    }
    return base | more


def test_nodes_are_listed_with_what_is_odd(hub: HubDouble, harch: Harch) -> None:
    condition = {"kind": "cordoned", "subject": NODE, "value": 1, "why": "new memory"}
    hub.on("GET /nodes", page(node(cordoned=True, gpus_unhealthy=1, conditions=[condition])))
    result = harch("node", "ls", "--rack", "dakhla-r01", "--cordoned")
    assert result.exit_code == 0, result.output
    assert "cordoned" in result.stdout
    assert "7 of 8" in result.stdout
    assert f"{NODE} cordoned (new memory)" in result.stdout
    assert hub.asked[0].params == {"rack": "dakhla-r01", "cordoned": "true", "page": "1", "per_page": "100"}
    assert json.loads(harch("node", "ls", "--json").stdout)["total"] == 1


def test_nodes_are_cordoned_opened_and_drained(hub: HubDouble, harch: Harch) -> None:
    hub.on(f"PATCH /nodes/{NODE}", node(cordoned=True, tasks=1), node())
    hub.on(f"POST /nodes/{NODE}/drain", node(cordoned=True, tasks=2))
    hub.on(f"GET /nodes/{NODE}", node(cordoned=True, tasks=0))
    assert harch("node", "cordon", NODE, "--reason", "fan").stdout == f"cordoned {NODE}; 1 task still running\n"
    assert hub.asked[0].body == {"cordoned": True, "why": "fan"}
    assert harch("node", "uncordon", NODE).stdout == f"reopened {NODE}; 7 of 8 GPUs free\n"
    assert harch("node", "drain", NODE).stdout == f"drained {NODE}; 2 tasks still there\n"
    assert harch("node", "drain", NODE, "--wait").stdout == f"drained {NODE}; 0 tasks still there\n"


def test_a_gpu_is_marked_one_way_or_the_other(hub: HubDouble, harch: Harch) -> None:
    gpu = {"id": "g1", "hub_id": "dakhla", "node_id": NODE, "model": "h100-80gb", "status": "unavailable"}
    hub.on("PATCH /gpus/g1", gpu)
    assert harch("node", "mark", "g1", "--unhealthy").stdout == "marked g1 as unhealthy, now unavailable\n"
    assert hub.asked[0].body == {"healthy": False, "why": ""}
    harch("node", "mark", "g1", "--healthy")
    assert hub.asked[1].body["healthy"] is True
    assert harch("node", "mark", "g1").exit_code == 2


@pytest.mark.parametrize(("word", "value"), [("35.5", 35.5), ("full", None)])
def test_cooling_is_told_in_kilowatts_or_full(hub: HubDouble, harch: Harch, word: str, value: float | None) -> None:
    hub.on("PATCH /cooling-zones/hall-1", {"id": "hall-1", "heat_kw_max": 35.5, "cooling_kw_free": 4})
    result = harch("node", "cool", "hall-1", word)
    assert result.stdout == "hall-1 removes 35.5 kW now; 4.0 kW to spare\n"
    assert hub.asked[0].body["heat_kw_max"] == value


def test_cooling_zones_are_listed(hub: HubDouble, harch: Harch) -> None:
    hub.on("GET /cooling-zones", page({"id": "hall-1", "heat_kw_max": 40, "heat_kw_built": 60, "racks": ["r1"]}))
    assert "hall-1  40" in harch("node", "cool").stdout
    assert harch("node", "cool", "hall-1").exit_code == 2
    assert harch("node", "cool", "hall-1", "much").exit_code == 2


def test_a_link_is_that_of_the_node_or_the_rack(hub: HubDouble, harch: Harch) -> None:
    hub.on("GET /racks", page({"id": "dakhla-r01"}))
    hub.on("PATCH /racks/dakhla-r01", {"id": "dakhla-r01", "uplink_factor": 0.5})
    hub.on(f"PATCH /nodes/{NODE}", node(nvlink_factor=0.25))
    assert harch("node", "link", "dakhla-r01", "0.5").stdout == "the uplink of dakhla-r01 works at 0.5\n"
    assert harch("node", "link", NODE, "0.25").stdout == f"the NVLink of {NODE} works at 0.25\n"
    assert hub.asked[-1].body["nvlink_factor"] == 0.25


def test_the_topology_is_labelled_as_modelled(hub: HubDouble, harch: Harch) -> None:
    island = {"island": 0, "gpu_ids": ["g0", "g1"], "gpus_idle": 1, "gb_per_s": 360}
    rack = {"rack_id": "dakhla-r01", "row": "A", "nodes": [{"node_id": NODE, "islands": [island]}]}
    between = {"rack": 86, "row": 46}
    hub.on("GET /topology", {"hub_id": "dakhla", "racks": [rack], "between_gb_per_s": between})
    hub.answers["GET /topology"][0][1]["bandwidth_source"] = "modelled"
    shown = harch("node", "topology").stdout
    assert "1 of 2" in shown
    assert "rack 86, row 46; modelled" in shown
    assert json.loads(harch("node", "topology", "--json").stdout)["between_gb_per_s"] == between


def test_a_plan_shows_moves_room_and_cost(hub: HubDouble, harch: Harch) -> None:
    hub.on("POST /workloads/large/defragment", plan())
    result = harch("defrag", "large")
    assert result.exit_code == 0
    assert "small" in result.stdout
    assert f"frees {NODE} for wl_2" in result.stdout
    assert "30 GPU-seconds are repeated; worth it" in result.stdout
    assert [asked.body for asked in hub.asked] == [{"apply": False}]


def test_moves_are_made_only_after_a_yes(hub: HubDouble, harch: Harch, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.on("POST /workloads/large/defragment", plan(pays=False))
    assert "pass --yes" in harch("defrag", "large", "--apply").stderr
    assert hub.asked == []
    monkeypatch.setattr("harch.cli.options.is_interactive", lambda: True)
    assert harch("defrag", "large", "--apply", stdin="n\n").exit_code == 1
    assert len(hub.asked) == 1
    result = harch("defrag", "large", "--apply", "-y")
    assert "moving: 1" in result.stdout
    assert "not worth it" in result.stdout
    assert hub.asked[-1].body == {"apply": True}
    assert harch("defrag", "large", "--apply", "--json").exit_code == 2
    assert json.loads(harch("defrag", "large", "--apply", "-y", "--json").stdout)["moves"][0]["name"] == "small"


def test_no_plan_is_infeasible(hub: HubDouble, harch: Harch) -> None:
    hub.on("POST /workloads/large/defragment", {"workload_id": "wl_2", "possible": False, "sentence": "no moves help"})
    result = harch("defrag", "large", "--apply", "-y")
    assert (result.exit_code, result.stdout) == (3, "no moves help\n")


def test_why_tells_turn_reservation_fix_score_and_speed(hub: HubDouble, harch: Harch) -> None:
    rules = [{"rule": "capacity", "passed": False, "detail": "0 fit", "nearest_fix": "with 8 more GPUs it would start"}]
    base = {"subject": "wl_1", "verdict": "must_wait", "sentence": "waits"}
    own = {"hub_id": "dakhla", "country": "MA", "eligible": False, "source": "live", "age_s": 0.0, "rules": rules}
    waiting = {**base, "turn": "2 of 3 that wait", "kept_free": "4 nodes are kept for it", "hubs": [own]}
    placed = {**base, "verdict": "placed", "decision": {"fit": 0.5, "price": -0.0}, "predicted_slowdown": 1.25}
    hub.on("GET /workloads/one/why", waiting)
    hub.on("GET /workloads/two/why", placed)
    shown = harch("why", "one").stdout
    assert "turn        2 of 3 that wait" in shown
    assert "kept free   4 nodes are kept for it" in shown
    assert "would help  with 8 more GPUs it would start" in shown
    shown = harch("why", "two").stdout
    assert "score       fit 0.5, price 0" in shown
    assert "1.25x the time of the best possible placement (modelled)" in shown


def test_gpus_and_workloads_show_shares_health_and_class(hub: HubDouble, harch: Harch) -> None:
    gpu = {"id": "g1", "hub_id": "dakhla", "node_id": NODE, "model": "h100-80gb", "status": "allocated"}
    hub.on("GET /gpus", page({**gpu, "held_milli": 250, "healthy": False}))
    shown = harch("gpus").stdout
    assert "0.25" in shown
    assert "unhealthy" in shown
    workload = {
        "id": "wl_1",
        "name": "share",
        "status": "running",
        "scheduling_class": "inference",
        "metadata": {"id": "wl_1", "name": "share", "created_at": "2026-01-02T03:04:05Z"},
        "spec": {"resources": {"gpus": 1, "gpu_fraction": 0.25}},
    }
    hub.on("GET /workloads", page(workload))
    shown = harch("ps").stdout
    assert "inference" in shown
    assert "0.25" in shown
