"""What remains of an event that fails? A hub with the real driver and the real store, where anything may go wrong.

At random calls of the product's functions an error is raised that nobody foresaw, the disk refuses a write, or a
message cannot be sent. After every event the books of the machine must be those that a fresh one reads from the disk,
and whoever was promised something must find it there.
"""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from collections import Counter
from datetime import timedelta
from pathlib import Path
from random import Random
from types import FrameType, TracebackType

from harch.base.clock import SteadyClock
from harch.base.errors import HarchError, InvariantBroken
from harch.execution.protocol import HubMessage
from harch.federation.offers import LeaseTerms, LendingMessage
from harch.hub.audit.table import AuditTrail
from harch.hub.jobs import events as ev
from harch.hub.jobs.machine import JobMachine
from harch.hub.jobs.registry import RETRY_WINDOW
from harch.hub.jobs.runtime import JobRuntime
from harch.hub.policy.decisions import ActivePolicy
from harch.hub.store.database import Database
from harch.hub.store.rows import Statement
from harch.hub.tracing.instrumentation import Watch
from harch.testing.books import books_of, unbalanced
from harch.testing.clock import SimClock
from harch.testing.random_events import RandomEvents
from harch.workloads.lifecycle import Workload

SETTLE_S_MAX = 120.0  # of simulated time: a hub that is not ready again by then never will be
CALLS_MAX = 3000  # an event makes a few hundred calls, a round of placement a few thousand
KINDS: tuple[type[Exception], ...] = (ValueError, KeyError, RuntimeError, ArithmeticError, MemoryError, RecursionError)
# What sees to a fault, and what comes before anything has changed: a second fault in there is another matter.
_SPARED = {
    "handle",
    "post",
    "has_room",
    "_failed",
    "_start_over",
    "_fault_error",
    "is_changed",
    "suspect",
    "context",
    "version",
}
_SPARED |= {"fingerprint", "<genexpr>"}  # asked for the cause of a fault; and where errors may have nobody to go to
_SPARED_FILES = ("/harch/testing/", "/harch/hub/jobs/faults.py", "/harch/base/errors.py", "/harch/base/clock.py")


class Injection:
    """Raises at the given call of a function of the product, once; `at` tells where."""

    def __init__(self, machine: JobMachine, random: Random) -> None:
        self._machine, self._random = machine, random
        self._left = int(CALLS_MAX ** random.random())  # mostly early: short events are the most frequent
        self.at = ""

    def __enter__(self) -> Injection:
        sys.setprofile(self._called)
        return self

    def __exit__(self, *_error: type[BaseException] | BaseException | TracebackType | None) -> None:
        sys.setprofile(None)

    def _called(self, frame: FrameType, kind: str, _argument: object) -> None:
        code = frame.f_code
        where = code.co_filename.rpartition("/harch/")
        if kind != "call" or not where[1] or code.co_name in _SPARED:
            return
        caller = frame.f_back.f_code.co_filename if frame.f_back is not None else ""
        if any(part in code.co_filename or part in caller for part in _SPARED_FILES):
            return
        self._left -= 1
        if self._left == 0:
            sys.setprofile(None)
            self.at = f"{where[2]}:{code.co_name}"
            if self._machine.is_changed and self._random.random() < 0.2:
                raise HarchError("E0201", "injected: a refusal that comes too late")
            raise self._random.choice(KINDS)("injected")


class FlakyDatabase(Database):
    """Fails once where it is told to."""

    fails_at = ""

    def begin(self) -> None:
        self._fail("begin", sqlite3.OperationalError("database or disk is full"))
        super().begin()

    def execute(self, statements: list[Statement]) -> None:  # type: ignore[override]
        super().execute(statements)
        self._fail("execute", OverflowError("Python int too large to convert to SQLite INTEGER"))

    def commit(self) -> None:
        if self.fails_at == "commit":
            self.rollback()
        self._fail("commit", sqlite3.OperationalError("disk I/O error"))
        super().commit()

    def _fail(self, at: str, error: Exception) -> None:
        if self.fails_at == at:
            self.fails_at = ""
            raise error


class _DrivenByHand(JobRuntime):
    """Rounds come as events only, so that a story is the same each time it is told."""

    def plan_placement(self) -> None:
        return


