"""Who takes away what need no longer be kept? A loop that plans, releases and collects, and says what it found."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from harch.base.clock import Clock, sleep_unless
from harch.base.errors import HarchError
from harch.content.store import ContentStore, Hold
from harch.hub.content.peers import ContentSource
from harch.hub.content.retention import DATA_HOLDER, ContentHold, RetentionPlan, plan_retention
from harch.hub.content.transfers import PeerContent
from harch.hub.federation.messages import COPIES_MAX, CopiesQuestion, CopiesReply
from harch.hub.jobs import events as ev
from harch.hub.jobs.runtime import JobRuntime

EVERY_S = 60.0
COLLECT_EVERY_S = 900.0

_log = logging.getLogger("harch.hub")


class ContentUpkeep:
    """`soon` makes it look at once: after a tag was tightened, or data was removed."""

    def __init__(
        self,
        *,
        hub_id: str,
        store: ContentStore,
        source: ContentSource,
        peers: PeerContent,
        jobs: JobRuntime,
        clock: Clock,
        borrowed_kept: timedelta,
    ) -> None:
        self._hub_id, self._store, self._source, self._jobs, self._clock = hub_id, store, source, jobs, clock
        self._peers, self._borrowed_kept = peers, borrowed_kept
        self._due = asyncio.Event()
        self._collect_at_s = 0.0
        self._idle_since: dict[tuple[str, str], datetime] = {}
        self._queried_homes: set[str] = set()

    def soon(self) -> None:
        self._due.set()

    def notify(self, hubs: Iterable[str]) -> None:
        """Hubs that have copies of something that has changed ask about it now."""
        self._peers.notify_changed(hub for hub in hubs if hub != self._hub_id)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            with self._jobs.survived("keeping content"):
                await self.look()
            await sleep_unless(self._due, self._clock, EVERY_S)
            self._due.clear()

    async def look(self) -> RetentionPlan:
        self._source.revoke_forbidden()
        if await asyncio.to_thread(lambda: self._store.has_lost_holders):
            await self._hold_again()
        holds = await asyncio.to_thread(self._store.holders)
        await self._query_homes(holds)
        state, now = self._jobs.machine.state, self._clock.now()
        plan = plan_retention(
            entries=state.catalog.entries,
            holds=self._idle(holds, now),
            has_readers=lambda data_id: bool(state.guard.readers_of(data_id)),
            may_rest=lambda entry: state.guard.may_rest_here(entry.object),
            borrowed_kept=self._borrowed_kept,
            now=now,
        )
        for data_id in plan.expired:
            self._jobs.post(ev.DataRemoved(data_id, self._hub_id, "its retention has ended"))
        for hold in plan.released:
            await self._remove(hold.tenant, hold.holder, hold.digest)
        for data_id in plan.departed:
            self._jobs.post(ev.DataMoved(data_id, self._hub_id, False))
        if plan.released or self._clock.monotonic_s() >= self._collect_at_s:
            self._collect_at_s = self._clock.monotonic_s() + COLLECT_EVERY_S
            await self._collect()
        return plan

    async def _hold_again(self) -> None:
        """The index was lost and rebuilt from packs, which do not know who needs what; the catalog does."""
        missing = 0
        for data_id, entry in list(self._jobs.machine.state.catalog.entries.items()):
            if not entry.content:
                continue
            holder = f"{DATA_HOLDER}{data_id}"
            try:
                await asyncio.to_thread(self._store.hold, entry.object.tenant, entry.content, holder)
            except HarchError as error:
                missing += self._hub_id in entry.object.hubs
                _log.error("content of %s (%s) is not whole: %s", data_id, entry.object.name, error.message)
        await asyncio.to_thread(self._store.confirm_holders)
        text = f"rebuilt the index of the content store; {missing} data objects are not whole"
        self._jobs.note("content.recovered", self._hub_id, text)

    async def _query_homes(self, holds: Sequence[Hold]) -> None:
        """What has become of data of other hubs of which copies are here? A silent home is asked next time."""
        if not self._peers.is_connected:
            return
        entries = self._jobs.machine.state.catalog.entries
        held: dict[str, dict[str, int]] = {}
        for hold in holds:
            entry = entries.get(hold.holder.removeprefix(DATA_HOLDER))
            if entry is not None and entry.home:
                held.setdefault(entry.home, {})[entry.object.id] = entry.object.tag_revision
        for home in [*held, *(self._queried_homes - held.keys())]:  # who was told of copies is told that there are none
            copies = list(held.get(home, {}).items())
            some, is_all = tuple(copies[:COPIES_MAX]), len(copies) <= COPIES_MAX
            try:
                reply = await self._peers.request(
                    home,
                    lambda number, some=some, is_all=is_all: CopiesQuestion(number=number, held=some, is_all=is_all),  # type: ignore[misc]
                    CopiesReply,
                )
            except HarchError:
                continue
            self._queried_homes = (self._queried_homes | {home}) if copies else self._queried_homes - {home}
            if reply.changed or reply.removed:
                self._jobs.post(ev.CopiesReported(home, reply.changed, reply.removed))
            for hold in holds:
                data_id = hold.holder.removeprefix(DATA_HOLDER)
                if data_id in reply.removed and data_id not in entries:
                    await self._remove(hold.tenant, hold.holder, hold.digest)

    async def _remove(self, tenant: str, holder: str, digest: str) -> None:
        """Off the disk at once: mostly it goes because it may not be here."""

        def release_and_scrub() -> None:
            try:
                names = self._store.ids_of(tenant, digest)
            except HarchError as error:  # its manifest is damaged: what is left of it goes with the next collection
                _log.warning("the files of %s cannot be listed: %s", holder, error.message)
                names = frozenset()
            self._store.release(tenant, holder)
            self._store.scrub(tenant, names)

        await asyncio.to_thread(release_and_scrub)

    def _idle(self, holds: Sequence[Hold], now: datetime) -> list[ContentHold]:
        """Counted anew after a restart: then it stays a little longer."""
        state = self._jobs.machine.state
        before, self._idle_since = self._idle_since, {}
        found = []
        for hold in holds:
            name = (hold.tenant, hold.holder)
            is_read = bool(state.guard.readers_of(hold.holder.removeprefix(DATA_HOLDER)))
            self._idle_since[name] = now if is_read else before.get(name, now)
            found.append(ContentHold(*name, hold.digest, self._idle_since[name]))
        return found

    async def _collect(self) -> None:
        try:
            collected = await asyncio.to_thread(self._store.collect)
        except HarchError as error:  # a bucket that does not answer; the next look tries again
            _log.warning("content cannot be collected: %s", error.message)
            return
        if collected.chunks:
            _log.info("collected %d chunks, %d bytes", collected.chunks, collected.bytes)
