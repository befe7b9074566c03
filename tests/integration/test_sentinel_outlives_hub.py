"""kill -9 of a hub leaves its SENTINEL, which notices, answers and alerts; the next hub takes it over, and a hub that
is told to stop leaves nothing running."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from harch.api.sentinel_process import record_of
from harch.execution.kernel import children_of
from harch.execution.process_record import found_running
from harch.testing.hub_process import free_port_base
from harch.testing.kill_rounds import SENTINEL_WITHIN_S, HubAndSentinel, descendants_of_home, eventually
from harch.testing.samples import TINY_FLEET_TOML

pytestmark = pytest.mark.timeout(600)  # kernels may have to be compiled first

PATIENCE_S = 120.0


@pytest.fixture
def world(tmp_path: Path) -> Iterator[HubAndSentinel]:
    with HubAndSentinel(TINY_FLEET_TOML, "dakhla", tmp_path) as made:
        made.wait_for_sentinel()
        yield made


def test_a_hub_that_dies_is_noticed_by_its_sentinel_and_finds_it_again(world: HubAndSentinel, tmp_path: Path) -> None:
    with world.sentinel() as admin, world.sentinel("hsk_stranger") as stranger:

        def found(query: str) -> list[dict[str, Any]]:
            answer = admin.get("/api/v1/query", params={"query": query})
            assert answer.status_code == 200, answer.text
            return list(answer.json()["data"]["result"])

        eventually(lambda: found('up{job="harchos"} == 1'), "the first look at the hub", PATIENCE_S)
        made = world.client().post("/v1/auth/api-keys", json={"name": "u", "tenant": "acme", "role": "user"}).json()
        with world.sentinel(made["key"]) as user:
            assert user.get("/api/v1/labels").status_code == 200
            assert world.client().delete(f"/v1/auth/api-keys/{made['id']}").status_code in {200, 204}
            eventually(lambda: user.get("/api/v1/labels").status_code == 401, "the end of a revoked key", 30)

        before = world.sentinel_pid
        world.kill_hub()
        eventually(lambda: found('up{job="harchos"} == 0'), "the hub's death in the figures", PATIENCE_S)
        eventually(lambda: found('ALERTS{alertname="HubDown"}'), "the alert about it", PATIENCE_S)
        assert stranger.get("/api/v1/labels").status_code == 503  # nobody can say whose key that is
        world.start_hub()
        eventually(lambda: found('up{job="harchos"} == 1'), "the hub's return", PATIENCE_S)
        assert world.sentinel_pid == before
        assert stranger.get("/api/v1/labels").status_code == 401

    assert world.hub is not None
    for agent in world.agents.values():
        agent.send_signal(signal.SIGTERM)
        agent.wait(60)
    world.hub.send_signal(signal.SIGTERM)
    world.hub.wait(60)
    assert descendants_of_home(tmp_path) == []


def test_a_hub_that_is_stopped_before_it_was_ready_stops_the_one_that_it_would_have_taken_over(
    world: HubAndSentinel,
) -> None:
    world.kill_hub()
    assert world.sentinel_pid
    starting = world._spawn("hub", "serve", "dakhla", "--fleet", str(world.fleet))
    lock = world.state_dir / "hub.lock"
    eventually(lambda: _is_held_by(lock, starting.pid), "the hub's lock", PATIENCE_S)
    starting.send_signal(signal.SIGTERM)
    starting.wait(60)
    assert world.sentinel_pid == 0


def _is_held_by(lock: Path, pid: int) -> bool:
    inode = lock.stat().st_ino
    rows = (line.split() for line in Path("/proc/locks").read_text().splitlines())
    return any(int(row[4]) == pid and int(row[5].rsplit(":", 1)[1]) == inode for row in rows if row[4].isdecimal())


def test_another_way_to_be_set_up_replaces_the_one_that_ran_on(world: HubAndSentinel) -> None:
    before = world.sentinel_pid
    world.kill_hub()
    (world.state_dir / "sentinel.toml").write_text("[query]\nlookback_s = 60.0\n")
    world.start_hub()
    eventually(lambda: world.sentinel_pid not in {0, before}, "another SENTINEL", 240)
    world.wait_for_sentinel()


def test_a_hub_whose_port_is_taken_starts_no_sentinel(world: HubAndSentinel, tmp_path: Path) -> None:
    """The second hub of the same folder is refused before it touches anything."""
    before = world.sentinel_pid
    second = world._spawn("hub", "serve", "dakhla", "--fleet", str(world.fleet))
    assert second.wait(60) != 0
    assert world.sentinel_pid == before
    assert httpx.get(f"{world.sentinel_url}/-/healthy", timeout=30).status_code == 200


def test_after_harch_up_has_stopped_nothing_is_left_running(tmp_path: Path) -> None:
    """Not even the SENTINEL of a hub that was killed in the moment before."""
    fleet, home = tmp_path / "fleet.toml", tmp_path / "home"
    fleet.write_text(TINY_FLEET_TOML)
    own = {"HARCH_HOME": str(home), "HARCH_PORT_BASE": str(free_port_base()), "HARCH_SENTINEL": "on"}
    with (tmp_path / "log").open("wb") as log:
        up = subprocess.Popen(
            [sys.executable, "-m", "harch", "up", "--fleet", str(fleet)],
            env={**os.environ, **own},
            stdout=log,
            stderr=log,
        )
    try:
        found = eventually(lambda: found_running(record_of(home / "dakhla")), "SENTINEL", SENTINEL_WITHIN_S)
        (hub,) = (
            pid for pid in children_of(up.pid) if b"hub\0serve\0dakhla" in Path(f"/proc/{pid}/cmdline").read_bytes()
        )
        os.kill(hub, signal.SIGKILL)
        eventually(lambda: hub not in children_of(up.pid), "the end of the hub", 60)
        assert found.record.is_alive
        up.send_signal(signal.SIGINT)
        assert up.wait(120) == 0, (tmp_path / "log").read_text()
        assert descendants_of_home(home) == []
    finally:
        up.kill()
        up.wait()
