"""What a hub has never heard of is an error in every question about it: an empty answer reads as an all-clear."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from harch.api.app import create_app
from harch.hub.views import Role
from unit.sovereignty_audit.test_hub_audit import open_hub

NO_WORK = "wl_00000000000000000000000000"

UNKNOWN = [
    ("/audit?subject=nosuch", "E0351"),
    ("/audit?data=nosuch", "E0906"),
    ("/audit/checkpoints?hub=nosuch", "E0305"),
    ("/events?subject=nosuch", "E0351"),
    ("/carbon/forecast?hub=nosuch", "E0305"),
    ("/carbon/forecast/nosuch", "E0310"),
    ("/carbon/intensity/nosuch", "E0310"),
    ("/carbon/optimize/nosuch", "E0301"),
    ("/carbon/report?data=nosuch", "E0906"),
    ("/carbon/report?month=2031-01", "E0201"),
    ("/carbon/report?tenant=nosuch", "E0350"),
    (f"/carbon/report?workload={NO_WORK}", "E0301"),
    ("/carbon/report?workload=nosuch", "E0301"),
    (f"/carbon/why/{NO_WORK}", "E0301"),
    ("/carbon/why/nosuch", "E0301"),
    ("/cooling-zones/nosuch", "E0311"),
    ("/data/nosuch", "E0906"),
    ("/data/nosuch/lineage", "E0906"),
    ("/data/nosuch/where", "E0906"),
    ("/data?kind=nosuch", "E0201"),
    ("/emissions/average-carbon-intensity?location=nosuch&startTime=2026-01-01T00:00Z&endTime=2026-01-02T00:00Z", ""),
    ("/emissions/bylocation?location=nosuch", "E0310"),
    ("/emissions/bylocations/best?location=nosuch", "E0310"),
    ("/emissions/bylocations?location=nosuch", "E0310"),
    ("/emissions/forecasts/current?location=nosuch", "E0310"),
    (f"/energy/consumption/{NO_WORK}", "E0301"),
    ("/energy/consumption/nosuch", "E0301"),
    ("/energy/green-windows?region=FR", "E0310"),
    ("/energy/green-windows?region=nosuch", "E0901"),
    (f"/energy/reports/{NO_WORK}", "E0301"),
    ("/energy/summary?region=nosuch", "E0901"),
    ("/gpus?hub=nosuch", "E0305"),
    ("/gpus?model=nosuch", "E0311"),
    ("/gpus?status=nosuch", "E0201"),
    ("/hubs/nosuch", "E0305"),
    ("/hubs/nosuch/capacity", "E0305"),
    ("/hubs/nosuch/closure", "E0305"),
    ("/hubs?region=nosuch", "E0901"),
    ("/hubs?status=nosuch", "E0201"),
    ("/hubs?tier=nosuch", "E0201"),
    ("/nodes/nosuch", "E0311"),
    ("/nodes?model=nosuch", "E0311"),
    ("/nodes?rack=nosuch", "E0311"),
    ("/nodes?row=nosuch", "E0311"),
    ("/pipelines/nosuch", "E0710"),
    ("/pipelines/nosuch/approvals", "E0710"),
    ("/pipelines/nosuch/dead", "E0710"),
    ("/pipelines/nosuch/logs?worker=act-0", "E0710"),
    ("/regions/nosuch", "E0310"),
    ("/regions?country=nosuch", "E0901"),
    ("/workloads/nosuch", "E0301"),
    ("/workloads/nosuch/logs", "E0301"),
    ("/workloads/nosuch/why", "E0301"),
    ("/workloads?hub_id=nosuch", "E0305"),
    ("/workloads?scope=federation&hub_id=nosuch", "E0305"),
    ("/workloads?scope=federation&tenant=nosuch", "E0350"),
    ("/workloads?status=nosuch", "E0201"),
    ("/workloads?tenant=nosuch", "E0350"),
    ("/workloads?type=nosuch", "E0201"),
]


@pytest.fixture
async def operator(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    hub = open_hub(tmp_path)
    _, token = await hub.credentials.create_key(name="op", tenant="acme", role=Role.OPERATOR)
    headers = {"x-api-key": token, "accept": "application/json"}
    transport = httpx.ASGITransport(create_app(hub))
    async with httpx.AsyncClient(transport=transport, base_url="http://hub/v1", headers=headers) as client:
        yield client
    await hub.close()


async def test_every_question_about_what_nobody_knows_is_an_error_with_a_hint(operator: httpx.AsyncClient) -> None:
    for path, code in UNKNOWN:
        answer = await operator.get(path)
        assert answer.status_code in (400, 404), f"{path}: {answer.text}"
        error = answer.json()["error"]
        assert code in ("", error["code"]), f"{path}: {answer.text}"
        assert error["message"]
        assert error["hint"], path


async def test_a_subject_is_found_by_its_id_and_by_its_name(operator: httpx.AsyncClient) -> None:
    job = (await operator.post("/workloads", json={"name": "job", "modelled_duration_s": 9})).json()["id"]
    data = (await operator.post("/data", json={"name": "census"})).json()["id"]
    for ref in ("job", job):
        kinds = {item["kind"] for item in (await operator.get("/events", params={"subject": ref})).json()["items"]}
        assert "workload.submitted" in kinds
        audited = (await operator.get("/audit", params={"subject": ref})).json()["items"]
        assert [item["entry"]["subject"] for item in audited] == [job]
    for ref in ("census", data):
        assert len((await operator.get("/audit", params={"data": ref})).json()["items"]) == 1
        assert (await operator.get("/carbon/report", params={"data": ref})).status_code == 200
    assert (await operator.get("/workloads", params={"tenant": "acme"})).json()["total"] == 1


async def test_a_kind_that_never_occurred_is_said_to_be_so(operator: httpx.AsyncClient) -> None:
    for path in ("/events", "/audit"):
        assert "`workload.plcaed`" in (await operator.get(path, params={"kind": "workload.plcaed"})).json()["remark"]
    await operator.post("/workloads", json={"name": "job", "modelled_duration_s": 9})
    last = (await operator.get("/audit")).json()["last_seq"]
    later = (await operator.get("/audit", params={"kind": "workload.admitted", "after": last})).json()
    assert (later["items"], later["remark"]) == ([], "")
