"""The runtime of the job machine over a real store: what is refused, written, sent and kept, and how it recovers."""

from __future__ import annotations

import asyncio
import errno
import itertools
import logging
import sqlite3
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path

import pytest

from harch.base.clock import SteadyClock
from harch.base.errors import HarchError, InvariantBroken
from harch.carbon.planning.settings import PlanningEntry, PlanSettings
from harch.execution.protocol import HubMessage, StartTask
from harch.federation.offers import BidRequest, Bids, DropBids, LeaseTerms, LendingMessage
from harch.hub.audit import table
from harch.hub.audit.table import AuditTrail
from harch.hub.jobs import effects as fx
from harch.hub.jobs import events as ev
from harch.hub.jobs import runtime as runtimes
from harch.hub.jobs.faults import HOLD_S
from harch.hub.jobs.machine import JobMachine
from harch.hub.jobs.runtime import EQUIP_FAULTS_MAX, RETRY_S, RETRY_S_MAX, JobRuntime
from harch.hub.policy.decisions import ActivePolicy
from harch.hub.store import committer, rows
from harch.hub.store.database import Database
from harch.hub.views import WorkloadQuery
from harch.placement.scheduler import Scheduler
from harch.sovereignty.audit.chain import ChainHead, Draft
from harch.sovereignty.compiled import Rules
from harch.sovereignty.geography import Terrain
from harch.testing.agents import SimAgent
from harch.testing.clock import SimClock
from harch.testing.faulty_hub import FlakyDatabase
from harch.testing.samples import tiny_fleet
from harch.workloads.lifecycle import ExitReason, State, Workload
from harch.workloads.spec import Resources, WorkloadSpec, WorkloadType

SPEC = WorkloadSpec(name="one", command=("true",), resources=Resources(gpus=1))
SUBMIT = ev.Submitted("wl_1", "t", SPEC)


class Observed:
    """What the observer of a runtime saw."""

    def __init__(self) -> None:
        self.machines: list[JobMachine] = []
        self.events: list[str] = []
        self.kinds: list[str] = []

    def restored(self, machine: JobMachine) -> None:
        self.machines.append(machine)

    def handled(self, event: ev.Event, effects: list[fx.Effect], now: object) -> None:
        self.events.append(type(event).__name__)

    def recorded(self, record: fx.Record, now: object) -> None:
        self.kinds.append(record.kind)


class Running:
    """One hub on its own disk. `again` is a second process that finds the first one's disk."""

    def __init__(
        self,
        folder: Path,
        *,
        leases: LeaseTerms | None = None,
        held: HarchError | None = None,
        clock: SimClock | None = None,
    ) -> None:
        fleet = tiny_fleet()
        self.clock = clock or SimClock()
        self.database = FlakyDatabase(folder / "hub.db")
        self.hub, self.seen = fleet.hubs[0], Observed()
        self.sent: list[tuple[str, HubMessage | LendingMessage]] = []
        self.restarts: list[str] = []
        self.broken: list[InvariantBroken] = []
        self.noted: list[tuple[ChainHead, int]] = []
        self.open_secrets: Callable[[str, tuple[str, ...]], dict[str, str]] = lambda tenant, names: {
            name: f"{tenant}/{name}" for name in names
        }
        self.runtime = JobRuntime(
            fleet=fleet,
            hub=self.hub,
            rules=Rules(Terrain((), ())),
            settings=None,
            database=self.database,
            trail=AuditTrail(self.hub.id, self.database, self.clock),
            clock=SteadyClock(self.clock),
            send=lambda to, message: self.sent.append((to, message)),
            send_peer=lambda to, message: self.sent.append((to, message)),
            open_secrets=lambda tenant, names: self.open_secrets(tenant, names),
            observer=self.seen,
            policy=ActivePolicy(self.database),
            on_restart=self.restarts.append,
            on_broken=self.broken.append,
            leases=leases,
            note_head=lambda head, events: self.noted.append((head, events)),
            held=held,
        )

    @property
    def state(self) -> object:
        return self.runtime.machine.state

    async def join(self, session: int = 1) -> None:
        await self.runtime.handle(ev.AgentJoined(SimAgent("agent", self.hub.country).hello(), session))

    async def settle(self) -> None:
        """Until it is ready again and everything is on disk."""
        for _ in range(5000):
            await asyncio.to_thread(lambda: None)
            if not self.runtime.not_ready:
                break
            if self.clock.sleeper_count:  # else it waits for the disk
                await self.clock.advance(1.0)
        if self.runtime._committer.failed is None:
            await self.runtime._committer.drain()
        await asyncio.sleep(0)

    def kinds(self) -> list[str]:
        found = self.database.events(after=0, limit=1000, tenant=None, subject=None, kind=None)
        return [event.kind for event in found]

    def work(self, workload_id: str = "wl_1") -> Workload:
        return self.runtime.machine.state.registry.workloads[workload_id]

    async def close(self) -> None:
        await self.runtime.close()
        self.database.close()


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "harch.hub")
    monkeypatch.setattr(runtimes, "GATHER_S", 0.0)


