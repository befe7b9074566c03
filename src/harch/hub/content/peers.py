"""What do hubs ask each other about content? Tickets for trees, judged by the hub that has them; and files of work.

A ticket is good for one tree of one tenant, for the hub that request. Where it leads is the bulk channel, which asks
`open` what a ticket permits and `read` for the chunks.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar

from harch.base.clock import Clock
from harch.base.errors import HarchError
from harch.content.frames import ChunkFrame, encode_frame
from harch.content.store import ContentStore
from harch.federation.bulk.tickets import TICKETS_MAX, BulkGrant, TicketRegistry
from harch.hub.audit import data_drafts
from harch.hub.content.gates import check_send, is_entitled
from harch.hub.federation.messages import (
    CHANGED_MAX,
    COPIES_MAX,
    LISTING_BYTES_MAX,
    Answer,
    ContentReply,
    ContentRequest,
    CopiesQuestion,
    CopiesReply,
    FilesQuestion,
    FilesReply,
    Question,
)
from harch.hub.jobs import events as ev
from harch.hub.jobs.runtime import JobRuntime
from harch.hub.store.records import CatalogEntry
from harch.wire.content import FilesRequest, TreeView
from harch.workloads.lifecycle import Workload

SNAPSHOTS_MAX = 1_000

A = TypeVar("A", bound=Answer)


class RequestPeer(Protocol):
    """Puts a question to another hub. Raises E0802, or whatever error that hub answers."""

    async def __call__(
        self, hub_id: str, question: Callable[[int], Question], answer: type[A], *, within_s: float | None = None
    ) -> A: ...


class ContentSource:
    """What this hub gives to others. `open` and `read` are called from the threads of the bulk channel."""

    def __init__(self, *, hub_id: str, store: ContentStore, jobs: JobRuntime, clock: Clock) -> None:
        self._hub_id, self._store, self._jobs, self._clock = hub_id, store, jobs, clock
        self._tickets = TicketRegistry(secrets.token_bytes)
        self._issued: dict[bytes, tuple[str, CatalogEntry]] = {}  # which hub has which ticket for what
        self._lock = threading.Lock()
        self._snapshots: dict[str, tuple[str, CatalogEntry]] = {}  # made for a hub: (which, what)
        self.port = 0  # of the bulk channel, once it listens
        self.on_revoked: Callable[[bytes, str], None] = lambda ticket, why: None

    async def answer(self, hub_id: str, request: ContentRequest) -> ContentReply:
        """Gate 2 for bytes. Raises E1102, E0907 (audited) and E1140."""
        entry = self._entry_for(hub_id, request)
        try:
            check_send(self._jobs.machine.state.guard.rules, entry, self._hub_id, hub_id)
        except HarchError as error:
            state = self._jobs.machine.state
            draft = data_drafts.refused(
                entry.object.id,
                error,
                country=state.hub.country,
                tenant=entry.object.tenant,
                actor=f"hub:{hub_id}",
                policy_version=self._jobs.context().policy_version,
                data=(entry.object.id,) if entry.object.id in state.catalog.entries else (),
            )
            await self._jobs.write([], [draft])
            raise
        if not self.port:
            raise HarchError("E1140", f"{self._hub_id} has no bulk channel", hint="its log shows why")
        tenant, digest = entry.object.tenant, entry.content
        ids, root_bytes, listing = await asyncio.to_thread(self._listed, tenant, digest)
        with self._lock:
            ticket = self._tickets.issue(hub_id, BulkGrant(tenant=tenant, ids=ids), now=self._clock.now())
            self._issued[ticket] = (hub_id, entry)
            while len(self._issued) > TICKETS_MAX:
                del self._issued[next(iter(self._issued))]
        return ContentReply(
            number=request.number, port=self.port, ticket=ticket, root_bytes=root_bytes, listing=listing
        )

    def _listed(self, tenant: str, digest: str) -> tuple[frozenset[bytes], int, bytes]:
        """Names of all its chunks, the size of its root, and root and manifest themselves if they are small."""
        stored = self._store.tree(tenant, digest)
        listing = b""
        if sum(chunk.size for chunk in stored.root.manifest) <= LISTING_BYTES_MAX // 2:
            names = [bytes.fromhex(digest), *(chunk.id for chunk in stored.root.manifest)]
            listing = b"".join(map(encode_frame, self._store.read(tenant, names)))
        return self._store.ids_of(tenant, digest), stored.root_bytes, listing

    def copies(self, hub_id: str, request: CopiesQuestion) -> CopiesReply:
        """What has become of that hub's copies; and this hub learns from the question which there are."""
        entries = self._jobs.machine.state.catalog.entries
        held = dict(request.held[:COPIES_MAX])
        own = {data_id: entries[data_id] for data_id in held if data_id in entries and not entries[data_id].home}
        changed = [entry.object for data_id, entry in own.items() if entry.object.tag_revision > held[data_id]]
        for data_id, entry in own.items():
            if hub_id not in entry.object.hubs:
                self._jobs.post(ev.DataMoved(data_id, hub_id, True))
        if request.is_all:
            for data_id, entry in list(entries.items()):
                if entry.content and not entry.home and hub_id in entry.object.hubs and data_id not in held:
                    self._jobs.post(ev.DataMoved(data_id, hub_id, False))
        return CopiesReply(
            number=request.number,
            changed=tuple(changed[:CHANGED_MAX]),
            removed=tuple(data_id for data_id in held if data_id not in entries),
        )

    def offer_snapshot(self, hub_id: str, kept: TreeView, entry: CatalogEntry) -> None:
        """From now on this hub may ask for it."""
        while len(self._snapshots) >= SNAPSHOTS_MAX:
            del self._snapshots[next(iter(self._snapshots))]
        self._snapshots[kept.ref] = (hub_id, entry)

    # Called by the bulk channel

    def open(self, hub_id: str, ticket: bytes) -> BulkGrant:
        """Raises E1140 for a ticket that is not this hub's, or is none any more."""
        with self._lock:
            return self._tickets.open(hub_id, ticket, now=self._clock.now())

    def revoke_forbidden(self) -> None:
        """Tags may have been tightened since a ticket was given out."""
        state = self._jobs.machine.state
        with self._lock:
            for ticket, (hub_id, entry) in list(self._issued.items()):
                now = state.catalog.entries.get(entry.object.id, entry)
                if not state.guard.rules.may_move(now.object.tag, self._hub_id, hub_id):
                    self._tickets.revoke(ticket)
                    del self._issued[ticket]
                    self.on_revoked(ticket, "its tag no longer permits this")

    def read(self, grant: BulkGrant, ids: Sequence[bytes]) -> list[ChunkFrame]:
        return self._store.read(grant.tenant, ids)

    def _entry_for(self, hub_id: str, request: ContentRequest) -> CatalogEntry:
        """What a hub has no reason to ask for is not disclosed to be here."""
        state = self._jobs.machine.state
        made_for, entry = self._snapshots.get(request.ref, ("", None))
        if entry is None or made_for != hub_id:
            lent = (
                state.registry.workloads[workload_id]
                for workload_id, given in state.lending.given.items()
                if given.runner == hub_id
            )
            entry = state.catalog.entries.get(request.ref)
            if entry is not None and not is_entitled(entry, hub_id, lent):
                entry = None
        if entry is None or entry.object.tenant != request.tenant or entry.content != request.digest:
            raise HarchError("E1102", f"{self._hub_id} has no such content for {hub_id}", hint="it may be removed")
        return entry


class ContentAnswers:
    """What peers may ask about content. `snapshot` makes one of work that runs here."""

    def __init__(
        self,
        source: ContentSource,
        snapshot: Callable[[Workload, FilesRequest], Awaitable[tuple[TreeView, CatalogEntry]]],
        find: Callable[[str], Awaitable[Workload]],
    ) -> None:
        self._source, self._snapshot, self._find = source, snapshot, find

    async def __call__(self, hub_id: str, question: ContentRequest | FilesQuestion | CopiesQuestion) -> Answer:
        if isinstance(question, ContentRequest):
            return await self._source.answer(hub_id, question)
        if isinstance(question, CopiesQuestion):
            return self._source.copies(hub_id, question)
        workload = await self._find(question.workload_id)
        if workload.owner_hub != hub_id or not workload.borrowed:
            raise HarchError("E0301", f"{question.workload_id} is not work of {hub_id} here", hint="query its owner")
        request = FilesRequest(path=question.path, rank=question.rank, attempt=question.attempt)
        kept, entry = await self._snapshot(workload, request)
        self._source.offer_snapshot(hub_id, kept, entry)
        return FilesReply(number=question.number, ref=kept.ref, digest=kept.digest)
