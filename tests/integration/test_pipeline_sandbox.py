"""Where workers must be confined and no sandbox is to be had, does nothing of a pipeline run? None is found here."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from hub_pipeline_world import until

from harch.base.errors import HarchError
from harch.hub.pipelines.supervisor import REPORT, WorkerOrder
from harch.hub.pipelines.supervisor_client import SupervisorClient
from harch.testing.clock import SimClock
from harch.testing.hub_process import HubProcess
from harch.testing.samples import TINY_FLEET_TOML
from unit.hub_pipelines.pipeline_samples import Desk, text

pytestmark = pytest.mark.timeout(240)
PIPELINE = """\
kind: pipeline
name: rooms
jurisdiction:
  {process_in: [MA], rest_in: [MA], classification: internal, encrypt_at_rest: false, encrypt_in_transit: false}
sense:
  sources: [{kind: http, name: web, disorder_s: 0.1}]
  devices: [room-1]
  devices_max: 1
  metrics: [temp-in]
  statistics: [count, mean]
  windows: {size_s: 0.5, lateness_s: 0.2, skew_s: 60, future_s: 60}
  source_idle_s: 3600
"""


def order(folder: Path) -> WorkerOrder:
    config = str(folder / "none.json")
    return WorkerOrder(pipeline="p", worker="sense-0", stage="sense", config=config, log_file=str(folder / "sense.log"))


async def test_apply_is_refused_and_the_refusal_is_in_the_chain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HARCH_SANDBOX", "required")
    desk = Desk(tmp_path, SimClock())
    with pytest.raises(HarchError) as refused:
        await desk.pipelines.apply(text().encode(), "pipeline.yaml", tenant="t", actor="me")
    assert refused.value.code == "E0312"
    assert (await desk.pipelines.listed(tenant=None)).total == 0
    assert [(draft.kind, draft.details["code"]) for draft in desk.drafts] == [("pipeline.refused", "E0312")]


def test_the_keeper_itself_starts_nothing_either(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "harch.hub.pipelines.supervisor", str(tmp_path), "required"],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 1
    assert "E0312" in done.stderr
    assert not (tmp_path / REPORT).exists()


async def test_a_keeper_that_was_started_in_another_mode_ends_with_its_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HARCH_SANDBOX", "off")
    before = SupervisorClient(tmp_path)
    before.order((order(tmp_path),))
    pid = before.pid
    assert pid is not None
    same = SupervisorClient(tmp_path)
    await same.settle()
    assert same.pid == pid, "a hub that was restarted finds it again"
    monkeypatch.setenv("HARCH_SANDBOX", "auto")
    after = SupervisorClient(tmp_path)
    await after.settle()
    assert after.pid is None
    assert not before._is_there()


def test_a_hub_that_is_restarted_with_it_required_stops_what_runs_unconfined_until_it_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with HubProcess(TINY_FLEET_TOML, "dakhla", tmp_path, agents={}) as hub:

        def show() -> dict[str, object]:
            with hub.client() as client:
                return client.get("/v1/pipelines/rooms").json()

        def running() -> list[int]:
            found = show()
            pids = [one["pid"] for one in found["workers"] if one["pid"]]
            return pids if found["pipeline"]["state"] == "running" and len(pids) == len(found["workers"]) else []

        def apply() -> httpx.Response:
            with hub.client() as client:
                return client.post("/v1/pipelines", json={"file": PIPELINE, "source": "rooms.yaml"})

        assert apply().status_code in (200, 201)
        pids = until(running, "the pipeline runs, without a sandbox")
        monkeypatch.setenv("HARCH_SANDBOX", "required")
        hub.kill_hub()
        hub.start_hub()
        until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), "its workers are gone")
        trouble = until(lambda: show()["pipeline"]["trouble"], "it says why")
        assert "work must run in a sandbox here, and bubblewrap (bwrap) is not installed" in trouble
        refused = apply()
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "E0312")
        monkeypatch.setenv("HARCH_SANDBOX", "auto")
        hub.kill_hub()
        hub.start_hub()
        assert until(running, "it runs again, as the hub is set now")


@pytest.mark.parametrize(
    ("words", "word", "code"),
    [
        (["up"], "required", "E0312"),
        (["up"], "require", "E0201"),
        (["hub", "serve", "dakhla"], "require", "E0201"),
        (["agent", "serve"], "required", "E0312"),
    ],
)
def test_what_cannot_be_had_or_is_not_understood_ends_a_program_before_it_does_anything(
    tmp_path: Path, words: list[str], word: str, code: str
) -> None:
    (tmp_path / "key").write_text("hsk_x")
    if words == ["agent", "serve"]:
        words = [*words, "--hub-url", "http://127.0.0.1:1", "--key-file", str(tmp_path / "key"), "--country", "MA"]
        words += ["--state-dir", str(tmp_path / "state"), "--id", "a"]
    own = {"HARCH_HOME": str(tmp_path / "home"), "HARCH_SANDBOX": word}
    done = subprocess.run(
        [sys.executable, "-m", "harch", *words],
        env={**os.environ, **own},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode != 0
    assert f"error[{code}]" in done.stderr
    assert "hint:" in done.stderr
