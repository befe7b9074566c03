"""Does `harch policy prove --state` read the running fleet when no file is given?"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec
from click.testing import Result
from hub_double import HubDouble

from harch.sovereignty.jurisdiction_file import shipped_jurisdictions
from harch.sovereignty.tags import parse_tag

Harch = Callable[..., Result]


def page(*items: Any) -> dict[str, Any]:
    return {"items": list(items), "total": len(items), "pagination": {}}


def work(**spec: Any) -> dict[str, Any]:
    metadata = {"id": "wl_1", "name": "train", "created_at": "2026-01-02T03:04:05Z", "labels": {}}
    return {"id": "wl_1", "name": "train", "status": "running", "metadata": metadata, "spec": spec}


def test_the_work_of_a_running_hub_is_proven(harch: Harch, hub: HubDouble) -> None:
    hub.on("GET /hubs", page({"id": "dakar", "name": "Dakar", "status": "ready", "reachable": False}))
    hub.on("GET /workloads", page(work(countries_allowed=["MA"])))
    hub.on("GET /data", page())
    result = harch("policy", "prove", "--state", "--json")
    proof = json.loads(result.stdout)
    assert (result.exit_code, proof["status"], proof["failures"]) == (0, "proven", 5)


def test_work_that_reads_data_which_is_not_described_is_not_proven(harch: Harch, hub: HubDouble) -> None:
    hub.on("GET /hubs", page())
    hub.on("GET /workloads", page(work(data=["clinic"])))
    hub.on("GET /data", page())
    result = harch("policy", "prove", "--state")
    assert result.exit_code == 1
    assert "names data `clinic`" in result.stdout


def test_data_of_the_hub_is_part_of_its_state(harch: Harch, hub: HubDouble) -> None:
    tag = msgspec.to_builtins(parse_tag({"process_in": ["MA"], "rest_in": ["MA"]}, shipped_jurisdictions()))
    clinic = {"id": "data_1", "name": "clinic", "kind": "dataset", "tenant": "t", "tag": tag, "hubs": ["dakar"]}
    hub.on("GET /hubs", page())
    hub.on("GET /workloads", page(work(data=["clinic"])))
    hub.on("GET /data", page(clinic))
    result = harch("policy", "prove", "--state", "--json")
    assert (result.exit_code, json.loads(result.stdout)["status"]) == (4, "violated")  # a copy of it is in Senegal
