"""The log says what the policy has learned from, not what it has merely seen."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from harch.hub import learning
from harch.hub.learning import LOOK_EVERY_S, Learner
from harch.placement.scheduler import Scheduler
from harch.testing.clock import SimClock
from harch.testing.samples import tiny_fleet
from harch.workloads.spec import Resources, WorkloadSpec


def past(count: int) -> list[WorkloadSpec]:
    return [WorkloadSpec(name=f"w{n}", resources=Resources(gpus=1 + n % 4)) for n in range(count)]


async def start(
    specs: list[WorkloadSpec], monkeypatch: pytest.MonkeyPatch
) -> tuple[asyncio.Task[None], SimClock, Scheduler]:
    async def compiled() -> None: ...

    monkeypatch.setattr(learning, "_compile", compiled)
    scheduler, clock = Scheduler(tiny_fleet().hubs[0]), SimClock()
    driver: Any = SimpleNamespace(machine=SimpleNamespace(state=SimpleNamespace(scheduler=scheduler)), equip=None)
    database: Any = SimpleNamespace(recent_specs=lambda limit: specs[:limit])
    task = asyncio.create_task(Learner(driver, database, clock).run())
    while not clock.sleeper_count:
        await asyncio.sleep(0.001)
    return task, clock, scheduler


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "harch.hub"]


async def test_too_few_requests_are_not_called_lessons(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    task, clock, scheduler = await start(past(5), monkeypatch)
    assert lines(caplog) == ["policy harch has seen 5 requests and learns from 8 on; until then it places by best fit"]
    for spec in past(3):
        scheduler.scorer.observe(scheduler.room.kind(spec.resources))
    await clock.advance(LOOK_EVERY_S)
    while len(lines(caplog)) < 2:
        await asyncio.sleep(0.001)
    assert lines(caplog)[1] == "placing by policy harch, learned from 8 requests"
    task.cancel()


async def test_what_a_hub_remembers_is_learned_before_it_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    task, _, scheduler = await start(past(40), monkeypatch)
    assert lines(caplog) == ["placing by policy harch, learned from 40 requests"]
    engine: Any = scheduler.scorer
    assert engine.engine.history.learned_at == 40
    task.cancel()
