"""An event that fails, wherever it fails, leaves nothing behind: books are those of the disk, and the hub goes on."""

from __future__ import annotations

import asyncio
import itertools
import logging
from pathlib import Path
from random import Random
from typing import Any

import pytest

from harch.base.errors import HarchError, InvariantBroken
from harch.execution.protocol import TaskKey
from harch.hub.explain import explain
from harch.hub.jobs import events as ev
from harch.hub.jobs import task_reports
from harch.hub.jobs.faults import HOLD_S, REST_S_MAX
from harch.hub.jobs.runtime import JobRuntime
from harch.hub.jobs.transaction import Transaction
from harch.placement.explanation import Verdict
from harch.placement.scheduler import Scheduler
from harch.testing.faulty_hub import FaultyHub
from harch.workloads.lifecycle import State
from harch.workloads.spec import Resources, WorkloadSpec

WORLDS, STEPS = 12, 60
numbers = itertools.count()


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "harch.hub")  # hundreds of stacks that were asked for


@pytest.mark.parametrize("seed", range(WORLDS))
async def test_after_every_event_the_books_are_those_of_the_disk(seed: int, tmp_path: Path) -> None:
    hub = FaultyHub(tmp_path, Random(seed))
    for step in range(STEPS):
        wrong = await hub.step()
        assert wrong == [], f"step {step}"
    assert hub.outcomes["failed"] > 0
    await hub.close()


async def test_a_hub_that_only_reports_its_errors_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison above would be worth little if it did not see a leak."""
    monkeypatch.setattr(JobRuntime, "_start_over", lambda _jobs, _why: None)
    hub = FaultyHub(tmp_path, Random(1))
    found: list[str] = []
    for _ in range(300):
        found = await hub.step()
        if found:
            break
    assert found
    await hub.close()


class Story:
    """A hub that fails where it is told to, step by step."""

    def __init__(self, folder: Path) -> None:
        self.hub = FaultyHub(folder, Random(0), faults=0.0)
        self.driver, self.clock, self.world = self.hub.driver, self.hub.clock, self.hub.world
        self.fails_on = ""

    @property
    def machine(self) -> Any:
        return self.driver.machine

    async def submit(self, name: str, gpus: int = 1, **fields: Any) -> str:
        key = f"wl_{name}_{next(numbers)}"
        spec = WorkloadSpec(name=name, resources=Resources(gpus=gpus), **fields)
        await self.driver.handle(ev.Submitted(key, "t", spec))
        return key

    async def join(self) -> None:
        await self.hub._settle()
        while (event := self.world.agent_joined(self.machine)) is not None:
            self.driver.post(event)
            await self.hub._settle()

    async def place(self) -> bool:
        """A round, as the driver asks for it."""
        taken = self.driver.post(ev.PlacementDue())
        await self.hub._settle()
        return taken

    async def later(self, seconds: float) -> None:
        self.clock.jump(seconds)
        await self.join()

    def state(self, key: str) -> State:
        state: State = self.machine.state.registry.workloads[key].state
        return state

    def fail_rounds(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A round fails, in its middle, at the request that `fails_on` names."""
        real = Scheduler._try

        def failing(scheduler: Scheduler, request: Any, now_s: float) -> Any:
            found = real(scheduler, request, now_s)
            if request.id == self.fails_on:
                raise ZeroDivisionError("when it was being placed")
            return found

        monkeypatch.setattr(Scheduler, "_try", failing)

    async def events(self) -> list[str]:
        await self.hub._settle()
        found = self.hub.database.events(after=0, limit=1000, tenant=None, subject=None, kind=None)
        return [event.kind for event in found]


@pytest.fixture
async def story(tmp_path: Path) -> Any:
    made = Story(tmp_path)
    await made.join()
    yield made
    assert made.hub.wrong() == []
    await made.hub.close()


