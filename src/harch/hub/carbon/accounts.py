"""Who used how much, and how does it get into the ledger? Meters the hub's work, books intervals, reads them back."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime, timedelta

from msgspec import structs

from harch.base.clock import DRIFT_MAX, STEP_S_MIN, SteadyClock
from harch.base.elapsed import elapsed
from harch.carbon.ledger.accounting import AT_ONCE, Allocation, HomeConditions, account, conditions_of, naive_start
from harch.carbon.ledger.chain import BookedCharges, LedgerHead, LedgerRow, book, checkpoint_draft
from harch.carbon.ledger.charge import INTERVAL_MAX, Charge, Factor, Factors, Interval
from harch.carbon.ledger.meter import NO_CONTRACT, STAND_IN, hub_energy, observed_factors
from harch.carbon.signals.choice import HubSignals
from harch.carbon.values import Basis, EmissionScope, Evidence, Method, Signal
from harch.fleet.model import Hub
from harch.hub.carbon.forecast import full_hour
from harch.hub.carbon.metering import ClosedInterval, Run, Work, WorkMeter, load_kw, whole_of, work_of
from harch.hub.jobs.runtime import JobRuntime
from harch.hub.store import ledger_rows
from harch.hub.store.database import Database
from harch.wire.carbon import Figure, HubPower
from harch.workloads.lifecycle import State, Workload

EVENTS_PER_READ = 5000
UNBOOKED_MAX = 48  # intervals that wait for the disk; beyond, the oldest are lost and the log says so
JUMP_MIN = timedelta(seconds=STEP_S_MIN)  # a smaller one is the clock being put right
ENDED_AT_ONCE = 250  # ended jobs, about two milliseconds of work; then whoever else waits for the event loop gets it
GAP_MAX = timedelta(days=1)  # how long a hub may have been away and still charge work that ran on
NOT_BOOKED = 0  # the place of a charge whose interval is still open


class Accounts:
    """One hub's energy accounts. `look` is called every half minute, on the event loop; the rest waits in threads."""

    def __init__(
        self,
        hub: Hub,
        clock: SteadyClock,
        database: Database,
        jobs: JobRuntime,
        published: Callable[[], Mapping[str, HubPower]],
        supply: tuple[float, float] = (0.0, 0.0),  # transmission loss, share of agreements
    ) -> None:
        self._loss, self._ppa_share = supply
        self._hub, self._clock, self._database, self._jobs, self._published = hub, clock, database, jobs, published
        self._nodes = {node.id: node for node in hub.nodes}
        self._seq = jobs.seq
        self._work_items: dict[tuple[str, int], Work] = {}  # of what is present, by attempt
        self._seen: set[str] = set()  # at the last look
        self._started: set[str] = set()  # since then, by the hub's history
        self._peers: Mapping[str, HubPower] = {}
        self._whole = whole_of(hub)
        self.load_kw = load_kw({}, self._whole)  # of the whole hub, without cooling, estimated
        self._meter: WorkMeter | None = None
        self._ahead = timedelta(0)  # how far the labels of intervals are ahead of the clock, after it was set back
        self._looked = (clock.now(), clock.boot_s())
        self._waiting: deque[ClosedInterval] = deque(maxlen=UNBOOKED_MAX)

    async def look(self, signals: HubSignals) -> None:
        """Meters up to now, and books what is over."""
        self._started |= await asyncio.to_thread(self._started_since)
        clock_now, boot_s = self._clock.now(), self._clock.boot_s()
        if self._meter is None:
            self._meter = await self._opened(clock_now, boot_s)
        meter, leap = self._meter, self._leap(clock_now, boot_s)
        self._looked = clock_now, boot_s
        now = (clock_now + self._ahead).replace(microsecond=0)
        until = now - leap
        before, present = self._work_items, self._present(clock_now, meter.last, until)
        self.load_kw, self._peers = load_kw(present, self._whole), self._published()
        if until <= meter.last and not leap:
            return
        ended = await self._ended(present, before, clock_now, (meter.last, until))
        sample = replace(signals, taken_at=min(signals.taken_at + self._ahead, until))
        self._waiting.extend(meter.look(until, present, ended, sample))
        if leap:
            self._leap_to(now, leap)
        await self.book()

    async def _opened(self, clock_now: datetime, boot_s: float) -> WorkMeter:
        """Goes on where the ledger ends, if work that ran then still runs; else it begins now."""
        until, booked_at = await asyncio.to_thread(self._last_booked)
        # What was booked ahead of its time stays so: a ledger cannot go back.
        behind = timedelta(0) if until is None else until - clock_now
        was_ahead = timedelta(0) if until is None or booked_at is None else until - booked_at
        self._ahead = max(timedelta(0), behind, was_ahead)
        self._looked = clock_now, boot_s
        now = (clock_now + self._ahead).replace(microsecond=0)
        if until is None:
            return WorkMeter(now, self._whole)
        ran_on = any(work.started_at < until for work, _ in self._present(clock_now, None, now).values())
        if not ran_on and behind < self._ahead:
            self._ahead, self._work_items = max(timedelta(0), behind), {}  # nothing ran: nothing hangs on those labels
            now = (clock_now + self._ahead).replace(microsecond=0)
        begins = until if ran_on and now - until <= GAP_MAX else max(until, now)
        return WorkMeter(begins, self._whole)

    def _leap(self, clock_now: datetime, boot_s: float) -> timedelta:
        """By how much the labels of intervals have to leap, because the clock was set since the last look.

        The energy of a time is that of its real length, by the boot clock. A clock that was set ahead, and stays so,
        leaves hours out, in which nothing was used. One that was set back would label hours twice: labels stay ahead.
        """
        looked_at, looked_s = self._looked
        passed = timedelta(seconds=max(0.0, boot_s - looked_s))
        jump = clock_now - looked_at - passed
        if abs(jump) <= JUMP_MIN + DRIFT_MAX * passed:
            return timedelta(0)
        ahead = self._ahead - jump
        self._ahead = max(timedelta(0), ahead)
        leap = max(timedelta(0), -ahead)
        return timedelta(seconds=round(leap.total_seconds()))

    def _leap_to(self, now: datetime, leap: timedelta) -> None:
        """The next interval begins now; what was used before is charged up to the leap."""
        meter = self._meter
        if meter is not None and meter.open_interval() is not None:
            self._waiting.append(meter.close())
        self._meter = WorkMeter(now, self._whole)
        self._work_items = {
            key: structs.replace(work, started_at=work.started_at + leap, submitted_at=work.submitted_at + leap)
            for key, work in self._work_items.items()
        }

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
            await self._jobs.write(ledger_rows.save_booked(booked), drafts)
            self._waiting.popleft()

    async def rows(self, start: datetime, end: datetime, *, tenant: str | None, job: str | None) -> list[LedgerRow]:
        """Rows that count of intervals that begin in this time, and charges of the open one, with `NOT_BOOKED`."""
        opened = self._meter.open_interval() if self._meter is not None else None
        unbooked = [*self._waiting, *((opened,) if opened is not None else ())]
        return await asyncio.to_thread(self._read, start, end, tenant, job, unbooked)

    async def ledger_head(self) -> LedgerHead:
        """Where the ledger on disk ends: always at the end of an interval."""
        return await asyncio.to_thread(ledger_rows.head, self._database)

    async def ledger_lines(self, *, after: int, upto: int, limit: int) -> list[tuple[int, bytes]]:
        return await asyncio.to_thread(ledger_rows.lines, self._database, after=after, upto=upto, limit=limit)

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

    def _booked(self, closed: ClosedInterval) -> BookedCharges:
        head = ledger_rows.head(self._database)
        return book(head, self._charges(closed), booked_at=self._clock.now())

    def _charges(self, closed: ClosedInterval) -> tuple[Charge, ...]:
        interval, published = closed.interval, self._peers
        energy = hub_energy(
            interval,
            closed.samples,
            modelled_it_kw=closed.modelled_it_kw,
            pue=self._hub.pue,
            ppa_share=self._ppa_share,
            transmission_loss=self._loss,
        )
        past = OwnPast(self._past_charges, interval.duration)
        allocations = [
            with_home(one, interval, self._hub.id, published=published, past=past) for one in closed.allocations
        ]
        return account(interval, self._hub.id, energy, allocations, observed_factors(interval, closed.samples))

    def _past_charges(self, start: datetime, end: datetime) -> Iterator[Charge]:
        return (row.charge for row in ledger_rows.current_rows(self._database, start, end))

    def _last_booked(self) -> tuple[datetime | None, datetime | None]:
        """Where the ledger ends, and when its last row was written."""
        until, last = ledger_rows.head(self._database).until, ledger_rows.last_row(self._database)
        return until, None if last is None else last.booked_at

    def _work(self, workload: Workload, now: datetime, earliest: datetime | None, latest: datetime) -> Work | None:
        """With its times as labels; `latest` is that of now. New work has begun since the last look, at `earliest`."""
        work = work_of(workload, self._nodes)
        if work is None:
            return None
        started = latest - elapsed(work.started_at, now, self._clock.adopted)
        if earliest is not None:
            started = max(started, earliest)
        submitted = min(started, latest - elapsed(work.submitted_at, now, self._clock.adopted))
        return structs.replace(work, started_at=started, submitted_at=submitted)

    def _present(self, now: datetime, earliest: datetime | None, latest: datetime) -> dict[str, tuple[Work, State]]:
        """What holds GPUs here at this moment, own work and guests."""
        state = self._jobs.machine.state
        work_items: dict[tuple[str, int], Work] = {}
        present: dict[str, tuple[Work, State]] = {}
        for request_id in state.scheduler.running:
            workload = state.registry.workloads.get(request_id)  # None: GPUs that are held for a bid
            if workload is None:
                continue
            key = (workload.id, workload.attempt)
            work = self._work_items.get(key) or self._work(workload, now, earliest, latest)
            if work is not None:
                work_items[key] = work
                present[workload.id] = (work, workload.state)
        self._work_items = work_items
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

    async def _ended(
        self,
        present: Mapping[str, tuple[Work, State]],
        before: Mapping[tuple[str, int], Work],
        now: datetime,
        between: tuple[datetime, datetime],
    ) -> list[Run]:
        """Work that ran since the last look and does so no more: seen then, or begun since.

        There may be a hundred thousand of them, so the event loop is let go in between: submissions wait for it.
        """
        registry = self._jobs.machine.state.registry.workloads
        earliest, latest = between
        gone: list[Run] = []
        for count, job in enumerate((self._started | self._seen) - present.keys(), start=1):
            if count % ENDED_AT_ONCE == 0:
                await asyncio.sleep(0)
            workload = registry.get(job)
            if workload is None or (workload.runner_hub and not workload.borrowed) or workload.completed_at is None:
                continue
            work = before.get((workload.id, workload.attempt)) or self._work(workload, now, earliest, latest)
            if work is not None:
                end = max(latest - elapsed(workload.completed_at, now, self._clock.adopted), earliest)
                gone.append(Run(work, min(work.started_at, end), end))
        self._seen, self._started = set(present), set()
        return gone