@pytest.fixture
async def hub(tmp_path: Path) -> AsyncIterator[Running]:
    made = Running(tmp_path)
    await made.join()
    yield made
    await made.settle()
    await made.close()


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


class TestHandling:
    async def test_an_event_is_on_disk_when_it_resolves_and_has_been_observed(self, hub: Running) -> None:
        before = hub.runtime.seq
        await hub.runtime.handle(SUBMIT)
        stored = hub.database.workload("wl_1", tenant=None)
        assert stored == hub.work()
        assert hub.runtime.seq == hub.runtime.seq_stored == hub.database.last_event() == before + 1
        assert hub.seen.events[-1] == "Submitted"
        assert hub.seen.kinds[-1] == "workload.submitted"
        assert hub.noted[-1] == (table.head(hub.database), before + 1)
        assert hub.runtime.not_ready == ""

    async def test_a_line_of_the_history_says_when_of_what_and_for_whom(self, hub: Running) -> None:
        await hub.runtime.handle(SUBMIT)
        event = hub.database.events(after=0, limit=99, tenant=None, subject="wl_1", kind=None)[0]
        assert (event.kind, event.subject, event.tenant) == ("workload.submitted", "wl_1", "t")
        assert (event.seq, event.at) == (hub.runtime.seq, hub.clock.now())
        assert event.message.startswith("submitted: ")
        assert event.data["name"] == "one"

    async def test_several_events_are_written_together_and_each_workload_once(self, hub: Running) -> None:
        done = hub.runtime.handle(SUBMIT, ev.Relabelled("wl_1", {"a": "b"}), ev.PlacementDue())
        await done
        stored = hub.database.workload("wl_1", tenant=None)
        assert stored is not None
        assert (stored.state, stored.spec.labels) == (State.SCHEDULED, {"a": "b"})
        assert hub.seen.events[-3:] == ["Submitted", "Relabelled", "PlacementDue"]

    async def test_work_with_another_specification_is_found_by_its_new_name_and_type(self, hub: Running) -> None:
        await hub.runtime.handle(SUBMIT)
        spec = WorkloadSpec(name="renamed", type=WorkloadType.INFERENCE, resources=Resources(gpus=1))
        await hub.runtime.handle(ev.SpecReplaced("wl_1", spec, {}))
        found = hub.database.workload("renamed", tenant="t")
        assert found is not None
        assert found.id == "wl_1"
        assert hub.database.workload(SUBMIT.spec.name, tenant="t") is None
        assert [one.id for one in hub.database.workloads(WorkloadQuery(tenant="t", type="inference")).items] == ["wl_1"]

    async def test_a_refusal_is_raised_at_once_and_leaves_nothing(self, hub: Running) -> None:
        before = hub.runtime.seq
        with pytest.raises(HarchError) as refused:
            hub.runtime.handle(ev.StopRequested("wl_x", "enough"))
        assert refused.value.code == "E0304"
        assert hub.runtime.seq == before
        assert hub.restarts == []

    async def test_what_came_before_a_refusal_is_kept(self, hub: Running) -> None:
        with pytest.raises(HarchError) as refused:
            hub.runtime.handle(SUBMIT, ev.StopRequested("wl_x", "enough"), ev.Noted("never", "", ""))
        assert refused.value.code == "E0304"
        await hub.settle()
        assert hub.database.workload("wl_1", tenant=None) is not None
        assert "never" not in hub.kinds()
        assert hub.restarts == []

    async def test_messages_leave_once_they_are_on_disk_with_their_secrets(self, hub: Running) -> None:
        await hub.runtime.handle(ev.Submitted("wl_1", "t", WorkloadSpec(name="s", secrets=("TOKEN",), command=("x",))))
        hub.sent.clear()
        done = hub.runtime.handle(ev.PlacementDue())
        assert hub.sent == []
        await done
        await turns()
        ((agent, message),) = hub.sent
        assert agent == "agent"
        assert isinstance(message, StartTask)
        assert message.task.secrets == {"TOKEN": "t/TOKEN"}

    async def test_secrets_that_cannot_be_opened_end_the_task_and_keep_no_other_message_back(
        self, hub: Running
    ) -> None:
        for number, secrets in ((1, ("TOKEN",)), (2, ())):
            spec = WorkloadSpec(name=f"job-{number}", command=("x",), secrets=secrets, resources=Resources(gpus=8))
            await hub.runtime.handle(ev.Submitted(f"wl_{number}", "t", spec))

        def closed(_tenant: str, _names: tuple[str, ...]) -> dict[str, str]:
            raise KeyError("the key is gone")

        hub.open_secrets = closed
        hub.sent.clear()
        await hub.runtime.handle(ev.PlacementDue())
        await turns()
        await hub.settle()
        started = [message.task.key.workload_id for _, message in hub.sent if isinstance(message, StartTask)]
        assert started == ["wl_2"]
        assert hub.work("wl_1").state is State.FAILED
        (end,) = hub.work("wl_1").task_ends
        assert (end.reason, end.detail) == (ExitReason.NOT_STARTED, "its secrets cannot be opened (KeyError)")
        assert hub.runtime.faults.total == 1

    async def test_a_message_to_a_peer_goes_there(self, hub: Running) -> None:
        await hub.runtime.handle(ev.PeerMessageReceived("dakar", BidRequest(1, ())))
        await turns()
        assert hub.sent[-1] == ("dakar", Bids(number=1, bids=()))

    async def test_an_older_commit_never_sets_what_is_stored_back(self, hub: Running) -> None:
        first = hub.runtime.handle(ev.Noted("a", "", ""))
        second = hub.runtime.handle(ev.Noted("b", "", ""))
        await asyncio.gather(first, second)
        await turns()
        assert hub.runtime.seq_stored == hub.runtime.seq
        hub.runtime._stored(first, 1, [])
        assert hub.runtime.seq_stored == hub.runtime.seq

    async def test_followers_wake_when_something_newer_is_stored(self, hub: Running) -> None:
        runtime = hub.runtime
        await runtime.wait_for_event(runtime.seq_stored - 1, timeout_s=60.0)
        follower = asyncio.ensure_future(runtime.wait_for_event(runtime.seq_stored, timeout_s=60.0))
        await turns()
        assert not follower.done()
        await runtime.handle(ev.Noted("a", "", ""))
        await turns()
        assert follower.done()
        await runtime.wait_for_event(runtime.seq_stored, timeout_s=0.0)
        assert runtime._waiters == set()

    async def test_the_context_of_an_event_is_what_is_in_force(self, hub: Running) -> None:
        settings = PlanSettings(PlanningEntry(moves_per_hour=9))
        hub.runtime.plan_by(settings)
        hub.runtime.bid_with(ev.BidPower(5.0, 6.0))
        await hub.clock.advance(7.0)
        context = hub.runtime.context()
        assert (context.limits.carbon, context.power) == (settings, ev.BidPower(5.0, 6.0))
        assert (context.now, context.boot_s) == (hub.clock.now(), hub.clock.boot_s())
        assert context.policy_version == ActivePolicy(hub.database).version

    async def test_the_clock_of_an_agent_is_passed_on(self, hub: Running) -> None:
        await hub.clock.advance(3.0)
        hub.runtime.note_agent_clock("agent", 42.0)
        assert hub.runtime.machine.state.agents.agents["agent"].clock == (42.0, hub.clock.boot_s())

    async def test_a_disk_that_cannot_keep_up_refuses_before_anything_changes(
        self, hub: Running, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(committer, "BATCHES_QUEUED_MAX", 0)
        with pytest.raises(HarchError, match="cannot keep up"):
            hub.runtime.handle(SUBMIT)
        assert "wl_1" not in hub.runtime.machine.state.registry.workloads
        monkeypatch.undo()

    async def test_old_events_and_keys_are_dropped_once_in_a_while(
        self, hub: Running, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(runtimes, "TRIM_EVERY_EVENTS", 10)
        monkeypatch.setattr(rows, "EVENTS_MAX", 4)
        await hub.runtime.handle(ev.Submitted("wl_k", "t", SPEC, {}, "key"))
        await hub.clock.advance(25 * 3600.0)
        while hub.runtime.seq < 9:
            await hub.runtime.handle(ev.Noted(f"n{hub.runtime.seq}", "", ""))
        assert len(hub.kinds()) == 9
        assert len(hub.database.idempotency_keys(hub.clock.now() - timedelta(days=9))) == 1
        await hub.runtime.handle(ev.Noted("tenth", "", ""))
        found = [event.seq for event in hub.database.events(after=0, limit=99, tenant=None, subject=None, kind=None)]
        assert sorted(found) == [6, 7, 8, 9, 10]
        assert hub.database.idempotency_keys(hub.clock.now() - timedelta(days=9)) == []


class TestPosting:
    async def test_what_is_taken_is_stated(self, hub: Running) -> None:
        assert hub.runtime.post(ev.Noted("a", "", ""))
        hub.runtime.note("b", "subject", "message")
        assert not hub.runtime.post(ev.StopRequested("wl_x", "enough"))
        await hub.settle()
        assert hub.kinds()[-2:] == ["a", "b"]

    async def test_nothing_is_taken_while_the_hub_is_not_ready(self, hub: Running) -> None:
        hub.runtime.not_ready = "starting"
        assert not hub.runtime.post(ev.Noted("a", "", ""))
        with pytest.raises(HarchError) as refused:
            hub.runtime.handle(ev.Noted("a", "", ""))
        assert (refused.value.code, refused.value.retry_after_s) == ("E0801", 2)
        assert refused.value.message == "hub Dakhla is not ready: starting"
        hub.runtime.not_ready = ""

    async def test_a_line_of_the_audit_chain_is_written_beside_the_machine(self, hub: Running) -> None:
        before = table.head(hub.database)
        await hub.runtime.record(Draft("kind", "subject", "done"))
        assert table.head(hub.database).seq == before.seq + 1
        await hub.runtime.write([("UPDATE schema_version SET version = version", ())], [])
        assert table.head(hub.database).seq == before.seq + 1

    async def test_what_is_turned_away_at_once_leaves_chain_and_events_where_they_were(self, hub: Running) -> None:
        head, seq = hub.runtime._trail.head, hub.runtime.seq
        hub.runtime._committer.failed = HarchError("E1003", "broken")
        with pytest.raises(HarchError, match="broken"):
            await hub.runtime.record(Draft("kind", "subject", "done"))
        assert (hub.runtime._trail.head, hub.runtime.seq) == (head, seq)
        hub.runtime._committer.reset()
        await hub.runtime.record(Draft("kind", "subject", "done"))


def work_of(hub: Running) -> Workload:
    now = hub.clock.now()
    return Workload(id="wl", tenant="t", owner_hub="h", spec=SPEC, created_at=now, updated_at=now)


class TestRounds:
    async def test_a_round_is_planned_once_and_places_what_waits(self, hub: Running) -> None:
        await hub.runtime.handle(SUBMIT)
        hub.runtime.plan_placement()
        hub.runtime.plan_placement()
        await turns()
        await hub.settle()
        assert hub.work().state is State.SCHEDULED
        assert hub.seen.events.count("PlacementDue") == 1
        await hub.runtime.handle(ev.Submitted("wl_2", "t", WorkloadSpec(name="two", resources=Resources(gpus=1))))
        hub.runtime.plan_placement()
        await turns()
        await hub.settle()
        assert hub.work("wl_2").state is State.SCHEDULED

    async def test_a_round_comes_again_while_more_is_to_place(self, hub: Running) -> None:
        hub.runtime._limits = ev.JobLimits(placed_per_round_max=1)
        for number in range(3):
            spec = WorkloadSpec(name=f"j{number}", resources=Resources(gpus=1))
            await hub.runtime.handle(ev.Submitted(f"wl_{number}", "t", spec))
        hub.runtime.plan_placement()
        await turns(20)
        await hub.settle()
        assert [hub.work(f"wl_{number}").state for number in range(3)] == [State.SCHEDULED] * 3

    async def test_no_round_without_work_or_while_the_hub_is_not_ready(self, hub: Running) -> None:
        await turns()
        hub.seen.events.clear()
        hub.runtime.plan_placement()
        await turns()
        assert hub.seen.events == []
        await hub.runtime.handle(SUBMIT)
        hub.seen.events.clear()
        hub.runtime.not_ready = "stopping"
        hub.runtime.plan_placement()
        hub.runtime.not_ready = ""
        await turns()
        assert hub.seen.events == []
        hub.runtime.plan_placement()
        hub.runtime.not_ready = "stopping"
        await turns()
        hub.runtime.not_ready = ""
        assert hub.seen.events == []

    async def test_work_that_waits_for_time_to_pass_is_looked_at_each_second(self, hub: Running) -> None:
        await hub.runtime.handle(SUBMIT)
        hub.seen.events.clear()
        task = asyncio.create_task(hub.runtime.keep_placing())
        await hub.clock.advance(0.9)
        await turns()
        assert hub.seen.events == []
        await hub.clock.advance(0.1)
        await turns()
        assert hub.seen.events == ["PlacementDue"]
        task.cancel()

    async def test_carbon_is_due_when_the_machine_says_so(self, hub: Running, monkeypatch: pytest.MonkeyPatch) -> None:
        due = [False, True]
        monkeypatch.setattr(JobMachine, "is_carbon_due", lambda *_: due.pop(0))
        task = asyncio.create_task(hub.runtime.keep_placing())
        hub.seen.events.clear()
        await hub.clock.advance(1.0)
        assert "CarbonDue" not in hub.seen.events
        await hub.clock.advance(1.0)
        assert "CarbonDue" in hub.seen.events
        task.cancel()

    async def test_lending_is_looked_at_twenty_times_a_second_where_something_is_due(
        self, hub: Running, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        due, rounds = [False, True], list[int]()
        monkeypatch.setattr(JobMachine, "is_lending_due", lambda *_: due.pop(0))
        monkeypatch.setattr(hub.runtime, "plan_placement", lambda: rounds.append(1))
        hub.runtime.machine.state.lending.unbooked["wl"] = work_of(hub)
        task = asyncio.create_task(hub.runtime.keep_lending())
        hub.seen.events.clear()
        await hub.clock.advance(0.05)
        assert hub.seen.events == []
        await hub.clock.advance(0.05)
        assert (hub.seen.events, rounds) == (["LendingDue"], [1])
        task.cancel()

    async def test_idle_lending_is_looked_at_right_after_an_event_and_once_a_second(
        self, hub: Running, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        looks = list[float]()
        monkeypatch.setattr(JobMachine, "is_lending_due", lambda *_: bool(looks.append(hub.clock.monotonic_s())))
        task = asyncio.create_task(hub.runtime.keep_lending())
        await hub.clock.advance(0.5)
        hub.runtime._happened.clear()  # what the hub's start has left
        assert len(looks) <= 1
        looks.clear()
        await hub.clock.advance(3.0)
        assert 2 <= len(looks) <= 3
        looks.clear()
        hub.runtime.note("kind", "subject", "something happened")
        at_s = hub.clock.monotonic_s()
        await hub.clock.advance(0.1)
        assert looks == [pytest.approx(at_s + 0.05)]
        task.cancel()

    async def test_tags_are_audited_every_two_seconds_while_work_reads_data(
        self, hub: Running, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        task = asyncio.create_task(hub.runtime.keep_auditing())
        hub.seen.events.clear()
        await hub.clock.advance(2.0)
        assert hub.seen.events == []
        hub.runtime.machine.state.guard._readers["wl"] = work_of(hub)
        hub.runtime.machine.state.guard._readers["wl"].scrub = True
        await hub.clock.advance(1.9)
        assert hub.seen.events == []
        await hub.clock.advance(0.1)
        assert hub.seen.events == ["TagsDue"]
        task.cancel()

    async def test_a_loop_that_an_error_ends_begins_anew(self, hub: Running) -> None:
        calls = 0

        async def run() -> None:
            nonlocal calls
            calls += 1
            if calls == 1:
                raise KeyError(calls)

        task = asyncio.create_task(hub.runtime.kept_up("looping", run))
        await hub.clock.advance(10.0)
        await task
        assert (calls, hub.runtime.faults.total) == (2, 1)


class Space:
    """As full as a test says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.error: OSError | None = None
        self.saves: list[bool] = []
        monkeypatch.setattr(Database, "renew_reserve", lambda _: self._renew())
        monkeypatch.setattr(Database, "save_space", lambda _, on: self.saves.append(on))

    def _renew(self) -> None:
        if self.error is not None:
            raise self.error


class TestAFullDisk:
    async def test_only_what_ends_work_is_taken_until_there_is_space(
        self, hub: Running, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await hub.runtime.handle(SUBMIT)
        space = Space(monkeypatch)
        space.error = OSError(errno.ENOSPC, "No space left on device")
        await hub.runtime.look_at_space()
        await hub.runtime.look_at_space()
        assert space.saves == [True], "once"
        more = ev.Noted("more", "", "")
        stop = ev.StopRequested("wl_1", "enough")
        for events in ((more,), (stop, more)):
            with pytest.raises(HarchError) as refused:
                hub.runtime.handle(*events)
            assert refused.value.code == "E1002"
        assert not hub.runtime.post(more)
        with pytest.raises(HarchError):
            await hub.runtime.write([], [])
        hub.seen.events.clear()
        hub.runtime.plan_placement()
        await turns()
        assert hub.seen.events == [], "no round"
        assert not hub.runtime.post(more, stop), "half of it"
        await hub.settle()
        assert hub.work().state is State.CANCELLED
        space.error = None
        await hub.runtime.look_at_space()
        assert space.saves == [True, False]
        assert hub.runtime.short_of_space is None
        assert hub.runtime._placement_planned
        await hub.runtime.handle(more)
        assert "store.recovered" in hub.kinds()

    async def test_another_failure_of_the_disk_is_not_a_full_one(
        self, hub: Running, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        space = Space(monkeypatch)
        space.error = OSError(errno.EACCES, "Permission denied")
        with pytest.raises(OSError, match="Permission"):
            await hub.runtime.look_at_space()
        assert hub.runtime.short_of_space is None

    async def test_the_reserve_is_renewed_every_few_seconds_whatever_fails(
        self, hub: Running, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        looked = 0

        async def look() -> None:
            nonlocal looked
            looked += 1
            raise KeyError("unforeseen")

        monkeypatch.setattr(hub.runtime, "look_at_space", look)
        task = asyncio.create_task(hub.runtime.keep_reserve())
        await hub.clock.advance(4.9)
        assert looked == 1
        await hub.clock.advance(0.1)
        assert looked == 2
        task.cancel()


class TestHolding:
    WHY = HarchError("E1006", "the chain is broken", hint="see the log")

    async def test_a_hub_that_is_held_decides_and_writes_nothing_until_it_is_released(self, hub: Running) -> None:
        hub.runtime.hold(self.WHY)
        hub.runtime.hold(self.WHY)
        assert hub.restarts == ["the chain is broken"], "agents are dropped once"
        assert hub.runtime.not_ready == "the chain is broken; see the log"
        assert not hub.runtime.opened.is_set()
        with pytest.raises(HarchError) as refused:
            hub.runtime.handle(SUBMIT)
        assert (refused.value.code, refused.value.message, refused.value.hint) == (
            "E1006",
            "the chain is broken",
            "see the log",
        )
        with pytest.raises(HarchError, match="the chain is broken"):
            await hub.runtime.record(Draft("kind", "subject", "done"))
        machine = hub.runtime.machine
        hub.runtime.release()
        assert hub.runtime.machine is not machine
        assert hub.runtime.not_ready == ""
        assert hub.runtime.opened.is_set()
        await hub.runtime.handle(SUBMIT)

    async def test_a_hub_that_starts_held_reads_and_does_nothing(self, tmp_path: Path) -> None:
        hub = Running(tmp_path, held=self.WHY)
        assert hub.runtime.not_ready == "the chain is broken; see the log"
        assert not hub.runtime.opened.is_set()
        with pytest.raises(HarchError):
            hub.runtime.handle(SUBMIT)
        with pytest.raises(HarchError):
            await hub.runtime.record(Draft("kind", "subject", "done"))
        hub.runtime.release()
        await hub.runtime.handle(SUBMIT)
        await hub.close()


class TestRestarting:
    async def test_a_new_process_finds_everything_and_names_another_lifetime(
        self, hub: Running, tmp_path: Path
    ) -> None:
        await hub.runtime.handle(ev.Submitted("wl_1", "t", SPEC, {}, "key"))
        await hub.runtime.handle(ev.HardwareChanged("cordoned", "dakhla-r01-n01", 1))
        other = Running(tmp_path, clock=hub.clock)
        assert other.work() == hub.work()
        assert other.runtime.seq == other.runtime.seq_stored == hub.runtime.seq
        assert other.runtime.machine.state.scheduler.room.cordoned[0]
        assert other.seen.machines == [other.runtime.machine]
        lifetimes = {one.runtime.machine.state.lending.lifetime for one in (hub, other)}
        assert len(lifetimes) == 2
        assert all(len(one) == 12 for one in lifetimes)
        assert other.runtime.handle(ev.Submitted("wl_2", "t", SPEC, {}, "key")) is not None
        assert "wl_2" not in other.runtime.machine.state.registry.workloads
        await other.close()

    async def test_the_first_round_comes_by_itself(self, hub: Running, tmp_path: Path) -> None:
        await hub.runtime.handle(SUBMIT)
        other = Running(tmp_path, clock=hub.clock)
        await turns()
        assert other.seen.events == ["PlacementDue"]
        await other.close()

    async def test_leases_make_a_hub_one_of_several(self, tmp_path: Path) -> None:
        terms = LeaseTerms(batch_s=77.0)
        several, alone = Running(tmp_path, leases=terms), Running(tmp_path)
        assert several.runtime.machine.state.lending.enabled
        assert several.runtime.machine.state.lending.terms is terms
        assert not alone.runtime.machine.state.lending.enabled
        await several.close()
        await alone.close()

    async def test_a_scheduler_is_equipped_unless_rounds_fail_with_it(
        self, hub: Running, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        equipped: list[Scheduler] = []
        hub.runtime.equip = equipped.append
        hub.runtime._restore()
        assert equipped == [hub.runtime.machine.state.scheduler]
        for _ in range(EQUIP_FAULTS_MAX - 1):
            hub.runtime.faults.failed(ev.PlacementDue(), KeyError(), 0.0)
        hub.runtime._restore()
        assert len(equipped) == 2
        hub.runtime.faults.failed(ev.PlacementDue(), KeyError(), 0.0)
        hub.runtime._restore()
        assert len(equipped) == 2

        def broken(_scheduler: Scheduler) -> None:
            raise KeyError("policy")

        hub.runtime.faults.went_well(ev.PlacementDue())
        hub.runtime.equip = broken
        hub.runtime._restore()
        assert hub.runtime.not_ready == "", "best fit needs none"

    async def test_closing_writes_what_is_left_and_takes_no_more(self, tmp_path: Path) -> None:
        hub = Running(tmp_path)
        hub.runtime.handle(ev.Noted("last", "", ""))
        await hub.runtime.close()
        assert hub.kinds() == ["last"]
        assert hub.runtime.not_ready == "stopping"
        with pytest.raises(HarchError, match="stopping"):
            hub.runtime.handle(ev.Noted("late", "", ""))
        hub.database.close()


class TestFaults:
    def failing(self, monkeypatch: pytest.MonkeyPatch, *errors: BaseException) -> None:
        """The next submissions fail, one error each."""
        left, real = list(errors), JobMachine.apply

        def apply(machine: JobMachine, event: ev.Event, context: ev.EventContext) -> list[fx.Effect]:
            done = real(machine, event, context)
            if left and isinstance(event, ev.Submitted):
                raise left.pop(0)
            return done

        monkeypatch.setattr(JobMachine, "apply", apply)

    async def test_an_error_undoes_the_event_drops_the_agents_and_is_recorded(
        self, hub: Running, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.failing(monkeypatch, KeyError("unforeseen"))
        with pytest.raises(HarchError) as failed:
            hub.runtime.handle(SUBMIT)
        error = failed.value
        assert (error.code, error.retry_after_s) == ("E1010", 1)
        assert error.message == "the hub failed at `submitted`; nothing of it was kept"
        assert hub.restarts == ["it failed at `submitted` and restores its state from disk"]
        assert hub.runtime.not_ready == hub.restarts[0]
        await hub.settle()
        assert hub.runtime.not_ready == ""
        assert "wl_1" not in hub.runtime.machine.state.registry.workloads
        assert hub.kinds()[-1] == "hub.fault"
        assert hub.runtime.faults.total == 1
        assert hub.runtime.seq == hub.database.last_event()
        await hub.runtime.handle(SUBMIT)
        assert hub.runtime.faults.times(SUBMIT) == 0

    async def test_what_fails_again_rests_and_the_error_says_how_long(
        self, hub: Running, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.failing(monkeypatch, KeyError(), KeyError(), KeyError())
        for retry_after_s, rest_s in ((1, 0.0), (1, 1.0), (2, 2.0)):
            with pytest.raises(HarchError) as failed:
                hub.runtime.handle(SUBMIT)
            assert (failed.value.code, failed.value.retry_after_s) == ("E1010", retry_after_s)
            await hub.settle()
            assert hub.runtime.faults.rest_s(SUBMIT, hub.clock.boot_s()) == rest_s
            if rest_s:
                with pytest.raises(HarchError, match="failed at `submitted`") as resting:
                    hub.runtime.handle(ev.Noted("beside", "", ""), SUBMIT)
                assert resting.value.retry_after_s == retry_after_s
                assert not hub.runtime.post(SUBMIT)
                assert not hub.runtime.post(ev.Noted("beside", "", ""), SUBMIT), "half of it"
            hub.clock.jump(rest_s / 2)
            assert not (rest_s and hub.runtime.post(SUBMIT)), "half of its rest is no rest"
            hub.clock.jump(rest_s / 2)
        await hub.runtime.handle(SUBMIT)

    async def test_a_refusal_that_comes_too_late_is_a_fault_too(
        self, hub: Running, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.failing(monkeypatch, HarchError("E0201", "too late"))
        with pytest.raises(HarchError) as failed:
            hub.runtime.handle(SUBMIT)
        assert failed.value.code == "E1010"
        await hub.settle()
        assert "wl_1" not in hub.runtime.machine.state.registry.workloads

    async def test_a_broken_invariant_ends_the_process(self, hub: Running, monkeypatch: pytest.MonkeyPatch) -> None:
        broken = InvariantBroken("residency", "wl_1", "dakhla")
        self.failing(monkeypatch, broken)
        with pytest.raises(InvariantBroken):
            hub.runtime.handle(SUBMIT)
        assert hub.broken == [broken]
        assert hub.runtime.not_ready == str(broken)
        assert hub.restarts == []
        hub.runtime.not_ready = ""
        hub.runtime._restore()

    async def test_work_that_a_round_failed_on_waits_aside(self, hub: Running, monkeypatch: pytest.MonkeyPatch) -> None:
        await hub.runtime.handle(SUBMIT)
        real = Scheduler._try

        def failing(scheduler: Scheduler, request: object, now_s: float) -> object:
            real(scheduler, request, now_s)  # type: ignore[arg-type]
            raise ZeroDivisionError

        with monkeypatch.context() as patched:
            patched.setattr(Scheduler, "_try", failing)
            assert not hub.runtime.post(ev.PlacementDue())
        await hub.settle()
        assert hub.runtime.machine.state.set_aside == {"wl_1"}
        assert {"hub.fault", "workload.held_back"} <= set(hub.kinds())
        await hub.join(2)
        hub.clock.jump(HOLD_S)
        await hub.runtime.handle(ev.PlacementDue())
        assert hub.work().state is State.SCHEDULED

    async def test_a_write_that_fails_starts_over_from_the_disk_and_says_so(self, hub: Running) -> None:
        hub.database.fails_at = "commit"
        with pytest.raises(HarchError) as failed:
            await hub.runtime.handle(SUBMIT)
        assert failed.value.code in ("E1002", "E1003")
        assert hub.runtime.not_ready == failed.value.message
        assert hub.restarts == [failed.value.message]
        with pytest.raises(HarchError) as refused:
            hub.runtime.handle(SUBMIT)
        assert refused.value is failed.value, "one cause, one error"
        await hub.settle()
        assert hub.runtime.not_ready == ""
        assert "wl_1" not in hub.runtime.machine.state.registry.workloads
        await hub.runtime.handle(SUBMIT)
        assert hub.kinds().count("store.recovered") == 1

    async def test_a_disk_that_is_full_when_it_is_written_to_is_full_until_the_reserve_is_back(
        self, hub: Running, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        space = Space(monkeypatch)
        hub.database.fails_at = "begin"
        with pytest.raises(HarchError) as failed:
            await hub.runtime.handle(SUBMIT)
        assert failed.value.code == "E1002"
        await hub.settle()
        assert hub.runtime.short_of_space is failed.value
        assert space.saves == [True]
        await hub.runtime.look_at_space()
        assert hub.runtime.short_of_space is None

    async def test_a_disk_that_fails_again_is_waited_for(self, hub: Running, monkeypatch: pytest.MonkeyPatch) -> None:
        real, fails = Database.write, [sqlite3.OperationalError("disk I/O error")] * 2

        def write(database: Database, statements: object) -> None:
            if fails:
                raise fails.pop()
            real(database, statements)  # type: ignore[arg-type]

        monkeypatch.setattr(Database, "write", write)
        hub.database.fails_at = "commit"
        with pytest.raises(HarchError):
            await hub.runtime.handle(SUBMIT)
        await turns()
        for _ in range(3):
            assert hub.runtime.not_ready
            await hub.clock.advance(RETRY_S)
        await hub.settle()
        assert (hub.runtime.not_ready, fails) == ("", [])

    async def test_a_machine_that_cannot_be_rebuilt_is_tried_again_ever_later(
        self, hub: Running, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        real, tries = hub.runtime._restore, list[float]()

        def restore() -> None:
            tries.append(hub.clock.monotonic_s())
            if len(tries) < 8:
                raise KeyError("unforeseen")
            real()

        monkeypatch.setattr(hub.runtime, "_restore", restore)
        self.failing(monkeypatch, KeyError())
        with pytest.raises(HarchError):
            hub.runtime.handle(SUBMIT)
        await asyncio.to_thread(lambda: None)
        await turns(50)
        assert hub.runtime.not_ready == "it cannot be restored from disk (KeyError)"
        await hub.clock.advance(200.0)
        await hub.settle()
        gaps = [later - earlier for earlier, later in itertools.pairwise(tries)]
        assert gaps == [1.0, 2.0, 4.0, 8.0, 16.0, RETRY_S_MAX, RETRY_S_MAX]
        assert hub.runtime.faults.total == 8

    async def test_pending_work_that_cannot_be_loaded_is_set_aside_and_the_rest_comes_back(
        self, hub: Running, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await hub.runtime.handle(SUBMIT)
        await hub.runtime.handle(ev.Submitted("wl_2", "t", WorkloadSpec(name="two", resources=Resources(gpus=1))))
        real = Scheduler.submit

        def submit(scheduler: Scheduler, request: object, *, now_s: float) -> None:
            if request.id == "wl_1":  # type: ignore[attr-defined]
                raise ZeroDivisionError
            real(scheduler, request, now_s=now_s)  # type: ignore[arg-type]

        monkeypatch.setattr(Scheduler, "submit", submit)
        hub.runtime._restore()
        hub.runtime._post_notes()
        await hub.settle()
        state = hub.runtime.machine.state
        assert (state.set_aside, "wl_2" in state.scheduler.queue) == ({"wl_1"}, True)
        assert hub.runtime.faults.total == 1
        assert "workload.held_back" in hub.kinds()

    async def test_readiness_is_waited_for_as_long_as_one_says(self, hub: Running) -> None:
        await hub.runtime.until_ready(5.0)
        hub.runtime.not_ready = "restoring"
        waiter = asyncio.ensure_future(hub.runtime.until_ready(5.0))
        await hub.clock.advance(4.9)
        assert not waiter.done()
        hub.runtime.not_ready = ""
        await hub.clock.advance(0.1)
        assert waiter.done()
        hub.runtime.not_ready = "restoring"
        waiter = asyncio.ensure_future(hub.runtime.until_ready(5.0))
        await hub.clock.advance(5.1)
        assert waiter.done()
        hub.runtime.not_ready = ""

    async def test_a_hub_that_stops_is_not_rebuilt(self, hub: Running) -> None:
        hub.runtime.not_ready = "stopping"
        hub.runtime._start_over("whatever")
        assert (hub.runtime.not_ready, hub.restarts, hub.runtime._mending) == ("stopping", [], None)
        hub.runtime.not_ready = ""


async def test_nothing_of_a_bid_is_taken_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = Running(tmp_path, leases=LeaseTerms())
    space = Space(monkeypatch)
    space.error = OSError(errno.ENOSPC, "No space left on device")
    await hub.runtime.look_at_space()
    assert not hub.runtime.post(ev.PeerMessageReceived("dakar", BidRequest(1, ())))
    assert hub.runtime.post(ev.PeerMessageReceived("dakar", DropBids(())))
    await hub.close()
