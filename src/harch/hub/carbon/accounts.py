"""Who used how much, and how does it get into the ledger? Meters the hub's work, books intervals, reads them back."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta

from harch.base.clock import Clock
from harch.carbon.ledger.accounting import account
from harch.carbon.ledger.chain import Booked, LedgerRow, book
from harch.carbon.ledger.charge import Charge
from harch.carbon.ledger.checkpoints import checkpoint_draft
from harch.carbon.ledger.meter import hub_energy, observed_factors
from harch.carbon.signals.choice import HubSignals
from harch.fleet.model import Hub
from harch.hub.carbon.conditions import OwnPast, with_home
from harch.hub.carbon.metering import ClosedInterval, Run, Work, WorkMeter, load_kw, whole_of, work_of
from harch.hub.carbon.views import HubPower
from harch.hub.driver import Driver
from harch.hub.store import ledger_rows
from harch.hub.store.database import Database
from harch.workloads.lifecycle import State

EVENTS_PER_READ = 5000
UNBOOKED_MAX = 48  # intervals that wait for the disk; beyond, the oldest are lost and the log says so
GAP_MAX = timedelta(days=1)  # how long a hub may have been away and still charge work that ran on
NOT_BOOKED = 0  # the place of a charge whose interval is still open


class Accounts:
    """One hub's energy accounts. `look` is called every half minute, on the event loop; the rest waits in threads."""

    def __init__(
        self,
        hub: Hub,
        clock: Clock,
        database: Database,
        driver: Driver,
        said: Callable[[], Mapping[str, HubPower]],
        supply: tuple[float, float] = (0.0, 0.0),  # transmission loss, share of agreements
    ) -> None:
        self._loss, self._ppa_share = supply
        self._hub, self._clock, self._database, self._driver, self._said = hub, clock, database, driver, said
        self._nodes = {node.id: node for node in hub.nodes}
        self._seq = driver.seq
        self._works: dict[tuple[str, int], Work] = {}  # of what is present, by attempt
        self._seen: set[str] = set()  # at the last look
        self._peers: Mapping[str, HubPower] = {}
        self._whole = whole_of(hub)
        self.load_kw = load_kw({}, self._whole)  # of the whole hub, without cooling, estimated
        self._meter: WorkMeter | None = None
        self._waiting: deque[ClosedInterval] = deque(maxlen=UNBOOKED_MAX)

    async def look(self, signals: HubSignals) -> None:
        """Meters up to now, and books what is over."""
        now = self._clock.now().replace(microsecond=0)
        started = await asyncio.to_thread(self._started_since)
        present = self._present()
        self.load_kw, self._peers = load_kw(present, self._whole), self._said()
        if self._meter is None:
            self._meter = WorkMeter(await asyncio.to_thread(self._begin, present, now), self._whole)
        if now <= self._meter.last:
            return
        self._waiting.extend(self._meter.look(now, present, self._ended(started, present), signals))
        await self.book()

    async def close(self) -> None:
        """Books the open interval: what was used is not forgotten with the process."""
        if self._meter is not None and self._meter.open_interval() is not None:
            self._waiting.append(self._meter.close())
        await self.book()

    async def book(self) -> None:
        """What waits, in order. Stays waiting if the disk refuses it."""
        while self._waiting:
            booked = await asyncio.to_thread(self._booked, self._waiting[0])
            ends = booked.head.until
            hour_ends = ends is not None and (ends.minute, ends.second) == (0, 0)
            drafts = [checkpoint_draft(self._hub.id, booked.head)] if hour_ends else []
            await self._driver.write(ledger_rows.save_booked(booked), drafts)
            self._waiting.popleft()

    async def rows(self, start: datetime, end: datetime, *, tenant: str | None, job: str | None) -> list[LedgerRow]:
        """Rows that count of intervals that begin in this time, and charges of the open one, with `NOT_BOOKED`."""
        opened = self._meter.open_interval() if self._meter is not None else None
        unbooked = [*self._waiting, *((opened,) if opened is not None else ())]
        return await asyncio.to_thread(self._read, start, end, tenant, job, unbooked)

    def _read(
        self, start: datetime, end: datetime, tenant: str | None, job: str | None, unbooked: list[ClosedInterval]
    ) -> list[LedgerRow]:
        rows = list(ledger_rows.current_rows(self._database, start, end, tenant=tenant, job=job))
        booked_until = ledger_rows.head(self._database).until
        for closed in unbooked:
            begins = closed.interval.start
            if start <= begins < end and (booked_until is None or begins >= booked_until):
                rows += [
                    LedgerRow(seq=NOT_BOOKED, prev="", booked_at=closed.interval.end, charge=charge)
                    for charge in self._charges(closed)
                    if tenant in (None, charge.tenant) and job in (None, charge.job)
                ]
        return rows

    def _booked(self, closed: ClosedInterval) -> Booked:
        head = ledger_rows.head(self._database)
        return book(head, self._charges(closed), booked_at=self._clock.now())

    def _charges(self, closed: ClosedInterval) -> tuple[Charge, ...]:
        interval, said = closed.interval, self._peers
        energy = hub_energy(
            interval,
            closed.samples,
            modelled_it_kw=closed.modelled_it_kw,
            pue=self._hub.pue,
            ppa_share=self._ppa_share,
            transmission_loss=self._loss,
        )
        past = OwnPast(self._past_charges, interval.duration)
        allocations = [with_home(one, interval, self._hub.id, said=said, past=past) for one in closed.allocations]
        return account(interval, self._hub.id, energy, allocations, observed_factors(interval, closed.samples))

    def _past_charges(self, start: datetime, end: datetime) -> Iterator[Charge]:
        return (row.charge for row in ledger_rows.current_rows(self._database, start, end))

    def _begin(self, present: Mapping[str, tuple[Work, State]], now: datetime) -> datetime:
        """Where the ledger ends, if work that ran then still runs; else now."""
        until = ledger_rows.head(self._database).until
        ran_on = until is not None and any(work.started_at < until for work, _ in present.values())
        if until is None:
            return now
        # A clock that was set back must not charge an hour twice.
        return until if until > now or (ran_on and now - until <= GAP_MAX) else now

    def _present(self) -> dict[str, tuple[Work, State]]:
        """What holds GPUs here at this moment, own work and guests."""
        desk = self._driver.machine.desk
        works: dict[tuple[str, int], Work] = {}
        present: dict[str, tuple[Work, State]] = {}
        for request_id in desk.scheduler.running:
            workload = desk.registry.workloads.get(request_id)  # None: GPUs that are held for a bid
            if workload is None:
                continue
            key = (workload.id, workload.attempt)
            work = self._works.get(key) or work_of(workload, self._nodes)
            if work is not None:
                works[key] = work
                present[workload.id] = (work, workload.state)
        self._works = works
        return present

    def _started_since(self) -> set[str]:
        """Ids of work that began to run since the last look, by the hub's history."""
        started: set[str] = set()
        while True:
            found = self._database.events(
                after=self._seq, limit=EVENTS_PER_READ, tenant=None, subject=None, kind="workload.running"
            )
            started.update(event.subject for event in found)
            if found:
                self._seq = found[-1].seq
            if len(found) < EVENTS_PER_READ:
                return started

    def _ended(self, started: set[str], present: Mapping[str, tuple[Work, State]]) -> list[Run]:
        """Work that ran since the last look and does so no more: seen then, or begun since."""
        registry = self._driver.machine.desk.registry.workloads
        gone: list[Run] = []
        for job in (started | self._seen) - present.keys():
            workload = registry.get(job)
            if workload is None or (workload.runner_hub and not workload.guest) or workload.completed_at is None:
                continue
            work = work_of(workload, self._nodes)
            if work is not None:
                gone.append(Run(work, work.started_at, workload.completed_at))
        self._seen = set(present)
        return gone