# What was the home hub like when a job would have run there? From its own charges, or from what it said of itself.


PUBLISHED_HOLDS = timedelta(hours=1)  # how far from the naive start what a peer says of itself may serve


def is_deferred(allocation: Allocation, interval: Interval) -> bool:
    return interval.start - naive_start(allocation.submitted_at, allocation.ran_s_before) > AT_ONCE


class OwnPast:
    """This hub's conditions in past intervals. Each hour is read once, each interval added up once."""

    def __init__(self, read: Callable[[datetime, datetime], Iterable[Charge]], duration: timedelta) -> None:
        self._read, self._duration = read, duration
        self._hours: dict[datetime, dict[datetime, list[Charge]]] = {}
        self._known: dict[datetime, HomeConditions] = {}

    def at(self, moment: datetime, job: str) -> HomeConditions | None:
        """Without what the job itself drew then; None if nothing is booked for that moment."""
        charges = next((found for found in self._hour(full_hour(moment)).values() if _holds(found[0], moment)), None)
        if charges is None:
            return None
        if any(charge.job == job for charge in charges):
            return conditions_of(charges, job=job, duration=self._duration)
        start = charges[0].interval.start
        if start not in self._known:
            self._known[start] = conditions_of(charges, job=job, duration=self._duration)
        return self._known[start]

    def _hour(self, hour: datetime) -> dict[datetime, list[Charge]]:
        """Its charges by interval: none reaches over the end of an hour."""
        if hour not in self._hours:
            by_interval: dict[datetime, list[Charge]] = {}
            for charge in self._read(hour, hour + INTERVAL_MAX):
                by_interval.setdefault(charge.interval.start, []).append(charge)
            self._hours[hour] = by_interval
        return self._hours[hour]


