"""A real hub and a real agent: does data stay where its tag says, whatever is asked and whoever is wrong?"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from harch.testing.hub_process import HubProcess
from harch.testing.samples import TINY_FLEET_TOML

pytestmark = pytest.mark.uses("bubblewrap")

DAKHLA, DAKAR = "pue = 1.2\n", "pue = 1.4\n"
SAFE = '[hubs.safeguards]\nencrypts_at_rest = true\nencrypts_in_transit = true\nkeys_in = ["{}"]\n'
FLEET = TINY_FLEET_TOML.replace(DAKHLA, DAKHLA + SAFE.format("MA")).replace(DAKAR, DAKAR + SAFE.format("SN"))
MOROCCO = {"process_in": ["MA"], "rest_in": ["MA"], "frameworks": ["ma-law-09-08"]}


@pytest.fixture(scope="module")
def dakhla(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubProcess]:
    with HubProcess(FLEET, "dakhla", tmp_path_factory.mktemp("dakhla")) as running:
        yield running


def call(hub: HubProcess, method: str, path: str, body: object = None) -> tuple[int, dict[str, Any]]:
    with hub.client() as client:
        answer = client.request(method, f"/v1{path}", json=body)
        return answer.status_code, dict(answer.json())


def add(hub: HubProcess, name: str, tag: dict[str, object] | None = None, **fields: object) -> dict[str, Any]:
    status, data = call(hub, "POST", "/data", {"name": name, "tag": tag or MOROCCO, **fields})
    assert status == 201, data
    return data


def submit(hub: HubProcess, name: str, script: str, **fields: object) -> tuple[int, dict[str, Any]]:
    return call(hub, "POST", "/workloads", {"name": name, "command": ["sh", "-c", script], **fields})


def until(hub: HubProcess, ref: str, *wanted: str) -> dict[str, Any]:
    found: dict[str, Any] = wait(
        lambda: look if (look := call(hub, "GET", f"/workloads/{ref}")[1])["status"] in wanted else None
    )
    return found


def wait(look: Callable[[], Any]) -> Any:
    end = time.monotonic() + 20
    while time.monotonic() < end:
        if found := look():
            return found
        time.sleep(0.05)
    raise AssertionError("waited 20 s")


def story(hub: HubProcess, data_id: str) -> list[str]:
    return [item["entry"]["kind"] for item in call(hub, "GET", f"/audit?data={data_id}&limit=100")[1]["items"]]


def test_moroccan_data_never_runs_in_senegal_even_if_asked(tmp_path: Path) -> None:
    with HubProcess(FLEET, "dakar", tmp_path) as dakar:
        census = add(dakar, "census", hubs=["dakhla"])
        status, refused = submit(dakar, "reader", "true", data=["census"])
        assert (status, refused["error"]["code"]) == (403, "E0907")
        rules = {problem["rule"] for problem in refused["error"]["meta"]["problems"]}
        assert {"process_in", "frameworks", "key_in", "route"} <= rules
        assert refused["error"]["meta"]["hubs_allowed"] == ["dakhla"]
        status, refused = call(dakar, "POST", "/data", {"name": "copy", "tag": MOROCCO})  # a copy in Senegal
        assert (status, refused["error"]["code"]) == (403, "E0907")
        assert call(dakar, "GET", "/workloads")[1]["total"] == 0
        assert story(dakar, census["id"]) == ["data.added", "workload.refused"]


def test_outputs_inherit_the_meet_and_survive_a_restart(dakhla: HubProcess) -> None:
    one = add(dakhla, "people", {**MOROCCO, "process_in": ["MA", "SN"], "rest_in": ["MA", "SN"]})
    other = add(dakhla, "places", {**MOROCCO, "classification": "internal"})
    status, workload = submit(dakhla, "join", "echo joined", data=["people", other["id"]], outputs=["joined"])
    assert status == 201, workload
    until(dakhla, "join", "completed")
    made = call(dakhla, "GET", "/data/joined")[1]
    assert (made["tag"]["process_in"], made["tag"]["classification"]) == (["MA"], "restricted")
    assert (made["parents"], made["made_by"], made["hubs"]) == ([one["id"], other["id"]], workload["id"], ["dakhla"])
    lineage = call(dakhla, "GET", "/data/people/lineage")[1]
    assert [item["name"] for item in lineage["descendants"]] == ["joined"]
    dakhla.kill_hub()
    dakhla.start_hub()
    dakhla.wait_for_agents()
    assert call(dakhla, "GET", "/data/joined")[1] == made
    assert story(dakhla, one["id"]) == [
        "data.added",
        "workload.admitted",
        "workload.placed",
        "data.derived",
        "workload.ended",
    ]


def test_tightening_while_it_runs_pauses_cancels_and_scrubs(dakhla: HubProcess) -> None:
    data = add(dakhla, "patients")
    script = 'echo secret > copy.txt; echo secret > "$HARCH_CHECKPOINT_DIR/state"; trap "" TERM; echo ready; sleep 60'
    status, workload = submit(dakhla, "stubborn", script, data=["patients"], stop_grace_s=600)
    assert status == 201, workload
    agent = dakhla.home / "agent"
    wait(lambda: list(agent.glob("checkpoints/*/state")))
    tighter = {**MOROCCO, "frameworks": ["ma-law-09-08", "gdpr"]}  # Dakhla does not say that it upholds the GDPR
    assert call(dakhla, "PUT", "/data/patients/tag", {"tag": tighter})[0] == 200
    ended = until(dakhla, "stubborn", "cancelled")
    assert "E0907" in ended["error_message"]
    assert not list(agent.glob("tasks/*/*/copy.txt")) + list(agent.glob("checkpoints/*/state"))
    with dakhla.client() as client:
        events = client.get("/v1/events", params={"after": 0, "limit": 1000}, headers={"accept": "application/json"})
        kinds = [one["kind"] for one in events.json()["items"] if one["subject"] == workload["id"]]
    assert kinds[-3:] == ["sovereignty.violation", "workload.paused", "workload.cancelled"]
    assert story(dakhla, data["id"])[-4:] == [
        "sovereignty.violation",  # the copy, which may not rest there any more
        "sovereignty.violation",  # the work
        "data.scrubbed",
        "workload.ended",
    ]
    status, refused = submit(dakhla, "again", "true", data=["patients"])
    assert (status, refused["error"]["code"]) == (403, "E0907")


def test_loosening_needs_a_signature_and_a_contradiction_is_refused(dakhla: HubProcess, tmp_path: Path) -> None:
    add(dakhla, "open-soon")
    looser = {**MOROCCO, "classification": "public"}
    status, refused = call(dakhla, "PUT", "/data/open-soon/tag", {"tag": looser})
    assert (status, refused["error"]["code"]) == (403, "E0908")
    contradiction = {"process_in": ["SN"], "rest_in": ["MA"]}
    status, refused = call(dakhla, "POST", "/data", {"name": "impossible", "tag": contradiction})
    assert (status, refused["error"]["code"]) == (400, "E0904")

    def harch(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "harch", "data", *words]
        return subprocess.run(command, env=dakhla.environment, capture_output=True, text=True, check=False)

    key = str(tmp_path / "cndp.key")
    assert harch("authority", "add", "cndp", "--key-file", key).returncode == 0
    signed = ["declassify", "open-soon", "--authority", "cndp", "--key-file", key, "--reason", "published"]
    tag = ["--process-in", "MA", "--rest-in", "MA", "--framework", "ma-law-09-08", "--classification", "public"]
    done = harch(*signed, *tag)
    assert done.returncode == 0, done.stderr
    assert call(dakhla, "GET", "/data/open-soon")[1]["tag"]["classification"] == "public"
    assert harch("authority", "rm", "cndp").returncode == 0
    assert (
        harch(*signed, "--process-in", "MA", "--process-in", "SN", "--rest-in", "MA", "--rest-in", "SN").returncode == 4
    )


def test_an_agent_that_declares_less_than_its_hub_loads_nothing(tmp_path: Path) -> None:
    with HubProcess(FLEET, "dakhla", tmp_path, agent_options=()) as hub:
        data = add(hub, "census")
        status, workload = submit(hub, "reader", "echo read", data=["census"])
        assert status == 201, workload
        ended = until(hub, "reader", "failed")
        (end,) = ended["task_ends"]
        assert end["reason"] == "not_started"
        assert end["detail"].startswith("E0907 census")
        assert "workload.load_refused" in story(hub, data["id"])