class FaultyHub:
    """Create it inside a running event loop. `step` lets one event happen and answers with what is wrong afterwards."""

    def __init__(self, folder: Path, random: Random, *, faults: float = 0.3) -> None:
        self.random, self._share = random, faults
        self.clock = SimClock()
        self.world = RandomEvents(random, self.clock)
        self.database = FlakyDatabase(folder / "hub.db")
        self.outcomes: Counter[str] = Counter()
        self.places: set[str] = set()  # where errors were raised
        self.promised: set[str] = set()
        self.broken: list[InvariantBroken] = []
        self._drops = False
        self.driver: JobRuntime = _DrivenByHand(
            fleet=self.world.fleet,
            hub=self.world.hub,
            rules=self.world.rules,
            settings=None,
            database=self.database,
            trail=AuditTrail(self.world.hub.id, self.database, self.clock),
            clock=SteadyClock(self.clock),
            send=self._send,
            send_peer=self._send_peer,
            open_secrets=self._open_secrets,
            observer=Watch(lambda _kind: None, None, self.world.hub.id),
            policy=ActivePolicy(self.database),
            on_restart=self.world.cut_off,
            on_broken=self.broken.append,
            leases=LeaseTerms(),
        )

    async def step(self) -> list[str]:
        event = self.world.draw(self.driver.machine)
        fails = self.random.choices(("", "code", "disk", "send"), (1 - self._share, self._share, 0.03, 0.02))[0]
        self._drops = fails == "send"
        if fails == "disk":
            self.database.fails_at = self.random.choice(("begin", "execute", "commit"))
        outcome = await self._handle(event, inject=fails == "code")
        self.outcomes[outcome] += 1
        await self._settle()
        self._drops, self.database.fails_at = False, ""
        return [f"{type(event).__name__} ({outcome}): {wrong}" for wrong in self.wrong()]

    async def _handle(self, event: ev.Event, *, inject: bool) -> str:
        injection = Injection(self.driver.machine, self.random)
        try:
            if inject:
                with injection:
                    stored = self.driver.handle(event)
            else:
                stored = self.driver.handle(event)
            await stored
        except HarchError as error:
            outcome = {"E1010": "failed", "E1002": "not stored", "E1003": "not stored"}.get(error.code, "refused")
        else:
            outcome = "done"
            if isinstance(event, ev.Submitted) and event.workload_id in self.driver.machine.state.registry.workloads:
                self.promised.add(event.workload_id)
        if injection.at:
            self.places.add(injection.at)
        return outcome

    async def _settle(self) -> None:
        """Until the hub is ready again and everything is on disk."""
        for _ in range(int(SETTLE_S_MAX)):
            for _ in range(2000):
                if not self.driver.not_ready or self.clock.sleeper_count:
                    break
                await asyncio.sleep(0.0002)
            if not self.driver.not_ready:
                try:
                    await self.driver.look_at_space()  # as its loop does every few seconds
                    await self.driver._committer.drain()
                except HarchError:  # the disk fails only now
                    continue
                return
            await self.clock.advance(1.0)

    def wrong(self) -> list[str]:
        """What differs between the machine and the disk."""
        if self.broken or self.driver.not_ready:
            return [f"the hub is not ready: {self.broken or self.driver.not_ready}"]
        now, machine = self.clock.now(), self.driver.machine
        stored = self.database.workloads_to_restore(now - RETRY_WINDOW)
        found = [*unbalanced(machine), *self._unlike(stored, machine)]
        fresh = self.driver._new_machine()
        fresh.restore(
            stored,
            self.database.idempotency_keys(now - timedelta(hours=24)),
            self.database.conditions(),
            self.database.data_entries(),
            context=self.driver.context(),
            lifetime="fresh",
        )
        here, there = books_of(machine), books_of(fresh)
        found += [f"{name}: {here[name]} here, {there[name]} on disk" for name in here if here[name] != there[name]]
        if self.driver.seq != self.database.last_event():
            found.append(f"the last event is {self.driver.seq}, on disk {self.database.last_event()}")
        return found

    def _unlike(self, stored: list[Workload], machine: JobMachine) -> list[str]:
        memory, disk = machine.state.registry.workloads, {one.id: one for one in stored}
        found = [f"{one.id} is not on disk as it is known" for one in stored if memory.get(one.id, one) != one]
        found += [
            f"{one.id} is not on disk" for one in memory.values() if one.id not in disk and not one.state.is_final
        ]
        found += [f"{one.id} is on disk only" for one in stored if not one.state.is_final and one.id not in memory]
        lost = [key for key in self.promised if key not in disk and self.database.workload(key, tenant=None) is None]
        return found + [f"{key} was promised and is gone" for key in lost]

    async def close(self) -> None:
        await self.driver.close()
        self.database.close()

    # What the hub sends

    def _send(self, agent_id: str, message: HubMessage) -> None:
        self._may_drop()
        self.world.sent(agent_id, message)

    def _send_peer(self, hub_id: str, message: LendingMessage) -> None:
        self._may_drop()
        self.world.sent_peer(hub_id, message)

    def _open_secrets(self, _tenant: str, names: tuple[str, ...]) -> dict[str, str]:
        self._may_drop()
        return dict.fromkeys(names, "secret")

    def _may_drop(self) -> None:
        if self._drops and self.random.random() < 0.5:
            raise RuntimeError("injected: it cannot be sent")
