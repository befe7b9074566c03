"""How does content that another hub has come here? Asked for, judged again, pulled in chunks, and then held.

One transfer per tree, whoever waits for it. What has arrived stays in the store, so that a transfer that failed goes on
where it was when somebody asks again.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from harch.base.errors import HarchError
from harch.content.frames import ChunkFrame, decode_frames, unpack_chunk
from harch.content.model import ChunkRef, chunks_of, decode_manifest, decode_root
from harch.content.store import ContentStore
from harch.hub.content.gates import check_arrive
from harch.hub.content.peers import RequestPeer
from harch.hub.federation.messages import ContentReply, ContentRequest, FilesQuestion, FilesReply
from harch.hub.jobs import events as ev
from harch.hub.jobs.runtime import JobRuntime
from harch.hub.store.records import CatalogEntry
from harch.wire.content import FilesRequest, TransferView
from harch.workloads.lifecycle import Workload

RUNNING_MAX = 4  # the link is the limit: more at a time would only finish later, all of them
WAITING_MAX = 256
FILES_WITHIN_S = 3600.0
REPLY_WITHIN_S = 30.0  # a hub reads the manifest of a large tree before it answers

_log = logging.getLogger("harch.hub")


class BulkPull(Protocol):
    """Pulls chunks from one hub over the bulk channel; blocks. Raises E1140 when nothing has come for too long."""

    def __call__(
        self,
        hub_id: str,
        port: int,
        ticket: bytes,
        wanted: Sequence[ChunkRef],
        *,
        store: Callable[[list[ChunkFrame]], None],
        progress: Callable[[int], None],
        cancelled: threading.Event,
    ) -> None: ...


class PeerContent:
    """The other hubs, for content. Made first; the federation connects to it. A hub on its own has none."""

    def __init__(self) -> None:
        self._request: RequestPeer | None = None
        self._pull: BulkPull | None = None
        self._notify_changed: Callable[[str], None] | None = None

    def connect(self, request: RequestPeer, pull: BulkPull, notify_changed: Callable[[str], None]) -> None:
        """`notify_changed` lets a hub know that it should ask about its copies."""
        self._request, self._pull, self._notify_changed = request, pull, notify_changed

    @property
    def is_connected(self) -> bool:
        return self._request is not None

    def notify_changed(self, hub_ids: Iterable[str]) -> None:
        """If a word is lost, they ask within a minute anyway."""
        if self._notify_changed is not None:
            for hub_id in hub_ids:
                self._notify_changed(hub_id)

    @property
    def request(self) -> RequestPeer:
        if self._request is None:
            raise HarchError("E1102", "this hub is part of no federation, and does not have it", hint="query its hub")
        return self._request

    @property
    def pull(self) -> BulkPull:
        if self._pull is None:
            raise HarchError("E1140", "this hub has no bulk channel", hint="its log shows why")
        return self._pull


@dataclass(slots=True)
class _Transfer:
    tenant: str
    digest: str
    source: str = ""
    bytes_done: int = 0
    bytes_total: int = 0
    error: HarchError | None = None
    cancelled: threading.Event = field(default_factory=threading.Event)

    def view(self) -> TransferView:
        return TransferView(
            digest=self.digest,
            source_hub=self.source,
            bytes_done=self.bytes_done,
            bytes_total=self.bytes_total,
            error=str(self.error.message) if self.error is not None else "",
        )


class ContentTransfers:
    """All transfers of one hub."""

    def __init__(self, *, hub_id: str, store: ContentStore, jobs: JobRuntime, peers: PeerContent) -> None:
        self._hub_id, self._store, self._jobs, self._peers = hub_id, store, jobs, peers
        self._transfers: dict[tuple[str, str], _Transfer] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._running = asyncio.Semaphore(RUNNING_MAX)

    def views(self, *, tenant: str | None) -> list[TransferView]:
        return [one.view() for one in self._transfers.values() if tenant in (None, one.tenant)]

    async def ensure(
        self, tenant: str, entry: CatalogEntry, holder: str, *, workload: Workload | None = None
    ) -> TransferView | None:
        """None: it is here, and held. Otherwise it is on its way. Raises what made the last attempt fail, once."""
        digest = entry.content
        if await asyncio.to_thread(self._store.held, tenant, holder) == digest:
            return None
        known = self._transfers.get((tenant, digest))
        if known is None and await self._held_now(tenant, digest, holder):
            self._arrived(entry)
            return None
        if known is None:
            known = self._start(tenant, entry, holder, workload)
        if known.error is not None:
            del self._transfers[tenant, digest]
            raise known.error
        return known.view()

    async def snapshot(self, workload: Workload, entry: CatalogEntry, request: FilesRequest) -> str:
        """Files of own work that another hub runs, as a tree that is here when this returns."""
        runner, rules = workload.runner_hub, self._jobs.machine.state.guard.rules
        check_arrive(rules, entry, runner, self._hub_id)
        reply = await self._peers.request(
            runner,
            lambda number: FilesQuestion(
                number=number,
                workload_id=workload.id,
                rank=request.rank,
                attempt=request.attempt,
                path=request.path,
            ),
            FilesReply,
            within_s=FILES_WITHIN_S,
        )
        transfer = _Transfer(workload.tenant, reply.digest)
        await self._pull_from(runner, reply.ref, transfer)
        return reply.digest

    async def close(self) -> None:
        for transfer in self._transfers.values():
            transfer.cancelled.set()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _start(self, tenant: str, entry: CatalogEntry, holder: str, workload: Workload | None) -> _Transfer:
        sources = self._sources(entry, workload)
        if not sources:
            raise HarchError(
                "E1102",
                f"no other hub is known to have {entry.object.name}",
                hint="`harch data where NAME` shows copies",
            )
        if len(self._transfers) >= WAITING_MAX:
            raise HarchError("E0401", f"{WAITING_MAX} transfers are waiting", hint="try again", retry_after_s=10)
        transfer = self._transfers[tenant, entry.content] = _Transfer(tenant, entry.content)
        task = asyncio.get_running_loop().create_task(self._run(transfer, entry, holder, sources))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return transfer

    def _sources(self, entry: CatalogEntry, workload: Workload | None) -> list[str]:
        """Who may have it: its home first, then the owner of the work, then whoever is known to have a copy."""
        owner = workload.owner_hub if workload is not None else ""
        found = dict.fromkeys((entry.home, owner, *entry.object.hubs))
        return [hub for hub in found if hub and hub != self._hub_id]

    async def _run(self, transfer: _Transfer, entry: CatalogEntry, holder: str, sources: list[str]) -> None:
        """From the first source that gives it. A gate that says no is an answer as well; then comes the next one."""
        async with self._running:
            refusal: HarchError | None = None
            for source in sources:
                transfer.source = source
                try:
                    rules = self._jobs.machine.state.guard.rules
                    check_arrive(rules, entry, source, self._hub_id)
                    await self._pull_from(source, entry.object.id, transfer)
                    await asyncio.to_thread(self._store.hold, transfer.tenant, transfer.digest, holder)
                except HarchError as error:
                    refusal = error
                except Exception:  # noqa: BLE001 - the edge of this task: logged, and an answer for whoever waits
                    _log.exception("content of %s could not be fetched from %s", entry.object.id, source)
                    refusal = HarchError("E1140", f"{source} could not send it", hint="this hub's log shows why")
                else:
                    self._transfers.pop((transfer.tenant, transfer.digest), None)
                    self._arrived(entry)
                    return
            transfer.error = refusal
            _log.warning("content of %s did not come: %s", entry.object.id, refusal.message if refusal else "?")

    async def _pull_from(self, source: str, ref: str, transfer: _Transfer) -> None:
        """The root names the manifest, the manifest names the files: each is fetched as far as it is missing. Of most
        trees root and manifest come with the answer."""
        tenant, digest = transfer.tenant, transfer.digest
        reply = await self._peers.request(
            source,
            lambda number: ContentRequest(number=number, ref=ref, tenant=tenant, digest=digest),
            ContentReply,
            within_s=REPLY_WITHIN_S,
        )
        pull = self._peers.pull

        def fetch(wanted: Sequence[ChunkRef]) -> None:
            sizes = {chunk.id: chunk.size for chunk in wanted}
            transfer.bytes_total = transfer.bytes_done + sum(sizes.values())
            for start in range(0, len(wanted), IDS_PER_LOOK):
                some = list(wanted[start : start + IDS_PER_LOOK])
                missing = set(self._store.missing(tenant, [chunk.id for chunk in some]))
                left = [chunk for chunk in some if chunk.id in missing]
                transfer.bytes_done += sum(chunk.size for chunk in some) - sum(chunk.size for chunk in left)
                if left:
                    pull(
                        source,
                        reply.port,
                        reply.ticket,
                        left,
                        store=lambda frames: self._stored(tenant, frames),
                        progress=lambda count: _add(transfer, count),
                        cancelled=transfer.cancelled,
                    )

        def whole() -> None:
            root_ref = ChunkRef(bytes.fromhex(digest), reply.root_bytes)
            if reply.listing:
                self._store.put(tenant, decode_frames(reply.listing))
            fetch([root_ref])
            root = decode_root(self._raw(tenant, [root_ref]))
            fetch(root.manifest)
            entries = decode_manifest(self._raw(tenant, root.manifest))
            fetch(list(chunks_of(root_ref.id, root_ref.size, root, entries)))

        await asyncio.to_thread(whole)

    def _stored(self, tenant: str, frames: list[ChunkFrame]) -> None:
        self._store.put(tenant, frames)

    def _raw(self, tenant: str, chunks: Sequence[ChunkRef]) -> bytes:
        frames = self._store.read(tenant, [chunk.id for chunk in chunks])
        return b"".join(unpack_chunk(frame) for frame in frames)

    async def _held_now(self, tenant: str, digest: str, holder: str) -> bool:
        """It may have come for somebody else, or chunk by chunk."""
        try:
            await asyncio.to_thread(self._store.hold, tenant, digest, holder)
        except HarchError as error:
            if error.code not in ("E1102", "E1104"):
                raise
            return False
        return True

    def _arrived(self, entry: CatalogEntry) -> None:
        known = self._jobs.machine.state.catalog.entries.get(entry.object.id)
        rests = self._jobs.machine.state.guard.may_rest_here(entry.object)
        if known is not None and rests and self._hub_id not in known.object.hubs:
            self._jobs.post(ev.DataMoved(entry.object.id, self._hub_id, True))


IDS_PER_LOOK = 8_192  # names that the store is asked about at a time


def _add(transfer: _Transfer, count: int) -> None:
    transfer.bytes_done += count
