"""A real hub with real agents and real processes: gangs, secrets, limits, restarts, a full disk."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from harch.testing.hub_process import HubProcess
from harch.testing.samples import TINY_FLEET_TOML, tiny_fleet

pytestmark = pytest.mark.uses("bubblewrap")


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubProcess]:
    nodes = [node.id for node in tiny_fleet().hubs[0].nodes]
    agents = {"one": tuple(nodes[:2]), "two": tuple(nodes[2:])}
    with HubProcess(TINY_FLEET_TOML, "dakhla", tmp_path_factory.mktemp("hub"), agents=agents) as running:
        yield running


def submit(hub: HubProcess, name: str, command: list[str], **fields: object) -> dict[str, Any]:
    with hub.client() as client:
        answer = client.post("/v1/workloads", json={"name": name, "command": command, **fields})
        assert answer.status_code == 201, answer.text
        return dict(answer.json())


def wait_for(hub: HubProcess, ref: str, *wanted: str) -> dict[str, Any]:
    def state() -> dict[str, Any] | None:
        with hub.client() as client:
            found = client.get(f"/v1/workloads/{ref}").json()
            return dict(found) if found["status"] in wanted else None

    return until(state, f"{ref} to be {wanted}")


def until(look: Callable[[], Any], what: str, within_s: float = 30) -> Any:
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        found = look()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError(f"waited {within_s:g} s for {what}")


def log_of(hub: HubProcess, ref: str, rank: int = 0) -> str:
    with hub.client() as client:
        return client.get(f"/v1/workloads/{ref}/logs", params={"rank": rank}).text


def test_a_gang_over_two_agents_knows_its_ranks_and_can_meet(hub: HubProcess) -> None:
    # Rank 0 listens where all were told to meet, and everybody else connects: the environment must be right.
    script = """
import os, socket
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
where = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
if rank == 0:
    server = socket.create_server(where)
    print("met", sorted(int(server.accept()[0].recv(9)) for _ in range(world - 1)))
else:
    for attempt in range(200):
        try:
            socket.create_connection(where).sendall(str(rank).encode()); break
        except OSError:
            import time; time.sleep(0.05)
    else:
        raise SystemExit("nobody there")
