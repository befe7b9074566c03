"""A hub and its SENTINEL are killed in turn, at random times under load: what must hold after each kill?"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import httpx

from harch.testing.hub_and_sentinel import HubAndSentinel, JobLoad, SampleLoad, eventually

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
    told: Callable[[Rounds, Sequence[str]], None] = lambda _rounds, _news: None,
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
            told(rounds, rounds.violations[before:])
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
