"""A hub and its SENTINEL as real processes under load, killed in turn at random times: what must hold after each
kill?
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cramjam
import httpx

from harch.api.sentinel_process import record_of
from harch.execution.kernel import kill_process
from harch.execution.process_record import found_running
from harch.sentinel.node.sender import Frame
from harch.sentinel.node.sensors import SensorReading, series
from harch.testing.hub_process import HubProcess

# A hub with its SENTINEL as real processes under load, each of which may be killed while the other goes on.


SENTINEL_WITHIN_S = 240.0  # a first start compiles kernels, and other work may have the cores
PORT_STRIDE = 10
_SNAPPY = {"content-type": "application/x-protobuf", "content-encoding": "snappy"}


class HubAndSentinel(HubProcess):
    """`HubProcess` with telemetry switched on."""

    @property
    def environment(self) -> dict[str, str]:
        return {**super().environment, "HARCH_SENTINEL": "on"}

    @property
    def state_dir(self) -> Path:
        return self.home / self.hub_id

    @property
    def sentinel_url(self) -> str:
        host, _, port = self.url.rpartition(":")
        return f"{host}:{int(port) + PORT_STRIDE}"

    @property
    def sentinel_pid(self) -> int:
        """0 while none runs that a hub would find."""
        found = found_running(record_of(self.state_dir))
        return found.record.pid if found is not None else 0

    def sentinel(self, key: str = "") -> httpx.Client:
        headers = {"Authorization": f"Bearer {key or self.key}"}
        return httpx.Client(base_url=self.sentinel_url, headers=headers, timeout=30, trust_env=False)

    def _wait(self, ready: Callable[[], bool]) -> None:
        """For a hub: longer than usual, because SENTINEL needs the cores at the same time."""

        def answers() -> bool:
            try:
                return ready()
            except httpx.HTTPError:
                return False

        eventually(answers, "the hub", SENTINEL_WITHIN_S)

    def wait_for_sentinel(self) -> None:
        eventually(self._is_serving, "SENTINEL", SENTINEL_WITHIN_S)

    def _is_serving(self) -> bool:
        """It is found, answers, and knows the keys of its hub."""
        try:
            with self.sentinel() as client:
                return self.sentinel_pid != 0 and client.get("/api/v1/status/buildinfo").status_code == 200
        except httpx.HTTPError:
            return False

    def kill_sentinel(self) -> int:
        """The pid of the one that was killed."""
        pid = self.sentinel_pid
        kill_process(pid, signal.SIGKILL)
        eventually(lambda: self.sentinel_pid != pid, "the end of SENTINEL", SENTINEL_WITHIN_S)
        return pid


def eventually(condition: Callable[[], Any], what: str, within_s: float) -> Any:
    """What the condition answers once that is something."""
    end = time.monotonic() + within_s
    while not (got := condition()):
        if time.monotonic() > end:
            raise TimeoutError(f"timed out waiting for {what}")
        time.sleep(0.05)
    return got


class _Load:
    """Something that goes on in a thread until it is told to stop."""

    def __init__(self, pause_s: float) -> None:
        self._pause_s = pause_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Any:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        number = 0
        while not self._stop.wait(self._pause_s):
            number += 1
            self._once(number)

    def _once(self, number: int) -> None:
        raise NotImplementedError


class JobLoad(_Load):
    """Submits short jobs; `acknowledged` are the ids of those that the hub took."""

    def __init__(self, world: HubAndSentinel, pause_s: float = 0.2) -> None:
        super().__init__(pause_s)
        self._client = world.client()
        self.acknowledged: set[str] = set()

    def _once(self, number: int) -> None:
        body = {"name": f"job-{number}", "command": ["true"], "resources": {"gpus": number % 2}}
        try:
            answer = self._client.post("/v1/workloads", json=body)
        except httpx.HTTPError:
            return  # not acknowledged, so nothing was promised
        if answer.status_code in {200, 201}:
            self.acknowledged.add(str(answer.json()["id"]))

    def missing(self) -> set[str]:
        """Acknowledged jobs that the hub does not know."""
        wanted, known = set(self.acknowledged), set[str]()  # what is acknowledged from now on may be on no page
        page = 1
        while True:
            answer = self._client.get("/v1/workloads", params={"page": page, "per_page": 100})
            answer.raise_for_status()
            page = answer.json()
            known |= {str(item["id"]) for item in page["items"]}
            if not page["pagination"]["has_next"]:
                return wanted - known
            page += 1


class SampleLoad(_Load):
    """Writes samples of some series; `acknowledged` are the times of those that SENTINEL took."""

    SERIES = 5

    def __init__(self, world: HubAndSentinel, pause_s: float = 0.1) -> None:
        super().__init__(pause_s)
        self._client = world.sentinel()
        self._frame = Frame([("job", "load")])
        self.acknowledged: set[int] = set()

    def _once(self, number: int) -> None:
        at_ms = time.time_ns() // 1_000_000
        named = [series("load_value", {"place": str(place)}) for place in range(self.SERIES)]
        readings = [SensorReading(one, float(at_ms % 1_000_000)) for one in named]
        body = bytes(cramjam.snappy.compress_raw(bytes(self._frame.filled(readings, at_ms))))
        try:
            answer = self._client.post("/api/v1/write", content=body, headers=_SNAPPY)
        except httpx.HTTPError:
            return
        if answer.status_code == 204:
            self.acknowledged.add(at_ms)

    def missing(self) -> set[int]:
        """Acknowledged times of which a series lacks its sample, or has another value."""
        wanted = set(self.acknowledged)
        since_s = max(1, (max(wanted, default=0) - min(wanted, default=0)) // 1000 + 10)
        at = {"query": f"load_value[{since_s}s]", "time": str(max(wanted, default=0) / 1000 + 1)}
        answer = self._client.get("/api/v1/query", params=at)
        answer.raise_for_status()
        found = [
            {round(float(at_s) * 1000) for at_s, value in one["values"] if float(value) == round(at_s * 1000) % 1e6}
            for one in answer.json()["data"]["result"]
        ]
        if len(found) < self.SERIES:
            return wanted
        return {at_ms for at_ms in wanted if not all(at_ms in times for times in found)}


def descendants_of_home(home: Path) -> list[int]:
    """Processes that were started with this home, for those who check that nothing is left running."""
    mark = f"HARCH_HOME={home}".encode()
    found = []
    for name in os.listdir("/proc"):
        if name.isdecimal():
            try:
                environment = Path(f"/proc/{name}/environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if mark in environment:
                found.append(int(name))
    return found


# A hub and its SENTINEL are killed in turn, at random times under load: what must hold after each kill?


SURVIVOR_LOOKS = 3  # at the one that was not killed, while the other is away


@dataclass
class Rounds:
    """What was found. `violations` are sentences."""

    kills: int = 0
    jobs: int = 0
    samples: int = 0
    answers: int = 0  # of the survivor, while the other was away
    hub_back_s_max: float = 0.0
    sentinel_back_s_max: float = 0.0
    violations: list[str] = field(default_factory=list)


def kill_in_turn(
    world: HubAndSentinel,
    kills: int,
    chance: random.Random,
    *,
    quiet_s: tuple[float, float],
    on_round: Callable[[Rounds, Sequence[str]], None] = lambda _rounds, _news: None,
) -> Rounds:
    """The hub, then SENTINEL, and so on, with jobs and samples pouring in all the time.

    `told` hears after each kill what was found, and which violations are new.
    """
    rounds = Rounds()
    with JobLoad(world) as jobs, SampleLoad(world) as samples:
        for number in range(kills):
            time.sleep(chance.uniform(*quiet_s))
            before = len(rounds.violations)
            if number % 2 == 0:
                _kill_hub(world, rounds, samples)
            else:
                _kill_sentinel(world, rounds, jobs)
            rounds.kills += 1
            _check_kept(rounds, jobs, samples)
            on_round(rounds, rounds.violations[before:])
    rounds.jobs, rounds.samples = len(jobs.acknowledged), len(samples.acknowledged)
    _check_kept(rounds, jobs, samples)
    if not rounds.jobs or not rounds.samples:
        rounds.violations.append(f"only {rounds.jobs} jobs and {rounds.samples} samples were acknowledged")
    return rounds


def _kill_hub(world: HubAndSentinel, rounds: Rounds, samples: SampleLoad) -> None:
    where = f"kill {rounds.kills} (hub)"
    before = world.sentinel_pid
    world.kill_hub()
    acknowledged = len(samples.acknowledged)
    with world.sentinel() as client:
        for _ in range(SURVIVOR_LOOKS):
            try:
                answer = client.get("/api/v1/query", params={"query": "count(load_value)"})
            except httpx.HTTPError as problem:
                rounds.violations.append(f"{where}: SENTINEL does not answer while its hub is dead: {problem!r}")
                continue
            rounds.answers += answer.status_code == 200
            if answer.status_code != 200:
                rounds.violations.append(f"{where}: SENTINEL answers {answer.status_code} while its hub is dead")
    if not _happens(lambda: len(samples.acknowledged) > acknowledged, 30):
        rounds.violations.append(f"{where}: SENTINEL takes no samples while its hub is dead")
    began_s = time.monotonic()
    world.start_hub()
    world.wait_for_agents()
    rounds.hub_back_s_max = max(rounds.hub_back_s_max, time.monotonic() - began_s)
    world.wait_for_sentinel()
    if world.sentinel_pid != before:
        rounds.violations.append(f"{where}: SENTINEL {before} was not taken over; {world.sentinel_pid} runs")


def _kill_sentinel(world: HubAndSentinel, rounds: Rounds, jobs: JobLoad) -> None:
    where = f"kill {rounds.kills} (SENTINEL)"
    before = world.kill_sentinel()
    began_s = time.monotonic()
    acknowledged = len(jobs.acknowledged)
    for _ in range(SURVIVOR_LOOKS):
        try:
            rounds.answers += bool(world.summary())
        except httpx.HTTPError as problem:
            rounds.violations.append(f"{where}: the hub does not answer while SENTINEL is dead: {problem!r}")
    if not _happens(lambda: len(jobs.acknowledged) > acknowledged, 30):
        rounds.violations.append(f"{where}: the hub takes no jobs while SENTINEL is dead")
    if not before:
        rounds.violations.append(f"{where}: there was no SENTINEL to kill")
    world.wait_for_sentinel()
    rounds.sentinel_back_s_max = max(rounds.sentinel_back_s_max, time.monotonic() - began_s)


def _check_kept(rounds: Rounds, jobs: JobLoad, samples: SampleLoad) -> None:
    where = f"after kill {rounds.kills}"
    if lost := jobs.missing():
        rounds.violations.append(f"{where}: {len(lost)} acknowledged jobs are gone, {min(lost)} among them")
    if gone := samples.missing():
        rounds.violations.append(f"{where}: {len(gone)} acknowledged samples are gone, that of {min(gone)} among them")


def _happens(condition: Callable[[], bool], within_s: float) -> bool:
    try:
        eventually(condition, "it", within_s)
    except TimeoutError:
        return False
    return True