async def test_a_round_that_fails_books_nothing_and_the_next_one_serves_the_others(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    story.fail_rounds(monkeypatch)
    first, bad, last = [await story.submit(name, 8) for name in ("first", "bad", "last")]
    story.fails_on = bad
    assert not await story.place()
    assert story.machine.state.scheduler.running == {}, "what the round had given before it failed is given back"
    await story.later(0.1)
    assert await story.place()
    assert (story.state(first), story.state(bad), story.state(last)) == (
        State.SCHEDULED,
        State.PENDING,
        State.SCHEDULED,
    )
    assert {"hub.fault", "workload.held_back"} <= set(await story.events())
    assert story.driver.faults.total == 1


async def test_work_that_fails_a_round_says_why_it_waits_and_is_tried_again_ever_later(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    story.fail_rounds(monkeypatch)
    story.fails_on = await story.submit("bad", 8)
    waits: list[float] = []
    for _ in range(3):
        await story.place()
        await story.later(0.01)
        state = story.machine.state
        workload = state.registry.workloads[story.fails_on]
        told = explain(story.machine, story.driver.context(), state.request(workload), [], workload)
        assert told.verdict is Verdict.MUST_WAIT
        assert "ZeroDivisionError" in told.sentence
        assert "when it was being placed" not in told.sentence, "its text may hold what others wrote"
        waits.append(state.faults.held(story.fails_on, story.clock.boot_s()).until_s - story.clock.boot_s())
        await story.later(waits[-1])
    assert [round(wait / HOLD_S) for wait in waits] == [1, 2, 4]
    was, story.fails_on = story.fails_on, ""
    assert await story.place()
    assert story.state(was) is State.SCHEDULED, "it is tried again, and now it goes well"


async def test_another_specification_is_tried_at_once(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    story.fail_rounds(monkeypatch)
    bad = story.fails_on = await story.submit("bad", 8)
    await story.place()
    story.fails_on = ""
    await story.later(0.01)
    await story.driver.handle(ev.SpecReplaced(bad, WorkloadSpec(name="bad", resources=Resources(gpus=4)), {}))
    assert await story.place()
    assert story.state(bad) is State.SCHEDULED


async def test_work_that_is_held_back_can_be_stopped(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    story.fail_rounds(monkeypatch)
    bad = story.fails_on = await story.submit("bad", 8)
    await story.place()
    await story.driver.handle(ev.StopRequested(bad, "enough"))
    assert story.state(bad) is State.CANCELLED


async def test_a_fault_that_names_nobody_makes_rounds_rarer_until_one_goes_well(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = await story.submit("waits", 8)
    rounds = 0

    def failing(_scheduler: Scheduler, **_when: Any) -> Any:
        nonlocal rounds
        rounds += 1
        raise ZeroDivisionError

    with monkeypatch.context() as patched:
        patched.setattr(Scheduler, "plan", failing)
        for _ in range(600):
            await story.place()
            await story.later(0.5)
    assert rounds < 15, "five minutes, at most one round a minute in the end"
    await story.later(REST_S_MAX)
    assert await story.place()
    assert story.state(key) is State.SCHEDULED


async def test_whoever_asked_for_what_failed_is_told_so_and_others_are_not_kept(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = await story.submit("kept")
    real = Transaction.changed

    def failing(tx: Any, workload: Any, *told: Any) -> None:
        real(tx, workload, *told)
        if workload.id == kept:
            raise KeyError("a secret of somebody else")

    with monkeypatch.context() as patched:
        patched.setattr(Transaction, "changed", failing)
        with pytest.raises(HarchError) as refused:
            await story.driver.handle(ev.PauseRequested(kept))
        assert refused.value.code == "E1010"
        assert refused.value.kind.status == 500
        assert refused.value.hint
        assert "secret" not in f"{refused.value}{refused.value.meta}"
        with pytest.raises(HarchError) as closed:
            await story.driver.handle(ev.PauseRequested(kept))
        assert closed.value.code == "E0801", "until it is restored it takes nothing"
        await story.hub._settle()
        with pytest.raises(HarchError):
            await story.driver.handle(ev.PauseRequested(kept))
        await story.hub._settle()
        with pytest.raises(HarchError) as resting:
            await story.driver.handle(ev.PauseRequested(kept))
        assert (resting.value.code, resting.value.retry_after_s) == ("E1010", 1), "it failed twice: now it rests"
        assert not story.driver.not_ready
        await story.submit("other")
    await story.later(1.0)
    await story.driver.handle(ev.PauseRequested(kept))
    assert story.state(kept) is State.PAUSED


async def test_what_was_promised_before_a_fault_is_kept(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was on its way to the disk when the hub failed."""
    driver = story.driver
    promised = driver.handle(ev.Submitted("wl_promised", "t", WorkloadSpec(name="promised")))
    with monkeypatch.context() as patched:
        patched.setattr("harch.hub.jobs.commands.stop", lambda *_told: 1 / 0)
        with pytest.raises(HarchError):
            driver.handle(ev.StopRequested("wl_promised", "fails"))
    written = driver.write([], [])  # e.g. a key that somebody makes meanwhile
    await asyncio.gather(promised, written)
    await story.hub._settle()
    assert story.state("wl_promised") is State.PENDING


async def test_a_refusal_that_comes_after_something_changed_is_undone_like_a_fault(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = await story.submit("held")

    def refusing(tx: Any, workload: Any) -> None:
        tx.state.scheduler.withdraw(workload.id)
        raise HarchError("E0304", "too late")

    with monkeypatch.context() as patched:
        patched.setattr("harch.hub.jobs.commands.pause", refusing)
        with pytest.raises(HarchError) as refused:
            await story.driver.handle(ev.PauseRequested(key))
        assert refused.value.code == "E1010"
    await story.hub._settle()
    assert key in story.machine.state.scheduler.queue


async def test_a_broken_invariant_still_ends_the_process(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    key = await story.submit("held")

    def breaking(*_told: Any) -> None:
        raise InvariantBroken("must never happen", key)

    with monkeypatch.context() as patched:
        patched.setattr("harch.hub.jobs.commands.pause", breaking)
        with pytest.raises(InvariantBroken):
            await story.driver.handle(ev.PauseRequested(key))
    assert [broken.rule for broken in story.hub.broken] == ["must never happen"]
    assert "must never happen" in story.driver.not_ready
    story.hub.broken.clear()
    story.driver.not_ready = ""  # for the closing look


async def test_reports_of_an_agent_are_not_lost_with_the_one_that_fails(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, bad = await story.submit("good"), await story.submit("bad")
    await story.place()
    real = task_reports.task_started

    def failing(tx: Any, key: Any) -> None:
        real(tx, key)
        if key.workload_id == bad:
            raise ZeroDivisionError

    monkeypatch.setattr(task_reports, "task_started", failing)
    frame = [ev.TaskStartSeen(TaskKey(key, 1, 0)) for key in (bad, good)]
    for _ in range(3):
        story.driver.post(*frame)
        await story.hub._settle()
    assert story.state(good) is State.RUNNING
    assert story.state(bad) is State.SCHEDULED


async def test_a_task_whose_secrets_cannot_be_opened_ends_and_keeps_no_other_from_starting(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreadable(_tenant: str, _names: tuple[str, ...]) -> dict[str, str]:
        raise ValueError("the key file is another one")

    monkeypatch.setattr(story.driver, "_open_secrets", unreadable)
    sealed = await story.submit("sealed", command=("true",), secrets=("TOKEN",))
    plain = await story.submit("plain", command=("true",))
    await story.place()
    for _ in range(10):
        await asyncio.sleep(0)
    await story.hub._settle()
    assert story.state(sealed) is State.FAILED
    assert "secrets cannot be opened" in story.machine.state.registry.workloads[sealed].error_message
    started = {key.workload_id for agent in story.world.agents.values() for key in agent.running}
    assert started == {plain}


async def test_stored_work_that_cannot_be_taken_over_is_set_aside_and_the_hub_starts(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, bad = await story.submit("good"), await story.submit("bad")
    real = story.machine.state.__class__.request

    def failing(tx: Any, workload: Any) -> Any:
        if workload.id == bad:
            raise ValueError("a field that this version does not understand")
        return real(tx, workload)

    with monkeypatch.context() as patched:
        patched.setattr(story.machine.state.__class__, "request", failing)
        story.driver._restore()
        assert not story.driver.not_ready
        assert good in story.machine.state.scheduler.queue
        assert story.machine.state.set_aside == {bad}