"""
    submit(hub, "gang", ["/usr/bin/env", "python3", "-c", script], tasks=3, resources={"gpus": 8})
    ended = wait_for(hub, "gang", "completed", "failed")
    assert ended["status"] == "completed", ended
    assert {task["node_id"][:10] for task in ended["placement"]} >= {"dakhla-r01", "dakhla-r02"}
    assert "met [1, 2]" in log_of(hub, "gang")


def test_the_environment_names_the_given_gpus_and_hides_real_ones(hub: HubProcess) -> None:
    submit(hub, "env", ["/bin/sh", "-c", 'echo "[$HARCH_GPUS] [$CUDA_VISIBLE_DEVICES]"'], resources={"gpus": 2})
    ended = wait_for(hub, "env", "completed", "failed")
    given = ",".join(ended["placement"][0]["gpu_ids"])
    assert f"[{given}] []" in log_of(hub, "env")


def test_a_failed_command_tells_its_exit_code_and_why_says_so(hub: HubProcess) -> None:
    submit(hub, "fails", ["/bin/sh", "-c", "exit 7"])
    assert "code 7" in wait_for(hub, "fails", "failed")["error_message"]
    with hub.client() as client:
        why = client.get("/v1/workloads/fails/why").json()
    assert "code 7" in why["sentence"]
    assert {item["hub_id"] for item in why["hubs"]} == {"dakhla", "dakar"}


def test_a_command_that_does_not_exist_fails_with_that_reason(hub: HubProcess) -> None:
    submit(hub, "typo", ["/usr/bin/pythn3"])
    assert "pythn3" in wait_for(hub, "typo", "failed")["error_message"]


def test_running_work_is_restarted_under_its_id_and_ended_work_submitted_once_more(hub: HubProcess) -> None:
    first = submit(hub, "again", ["/bin/sh", "-c", "echo attempt; exec sleep 600"], restart="never")
    wait_for(hub, "again", "running")
    with hub.client() as client:
        restarted = client.post("/v1/workloads/again/restart")
        assert restarted.json().get("id") == first["id"], restarted.text

    def second_attempt() -> bool:
        with hub.client() as client:
            found = client.get("/v1/workloads/again").json()
        return bool(found["attempt"] == 2 and found["status"] == "running")

    until(second_attempt, "its second attempt to run")
    with hub.client() as client:
        client.patch("/v1/workloads/again", json={"status": "cancelled"})
    wait_for(hub, "again", "cancelled")
    with hub.client() as client:
        path, headers = f"/v1/workloads/{first['id']}/restart", {"idempotency-key": "once"}
        anew = client.post(path, headers=headers).json()
        assert client.post(path, headers=headers).json()["id"] == anew["id"], "the same request, repeated"
        assert anew["id"] != first["id"], anew
        assert (anew["name"], anew["spec"]["command"]) == ("again", first["spec"]["command"])
    wait_for(hub, anew["id"], "running")
    with hub.client() as client:
        client.patch(f"/v1/workloads/{anew['id']}", json={"status": "cancelled"})
    wait_for(hub, anew["id"], "cancelled")


def test_a_secret_reaches_the_task_as_a_file_and_nothing_else(hub: HubProcess) -> None:
    with hub.client() as client:
        assert client.put("/v1/secrets/TOKEN", json={"value": "s3cr3t-value"}).status_code == 200
    command = ["/bin/sh", "-c", 'wc -c < "$HARCH_SECRETS/TOKEN"; env | grep -c s3cr3t || true']
    submit(hub, "secret", command, secrets=["TOKEN"])
    wait_for(hub, "secret", "completed")
    assert log_of(hub, "secret").split() == ["12", "0"]
    for path in hub.home.rglob("*"):
        if path.is_file():
            assert b"s3cr3t-value" not in path.read_bytes(), path


def test_a_secret_that_nobody_stored_is_refused_at_submission(hub: HubProcess) -> None:
    with hub.client() as client:
        answer = client.post("/v1/workloads", json={"name": "x", "command": ["true"], "secrets": ["NOPE"]})
    assert answer.status_code == 404
    assert answer.json()["code"] == "E0306"


def test_stopping_ends_the_process_and_frees_the_gpus(hub: HubProcess) -> None:
    submit(hub, "long", ["sleep", "600"], resources={"gpus": 8}, stop_grace_s=1)
    wait_for(hub, "long", "running")
    assert hub.summary()["gpus_free"] == hub.summary()["gpus_total"] - 8
    with hub.client() as client:
        client.patch("/v1/workloads/long", json={"status": "cancelled"})
    wait_for(hub, "long", "cancelled")
    assert hub.summary()["gpus_free"] == hub.summary()["gpus_total"]


def test_events_tell_the_story_in_order_and_resume_where_one_left_off(hub: HubProcess) -> None:
    job = submit(hub, "told", ["true"])["id"]
    with hub.client() as client:
        params, as_json = {"subject": job}, {"Accept": "application/json"}

        def told() -> list[dict[str, Any]]:
            items = client.get("/v1/events", params=params, headers=as_json).json()["items"]
            return items if any(item["kind"] == "workload.completed" for item in items) else []

        items = until(told, "the end of the story")  # a state is shown a moment before its event is on disk
        assert [item["kind"].removeprefix("workload.") for item in items] == [
            "submitted",
            "scheduled",
            "running",
            "completed",
        ]
        with client.stream("GET", "/v1/events", params={**params, "after": items[1]["seq"]}) as stream:
            first = next(line for line in stream.iter_lines() if line.startswith("id:"))
    assert first == f"id: {items[2]['seq']}"


def test_a_restarted_hub_and_agents_go_on_with_what_runs(hub: HubProcess) -> None:
    job = submit(hub, "survivor", ["/bin/sh", "-c", "for i in 1 2 3 4 5 6; do echo $i; sleep 0.5; done"])
    wait_for(hub, "survivor", "running")
    hub.kill_agent("one")
    hub.kill_agent("two")
    hub.kill_hub()
    hub.start_hub()
    hub.start_agent("one")
    hub.start_agent("two")
    hub.wait_for_agents()
    ended = wait_for(hub, "survivor", "completed", "failed")
    assert (ended["status"], ended["attempt"], ended["id"]) == ("completed", 1, job["id"])
    assert log_of(hub, "survivor").split() == ["1", "2", "3", "4", "5", "6"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(folder)], check=True)
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.needs("tmpfs")
def test_a_full_disk_refuses_new_work_with_507_and_recovers_when_there_is_space(small_disk: Path) -> None:
    with HubProcess(TINY_FLEET_TOML, "dakhla", small_disk) as hub:
        submit(hub, "before", ["sleep", "600"], stop_grace_s=1)
        wait_for(hub, "before", "running")
        ballast = small_disk / "ballast"
        with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while file.write(b"x" * 4096):
                pass
        with hub.client() as client:
            codes = set()
            for number in range(40):
                body = {"name": f"full-{number}", "modelled_duration_s": 1, "labels": {"x": "y" * 2000}}
                answer = client.post("/v1/workloads", json=body)
                codes.add((answer.status_code, answer.json().get("code")))
            assert (507, "E1002") in codes, codes
            refused = [code for code, _ in codes if code >= 500]
            assert set(refused) <= {503, 507}
            ballast.unlink()
            until(lambda: client.get("/readyz").status_code == 200, "the hub to recover")
            hub.wait_for_agents()
            assert client.get("/v1/workloads/before").json()["status"] == "running"
            assert client.post("/v1/workloads", json={"name": "after", "modelled_duration_s": 1}).status_code == 201
        assert wait_for(hub, "after", "completed")["status"] == "completed"


def test_work_is_stopped_and_deleted_on_a_full_disk_although_others_take_whatever_comes_free(small_disk: Path) -> None:
    with HubProcess(TINY_FLEET_TOML, "dakhla", small_disk) as hub:
        for name in ("one", "two", "three"):
            submit(hub, name, ["sleep", "600"], stop_grace_s=1)
        for name in ("one", "two", "three"):
            wait_for(hub, name, "running")
        with hub.client() as client, greedy(small_disk / "ballast"):
            until(lambda: client.get("/readyz").status_code == 503, "the hub to notice")
            refused = [
                client.post("/v1/workloads", json={"name": f"full-{number}", "modelled_duration_s": 1})
                for number in range(5)
            ]
            assert {answer.status_code for answer in refused} == {507}
            assert len({(answer.json()["code"], str(answer.json().get("hint"))) for answer in refused}) == 1
            assert client.patch("/v1/workloads/one", json={"status": "cancelled"}).status_code == 200
            assert client.delete("/v1/workloads/two").status_code in (200, 204)
            assert client.patch("/v1/workloads/three", json={"status": "cancelled"}).status_code == 200
            assert wait_for(hub, "one", "cancelled")["status"] == "cancelled"
            assert wait_for(hub, "three", "cancelled")["status"] == "cancelled"
            assert client.get("/readyz").status_code == 503
        with hub.client() as client:
            until(lambda: client.get("/readyz").status_code == 200, "the hub to recover")
            assert client.post("/v1/workloads", json={"name": "after", "modelled_duration_s": 1}).status_code == 201
        assert wait_for(hub, "after", "completed")["status"] == "completed"


@contextlib.contextmanager
def greedy(ballast: Path) -> Iterator[None]:
    """Somebody fills the disk, and goes on filling it; in the end it is given back."""
    over = threading.Event()

    def fill() -> None:
        with ballast.open("ab", buffering=0) as file:
            while not over.is_set():
                with contextlib.suppress(OSError):
                    while file.write(b"x" * 512):
                        pass
                over.wait(0.01)

    filling = threading.Thread(target=fill)
    filling.start()
    try:
        yield
    finally:
        over.set()
        filling.join()
        ballast.unlink()


def test_a_port_in_use_is_named_with_its_code(hub: HubProcess, tmp_path: Path) -> None:
    environment = {**hub.environment, "HARCH_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "harch", "hub", "serve", "dakhla", "--fleet", str(hub.fleet)]
    tried = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert tried.returncode == 1
    assert "E1004" in tried.stderr
    assert str(hub.port_base + 1) in tried.stderr


def test_a_second_hub_on_the_same_state_folder_is_refused(hub: HubProcess) -> None:
    environment = {**hub.environment, "HARCH_PORT_BASE": str(hub.port_base + 50)}
    command = [sys.executable, "-m", "harch", "hub", "serve", "dakhla", "--fleet", str(hub.fleet)]
    tried = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert tried.returncode == 1
    assert "E1005" in tried.stderr


def test_metrics_are_readable_for_prometheus(hub: HubProcess) -> None:
    text = httpx.get(f"{hub.url}/metrics").text
    assert 'harch_gpus{hub="dakhla",model="h100-80gb"' in text
    assert "harch_events_total{" in text
