"""Pipelines over HTTP: who may do what, what is answered, and what a body must say."""

from __future__ import annotations

import hashlib
from pathlib import Path

import httpx
import pytest

from harch.testing.clock import SimClock
from unit.api.fake_hub import FakeHub
from unit.hub_pipelines.pipeline_samples import Desk, text

Client = httpx.AsyncClient


@pytest.fixture
async def desk(hub: FakeHub, tmp_path: Path) -> Desk:
    found = Desk(tmp_path, SimClock())
    hub.pipelines = found.pipelines  # type: ignore[attr-defined]
    return found


async def test_operators_apply_users_send_events_and_viewers_look(
    desk: Desk, operator: Client, user: Client, viewer: Client
) -> None:
    body = {"file": text(), "source": "pipeline.yaml"}
    planned = await operator.post("/pipelines", json={**body, "dry_run": True})
    assert (planned.status_code, planned.json()["result"], planned.json()["dry_run"]) == (200, "created", True)
    assert {edge["name"] for edge in planned.json()["edges"]} >= {"sense -> think", "act -> valves"}
    assert (await operator.post("/pipelines", json=body)).status_code == 201
    again = await operator.post("/pipelines", json=body)
    assert (again.status_code, again.json()["result"]) == (200, "unchanged")
    listed = (await viewer.get("/pipelines")).json()
    assert [(one["name"], one["version"], one["state"]) for one in listed["items"]] == [("fields", 1, "starting")]
    shown = (await viewer.get("/pipelines/fields")).json()
    assert shown["spec"]["name"] == "fields"
    early = await user.post("/pipelines/fields/events", json=[])
    assert (early.status_code, early.json()["code"]) == (503, "E0751")

    forbidden = [
        ("POST", "/pipelines", body),
        ("DELETE", "/pipelines/fields", None),
        ("POST", "/pipelines/fields/scale", {"workers": {"think": 2}}),
        ("POST", "/pipelines/fields/drain", None),
        ("POST", "/pipelines/fields/halt", {}),
        ("DELETE", "/pipelines/fields/halt", None),
        ("POST", "/pipelines/fields/models/dryness", {"version": "1", "role": "active"}),
        ("POST", "/pipelines/fields/approvals/x/approve", {"digest": "y"}),
        ("POST", "/pipelines/fields/approvals/x/reject", {}),
        ("POST", "/pipelines/fields/dead/x/replay", {}),
        ("DELETE", "/pipelines/fields/dead/x", None),
        ("POST", "/pipelines/fields/replay", {}),
        ("GET", "/pipelines/fields/key", None),
        ("POST", "/pipelines/fields/key", None),
    ]
    for method, path, sent in forbidden:
        refused = await user.request(method, path, json=sent)
        assert (refused.status_code, refused.json()["code"]) == (403, "E0103"), path
    assert (await viewer.post("/pipelines/fields/events", json=[])).status_code == 403


async def test_operators_see_and_renew_the_key_of_a_source(desk: Desk, operator: Client) -> None:
    await operator.post("/pipelines", json={"file": text()})
    first = (await operator.get("/pipelines/fields/key")).json()
    assert (first["source"], first["key"][:4]) == ("web", "hpk_")
    assert (await operator.get("/pipelines/fields/key", params={"source": "web"})).json() == first
    renewed = (await operator.post("/pipelines/fields/key")).json()
    assert renewed["key"] != first["key"]
    assert (await operator.get("/pipelines/fields/key")).json() == renewed
    unknown = await operator.get("/pipelines/fields/key", params={"source": "nothing"})
    assert (unknown.status_code, unknown.json()["code"]) == (400, "E0201")
    assert (await operator.get("/pipelines/none/key")).status_code == 404


async def test_a_refusal_names_every_edge_and_mistakes_name_their_lines(desk: Desk, operator: Client) -> None:
    abroad = text(('headers: {authorization: "env:VALVE_KEY"}', "country: SN"))
    refused = await operator.post("/pipelines", json={"file": abroad})
    assert (refused.status_code, refused.json()["code"]) == (403, "E0907")
    assert "dakhla -> sink valves" in refused.json()["message"]
    wrong = await operator.post("/pipelines", json={"file": text(("partitions: 4", "partitions: -4"))})
    assert (wrong.status_code, wrong.json()["code"]) == (400, "E0250")
    assert "sense.partitions" in wrong.json()["message"]
    nothing = await operator.post("/pipelines", json={"text": "x"})
    assert nothing.status_code == 400


async def test_numbers_versions_and_the_end_over_http(desk: Desk, operator: Client, viewer: Client) -> None:
    await operator.post("/pipelines", json={"file": text()})
    scaled = await operator.post("/pipelines/fields/scale", json={"workers": {"think": 2}})
    assert scaled.status_code == 200
    assert (await operator.post("/pipelines/fields/scale", json={"workers": {"think": 99}})).status_code == 400
    new = {"version": "2", "role": "shadow", "runtime": "python", "callable": "field_models:drier"}
    swapped = (await operator.post("/pipelines/fields/models/dryness", json=new)).json()
    assert {one["stage"]: one["step"] for one in swapped["stages"]} == {"sense": "keep", "think": "swap", "act": "keep"}
    assert (await operator.post("/pipelines/fields/drain")).json()["state"] == "draining"
    assert (await operator.delete("/pipelines/fields")).json()["state"] == "removing"
    for path in ("/pipelines/other", "/pipelines/other/approvals", "/pipelines/other/logs?worker=act-0"):
        missing = await viewer.get(path)
        assert (missing.status_code, missing.json()["code"]) == (404, "E0710"), path


async def test_files_of_models_arrive_in_pieces(desk: Desk, operator: Client) -> None:
    data = b"x" * 3000
    query = {"path": "m.onnx", "total": "3000", "sha256": hashlib.sha256(data).hexdigest()}
    first = await operator.put("/pipelines/fields/files", params={**query, "offset": "0"}, content=data[:2000])
    assert first.status_code == 202
    second = await operator.put("/pipelines/fields/files", params={**query, "offset": "2000"}, content=data[2000:])
    assert (second.status_code, second.json()["bytes"]) == (200, 3000)
    escaping = {**query, "path": "../m.onnx", "offset": "0"}
    assert (await operator.put("/pipelines/fields/files", params=escaping, content=data)).status_code == 400
    assert (
        await operator.put("/pipelines/..%2Fx/files", params={**query, "offset": "0"}, content=data)
    ).status_code >= 400


async def test_a_halt_is_stored_and_shown_even_if_no_worker_can_be_reached(
    desk: Desk, operator: Client, viewer: Client
) -> None:
    await operator.post("/pipelines", json={"file": text()})
    early = await operator.post("/pipelines/fields/halt", json={"reason": "fire"})
    assert (early.status_code, early.json()["code"]) == (503, "E0751")
    assert "the halt is stored" in early.json()["message"]
    assert (await viewer.get("/pipelines/fields")).json()["pipeline"]["halted"] == "fire"
    resumed = await operator.delete("/pipelines/fields/halt")
    assert (resumed.status_code, resumed.json()["code"]) == (503, "E0751")
    assert (await viewer.get("/pipelines/fields")).json()["pipeline"]["halted"] == "fire", "only what is certain counts"
    missing = await operator.post("/pipelines/other/halt", json={})
    assert (missing.status_code, missing.json()["code"]) == (404, "E0710")