def with_home(
    allocation: Allocation, interval: Interval, hub_id: str, *, published: Mapping[str, HubPower], past: OwnPast
) -> Allocation:
    """The allocation with the conditions that its naive run needs, where they are known. `published`: by peers."""
    start = naive_start(allocation.submitted_at, allocation.ran_s_before)
    conditions: HomeConditions | None = None
    if allocation.home == hub_id:
        if is_deferred(allocation, interval):
            conditions = past.at(start, allocation.job)
    elif (power := published.get(allocation.home)) is not None and abs(power.at - start) <= PUBLISHED_HOLDS:
        conditions = published_conditions(power, interval.duration)
    return allocation if conditions is None else structs.replace(allocation, home_conditions=conditions)


def published_conditions(power: HubPower, duration: timedelta) -> HomeConditions | None:
    """As another hub reported them; None if it does not know its own grid."""
    grid = _factor(power.figure(Signal.GRID_AVERAGE_LIFECYCLE), Method.LOCATION)
    if grid is None:
        return None
    pue = power.figure(Signal.PUE).value or 1.0
    hours = duration / timedelta(hours=1)
    by_contract = {"method": Method.MARKET, "evidence": Evidence.ESTIMATED}
    return HomeConditions(
        own_load_kwh=max(0.0, power.load_kw) * hours,
        onsite_available_kwh=max(0.0, power.onsite_kw) * hours,
        ppa_share=min(max(power.ppa_share, 0.0), 1.0),
        pue=max(1.0, pue),
        transmission_loss=max(0.0, power.transmission_loss),
        factors=Factors(
            grid=grid,
            residual=structs.replace(grid, note=STAND_IN, **by_contract),
            contract=_factor(power.figure(Signal.CONTRACT_LIFECYCLE), Method.MARKET)
            or structs.replace(grid, note=NO_CONTRACT, **by_contract),
            onsite=_factor(power.figure(Signal.ONSITE_LIFECYCLE), Method.ONSITE)
            or structs.replace(grid, method=Method.ONSITE, evidence=Evidence.ESTIMATED),
        ),
    )


def _holds(charge: Charge, moment: datetime) -> bool:
    return charge.interval.start <= moment < charge.interval.end


def _factor(figure: Figure, method: Method) -> Factor | None:
    if figure.value is None or figure.at is None:
        return None
    return Factor(
        g_per_kwh=figure.value,
        basis=Basis.AVERAGE,
        scope=EmissionScope.LIFECYCLE,
        method=method,
        source=figure.source,
        evidence=Evidence(figure.evidence),
        as_of=figure.at,
        note=figure.note,
    )
