"""What can be asked of a hub about content? Chunks in and out, trees by reference, files of work, and what is kept.

The store blocks, so it is asked in threads, a few at a time. Whatever leaves it passes a gate first: by the tag of the
data object that it belongs to, or, of files of work, by the tags of all that the work has read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from harch.base.clock import Clock
from harch.base.errors import HarchError
from harch.base.ids import new_id
from harch.content.frames import (
    BATCH_BYTES_MAX,
    BATCH_CHUNKS_MAX,
    decode_frames,
    decode_ids,
    encode_frame,
    encode_ids,
    unpack_chunk,
)
from harch.content.model import is_digest
from harch.content.store import ContentStore
from harch.execution.images.manifest import layout_digest
from harch.execution.protocol import TaskArtifact, TaskEnded
from harch.hub.agent_gateway import AgentGateway
from harch.hub.audit import data_drafts
from harch.hub.content.gates import check_read
from harch.hub.content.retention import data_holder
from harch.hub.content.transfers import ContentTransfers
from harch.hub.jobs.data_commands import artifact_id
from harch.hub.jobs.runtime import JobRuntime
from harch.hub.jobs.state import JobState
from harch.hub.store.records import CatalogEntry
from harch.hub.views import Principal
from harch.sovereignty.lineage import derive_tag
from harch.sovereignty.tags import DataKind, DataObject
from harch.wire.content import (
    ChunksStored,
    Collected,
    ContentCheck,
    ContentStatus,
    FilesPlaced,
    FilesRequest,
    TransferView,
    TreeView,
)
from harch.workloads.lifecycle import State, Workload

SNAPSHOT_PREFIX = "snap_"
IMAGE_HOLDER = "image:"
LAYOUT_INDEX, LAYOUT_INDEX_BYTES_MAX = "index.json", 1024 * 1024
SNAPSHOT_KEPT = timedelta(hours=1)
IMAGE_KEPT = timedelta(days=30)  # since it was last registered; a registry still has it
SNAPSHOTS_MAX = 1_000
STORE_THREADS = 4  # beyond that they wait for each other in the store
WAITING_MAX = 256
UPLOADS_MAX = 16  # whose bodies are in memory at a time, 18 MiB each

T = TypeVar("T")


def image_holder(workload: Workload, reference: str) -> str:
    """What a digest names is the same for all work of a tenant. A tag may name another image tomorrow, so it holds for
    the work that has resolved it."""
    return f"{IMAGE_HOLDER}{reference}" if "@sha256:" in reference else f"{IMAGE_HOLDER}{workload.id}/{reference}"


class Readable(Struct, frozen=True, kw_only=True):
    """A tree that somebody may read here, with the hold that keeps it."""

    ref: str
    tenant: str
    digest: str
    holder: str
    entry: CatalogEntry  # of a snapshot it is made for the occasion, and is in no catalog


class StoreThreads:
    """Runs what blocks, a few at a time; who comes when too many wait is asked to come again."""

    def __init__(self) -> None:
        self._free = asyncio.Semaphore(STORE_THREADS)
        self._waiting = 0

    async def run(self, work: Callable[[], T]) -> T:
        if self._waiting >= WAITING_MAX:
            raise HarchError(
                "E0401", f"{WAITING_MAX} requests for content are waiting", hint="try again", retry_after_s=2
            )
        self._waiting += 1
        try:
            async with self._free:
                return await asyncio.to_thread(work)
        finally:
            self._waiting -= 1


class HubContent:
    """Behind the API, and for agents. `tenant` None means all tenants, for operators."""

    def __init__(
        self,
        *,
        hub_id: str,
        store: ContentStore,
        threads: StoreThreads,
        jobs: JobRuntime,
        agents: AgentGateway,
        transfers: ContentTransfers,
        clock: Clock,
        code_kept: timedelta,
    ) -> None:
        self._hub_id, self._store, self._threads, self._jobs = hub_id, store, threads, jobs
        self._agents, self._transfers, self._clock, self.code_kept = agents, transfers, clock, code_kept
        self._snapshots: dict[str, Readable] = {}
        # Taken before a body is read: whoever waits for it holds nothing in memory.
        self.upload_room = asyncio.Semaphore(UPLOADS_MAX)

    # Chunks in

    async def missing(self, raw_ids: bytes, *, tenant: str) -> bytes:
        """Of these names those that are not here. What is here stays for a while, so that a tree can be made of it."""
        ids = decode_ids(raw_ids)
        return encode_ids(await self._threads.run(lambda: self._store.missing(tenant, ids)))

    async def put(self, body: bytes, *, tenant: str) -> ChunksStored:
        """On disk when this returns. Raises E1101 for what is damaged, before anything is stored, and E1103."""
        return await self._threads.run(lambda: self._store.put(tenant, decode_frames(body)))

    # Trees out

    async def tree(self, ref: str, *, tenant: str | None, workload: Workload | None = None) -> TreeView | TransferView:
        """What is here at once; what another hub has is fetched, and how far that is, is the answer meanwhile."""
        found = await self._readable(ref, tenant=tenant)
        under_way = await self._transfers.ensure(found.tenant, found.entry, found.holder, workload=workload)
        if under_way is not None:
            return under_way
        stored = await self._threads.run(lambda: self._store.tree(found.tenant, found.digest))
        return TreeView(
            ref=ref,
            digest=found.digest,
            size_bytes=stored.root.size_bytes,
            files=stored.root.files,
            name=found.entry.object.name,
            expires_at=found.entry.expires_at,
        )

    async def fetch(self, ref: str, raw_ids: bytes, *, tenant: str | None) -> bytes:
        """Frames of chunks of this tree, in the order asked for."""
        found = await self._readable(ref, tenant=tenant)
        ids = decode_ids(raw_ids)
        if len(ids) > BATCH_CHUNKS_MAX:
            raise HarchError("E0201", f"at most {BATCH_CHUNKS_MAX} chunks at a time", hint="ask for fewer")
        return await self._threads.run(lambda: self._read(found, ids))

    def _read(self, found: Readable, ids: Sequence[bytes]) -> bytes:
        foreign = self._store.outside(found.tenant, found.digest, ids)
        if foreign:
            raise HarchError(
                "E1102",
                f"{len(foreign)} of these chunks are no part of `{found.ref[:128]}`",
                hint="read its tree first",
            )
        frames = self._store.read(found.tenant, ids)
        if sum(frame.bytes_travelling for frame in frames) > 2 * BATCH_BYTES_MAX:
            raise HarchError("E0204", f"this is more than {BATCH_BYTES_MAX} bytes", hint="ask for fewer chunks")
        return b"".join(encode_frame(frame) for frame in frames)

    async def _readable(self, ref: str, *, tenant: str | None) -> Readable:
        """Raises E0906, E1102, or E0907, which is audited."""
        found = self._snapshots.get(ref)
        if found is not None and tenant in (None, found.tenant):
            await self._check(found.entry)
            return found
        if ref.startswith(SNAPSHOT_PREFIX):
            raise HarchError("E1102", f"`{ref[:128]}` is no longer kept", hint="ask for the files again")
        entry = self._state.catalog.get(ref, tenant=tenant)
        if not entry.content:
            raise HarchError(
                "E1102",
                f"HarchOS does not hold the bytes of {entry.object.name}",
                hint="it was registered without files",
            )
        await self._check(entry)
        data = entry.object
        return Readable(ref=ref, tenant=data.tenant, digest=entry.content, holder=data_holder(data.id), entry=entry)

    async def _check(self, entry: CatalogEntry) -> None:
        try:
            check_read(self._state.guard.rules, entry, self._hub_id)
        except HarchError as error:
            draft = data_drafts.refused(
                entry.object.id,
                error,
                country=self._state.hub.country,
                tenant=entry.object.tenant,
                actor=self._hub_id,
                policy_version=self._jobs.context().policy_version,
                data=(entry.object.id,) if entry.object.id in self._state.catalog.entries else (),
            )
            await self._jobs.write([], [draft])
            raise

    # Data objects with content

    async def hold(self, data_id: str, digest: str, *, tenant: str) -> int:
        """Its size. From now on it is kept for this object. Raises E1104 if chunks are missing, E1105."""
        if not is_digest(digest):
            raise HarchError("E0201", "`content` is not the digest of a tree", hint="64 hexadecimal digits")
        stored = await self._threads.run(lambda: self._store.hold(tenant, digest, data_holder(data_id)))
        return stored.root.size_bytes

    async def release(self, data_id: str, *, tenant: str) -> None:
        await self._threads.run(lambda: self._store.release(tenant, data_holder(data_id)))

    # Files of work

    async def snapshot(self, workload: Workload, request: FilesRequest) -> TreeView:
        """A tree of what is in its working folder now; readable for an hour."""
        entry = self._entry_of_files(workload)
        is_elsewhere = bool(workload.runner_hub) and not workload.borrowed
        try:
            await self._check(entry)
        except HarchError as error:
            if is_elsewhere:
                error.hint = (
                    f"it runs at {workload.runner_hub}: add `--hub {workload.runner_hub}`, and name it by its id"
                )
            raise
        if is_elsewhere:
            digest = await self._transfers.snapshot(workload, entry, request)
        else:
            answer = await self._agents.snapshot_files(
                workload, rank=request.rank, attempt=request.attempt, path=request.path
            )
            digest = answer.digest
        return await self._keep_snapshot(workload.tenant, digest, entry)

    async def snapshot_for(self, workload: Workload, request: FilesRequest) -> tuple[TreeView, CatalogEntry]:
        """Of work that runs here for another hub, which fetches it as it fetches other content."""
        kept = await self.snapshot(workload, request)
        return kept, self._snapshots[kept.ref].entry

    async def place(self, workload: Workload, request: FilesPlaced) -> None:
        """Puts what was uploaded before into the working folder of a task that runs here."""
        if workload.runner_hub and not workload.borrowed:
            raise HarchError(
                "E1111",
                f"{workload.spec.name} runs at {workload.runner_hub}",
                hint=f"copy the files there: `harch cp --hub {workload.runner_hub} FILE {workload.id}:PATH`",
            )
        if workload.state not in (State.RUNNING, State.PAUSED):
            over = workload.state.is_final
            hint = "files can still be copied out of it" if over else "wait until it runs: `harch wait`"
            raise HarchError("E1111", f"{workload.spec.name} is {workload.state}", hint=hint)
        if not is_digest(request.digest):
            raise HarchError("E0201", "`digest` is not that of a tree", hint="64 hexadecimal digits", field="digest")
        kept = await self._keep_snapshot(workload.tenant, request.digest, self._entry_of_files(workload))
        await self._agents.place_files(
            workload, rank=request.rank, path=request.path, ref=kept.ref, digest=request.digest
        )

    def _entry_of_files(self, workload: Workload) -> CatalogEntry:
        """What work leaves carries the tags of all that it read."""
        guard = self._state.guard
        reads = guard.reads_of(workload)
        tag = guard.rules.open_tag(workload.spec.countries_allowed) if not reads.reads else None
        if reads.not_found:
            tag = None  # something it read is not known any more, so nothing is permitted
        elif reads.reads:
            tag = derive_tag(data.tag for data in reads.reads)
        now = self._clock.now()
        data = DataObject(
            id=new_id("snap", now=now),
            kind=DataKind.ARTIFACT,
            name=f"files of {workload.spec.name}",
            tenant=workload.tenant,
            tag=tag,
            hubs=(workload.runner_hub or self._hub_id,),
        )
        return CatalogEntry(object=data, created_at=now, updated_at=now, made_by=workload.id)

    async def _keep_snapshot(self, tenant: str, digest: str, entry: CatalogEntry) -> TreeView:
        ref, until = entry.object.id, self._clock.now() + SNAPSHOT_KEPT
        stored = await self._threads.run(lambda: self._store.hold(tenant, digest, f"snapshot:{ref}", until=until))
        self._forget_snapshots()
        kept = replace(entry, content=digest, expires_at=until)
        self._snapshots[ref] = Readable(ref=ref, tenant=tenant, digest=digest, holder=f"snapshot:{ref}", entry=kept)
        return TreeView(
            ref=ref,
            digest=digest,
            size_bytes=stored.root.size_bytes,
            files=stored.root.files,
            name=entry.object.name,
            expires_at=until,
        )

    def _forget_snapshots(self) -> None:
        now = self._clock.now()
        for ref, found in list(self._snapshots.items()):
            over = found.entry.expires_at is not None and found.entry.expires_at <= now
            if over or len(self._snapshots) >= SNAPSHOTS_MAX:
                del self._snapshots[ref]

    # Agents

    def workload_of_agent(self, caller: Principal, workload_id: str) -> Workload:
        """Work of which this agent has a task. Raises E0301 for any other, whether it exists or not."""
        workload = self._state.registry.workloads.get(workload_id)
        if workload is None or not self._agents.serves(caller.key_id, workload):
            raise HarchError(
                "E0301", f"no workload `{workload_id[:64]}` on the nodes of this agent", hint="its task may be over"
            )
        return workload

    async def tree_for(self, workload: Workload, ref: str) -> TreeView | TransferView:
        """Gate 3, the hub's half: only what the work names, or files that somebody is placing into it."""
        self._check_named(workload, ref)
        return await self.tree(ref, tenant=workload.tenant, workload=workload)

    async def fetch_for(self, workload: Workload, ref: str, raw_ids: bytes) -> bytes:
        if ref.startswith(IMAGE_HOLDER):
            return await self._fetch_image(workload, ref, decode_ids(raw_ids))
        self._check_named(workload, ref)
        return await self.fetch(ref, raw_ids, tenant=workload.tenant)

    def _check_named(self, workload: Workload, ref: str) -> None:
        snapshot = self._snapshots.get(ref)
        is_its_files = snapshot is not None and snapshot.entry.made_by == workload.id
        if ref not in workload.data_ids and not is_its_files:
            raise HarchError("E0906", f"{workload.id} does not read `{ref[:64]}`", hint="name it in the specification")

    async def keep_artifacts(self, end: TaskEnded) -> TaskEnded:
        """Each is held under the id that it will have, before its end is booked; what cannot be held is lost."""
        workload = self._state.current(end.key)
        if workload is None:
            return end
        numbers = {artifact.name: number for number, artifact in enumerate(workload.spec.artifacts)}
        kept: list[TaskArtifact] = []
        lost = list(end.artifacts_lost)
        for artifact in end.artifacts:
            if artifact.name not in numbers:
                continue
            try:
                await self.hold(artifact_id(workload, numbers[artifact.name]), artifact.digest, tenant=workload.tenant)
                kept.append(artifact)
            except HarchError as error:
                lost.append(f"{artifact.name}: {error.code} {error.message}")
        return replace(end, artifacts=tuple(kept), artifacts_lost=tuple(lost))

    # Images that nodes have fetched from registries

    async def image(self, workload: Workload, reference: str) -> TreeView:
        """The layout that a node has fetched; its `name` is the digest of the image. Raises E1102."""
        holder = image_holder(workload, reference)
        digest = await self._threads.run(lambda: self._store.held(workload.tenant, holder))
        if digest is None:
            raise HarchError(
                "E1102", f"no node here has fetched `{reference[:200]}`", hint="fetch it from its registry"
            )
        return await self._image_view(workload.tenant, digest, holder)

    async def put_image(self, workload: Workload, reference: str, digest: str) -> TreeView:
        if not is_digest(digest):
            raise HarchError("E0201", "`digest` is not that of a tree", hint="64 hexadecimal digits", field="digest")
        until = self._clock.now() + IMAGE_KEPT
        holder = image_holder(workload, reference)
        await self._threads.run(lambda: self._store.hold(workload.tenant, digest, holder, until=until))
        return await self._image_view(workload.tenant, digest, holder)

    async def _image_view(self, tenant: str, digest: str, holder: str) -> TreeView:
        """What image it is stands in the layout itself: whoever registers it need not be believed."""

        def view() -> TreeView:
            stored = self._store.tree(tenant, digest)
            index = next((entry for entry in stored.entries if entry.path == LAYOUT_INDEX), None)
            chunks = index.chunks if index is not None and index.size <= LAYOUT_INDEX_BYTES_MAX else ()
            frames = self._store.read(tenant, [chunk.id for chunk in chunks])
            return TreeView(
                ref=holder,
                digest=digest,
                size_bytes=stored.root.size_bytes,
                files=stored.root.files,
                name=layout_digest(b"".join(unpack_chunk(frame) for frame in frames)),
            )

        return await self._threads.run(view)

    async def _fetch_image(self, workload: Workload, holder: str, ids: Sequence[bytes]) -> bytes:
        digest = await self._threads.run(lambda: self._store.held(workload.tenant, holder))
        if digest is None:
            raise HarchError("E1102", "this image is no longer kept", hint="fetch it from its registry")
        entry = self._entry_of_files(workload)
        found = Readable(ref=holder, tenant=workload.tenant, digest=digest, holder=holder, entry=entry)
        return await self._threads.run(lambda: self._read(found, ids))

    # Operators

    async def status(self, *, tenant: str | None) -> ContentStatus:
        usage, free = await self._threads.run(lambda: (self._store.usage(), self._store.bytes_free()))
        listed = [one for one in usage if tenant in (None, one.tenant)]
        return ContentStatus(
            hub=self._hub_id,
            location=self._store.location,
            tenants=listed,
            bytes_stored=sum(one.bytes_stored for one in listed),
            bytes_free=free if tenant is None else None,
            transfers=self._transfers.views(tenant=tenant),
        )

    async def collect(self, *, grace_s: float | None) -> Collected:
        return await self._threads.run(lambda: self._store.collect(grace_s=grace_s))

    async def check(self) -> ContentCheck:
        return await self._threads.run(self._store.check)

    @property
    def _state(self) -> JobState:
        return self._jobs.machine.state
