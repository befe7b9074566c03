"""How does a program send and fetch files? Chunks, trees, the files of work: operations, and both namespaces.

Chunks travel as the frames that `harch.content.frames` describes; here they are bytes that are handed on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeVar
from urllib.parse import quote

import msgspec

from harch.sdk.data import AsyncRun, Run
from harch.sdk.exchange import ApiReply, ApiRequest, Operation, RetryPolicy, decoded, exchange
from harch.wire.content import (
    ArtifactView,
    ChunksStored,
    Collected,
    ContentCheck,
    ContentStatus,
    FilesPlaced,
    FilesRequest,
    TenantUsage,
    TransferView,
    TreeView,
)
from harch.wire.pages import Page

__all__ = [
    "ArtifactList",
    "ArtifactView",
    "AsyncContent",
    "ChunksStored",
    "Collected",
    "Content",
    "ContentCheck",
    "ContentOperations",
    "ContentStatus",
    "TenantUsage",
    "TransferView",
    "TreeView",
]

PER_PAGE_MAX = 100
STILL_COMING = 202
CHUNKS_TIMEOUT_S = 120.0  # until the hub has a whole batch on its disk
FILES_TIMEOUT_S = 900.0  # until a node has packed and sent what was asked for
CHECK_TIMEOUT_S = 6 * 3600.0  # until every chunk of a store was read
RETRIES_MIN = 8  # about 10 s of pauses: a hub that was killed in the middle of a transfer is back by then
_BYTES = {"content-type": "application/octet-stream", "accept": "application/octet-stream"}
_JSON = {"content-type": "application/json"}

ArtifactList = list[ArtifactView]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ContentOperations:
    """One operation per question; see `exchange` for how they are driven."""

    policy: RetryPolicy

    def missing(self, ids: bytes) -> Operation[bytes]:
        return (yield from self._chunks("/content/missing", ids)).body

    def put(self, body: bytes) -> Operation[ChunksStored]:
        return decoded((yield from self._chunks("/content/chunks", body)), ChunksStored)

    def fetch(self, ref: str, ids: bytes) -> Operation[bytes]:
        return (yield from self._chunks("/content/fetch", ids, {"ref": ref})).body

    def tree(self, ref: str) -> Operation[TreeView | TransferView]:
        reply = yield from exchange(ApiRequest("POST", f"/content/trees/{quote(ref, safe='')}"), self.policy)
        return decoded(reply, TransferView) if reply.status == STILL_COMING else decoded(reply, TreeView)

    def status(self) -> Operation[ContentStatus]:
        return decoded((yield from exchange(ApiRequest("GET", "/content"), self.policy)), ContentStatus)

    def collect(self, grace_s: float | None) -> Operation[Collected]:
        params = {} if grace_s is None else {"grace_s": f"{grace_s:g}"}
        return self._once("/content/collect", params, Collected)

    def check(self) -> Operation[ContentCheck]:
        return self._once("/content/check", {}, ContentCheck)

    def files(self, ref: str, path: str, rank: int, attempt: int | None) -> Operation[TreeView]:
        body = msgspec.json.encode(FilesRequest(path=path, rank=rank, attempt=attempt))
        request = ApiRequest("POST", _files(ref), headers=_JSON, body=body, timeout_s=FILES_TIMEOUT_S)
        return decoded((yield from exchange(request, self.policy)), TreeView)

    def place_files(self, ref: str, path: str, digest: str, rank: int) -> Operation[None]:
        body = msgspec.json.encode(FilesPlaced(path=path, digest=digest, rank=rank))
        request = ApiRequest("PUT", _files(ref), headers=_JSON, body=body, timeout_s=FILES_TIMEOUT_S)
        yield from exchange(request, self.policy)

    def artifacts(self, ref: str | None) -> Operation[ArtifactList]:
        of_one = {} if ref is None else {"workload": ref}
        found: ArtifactList = []
        number = 0
        while True:
            number += 1
            params = {"page": str(number), "per_page": str(PER_PAGE_MAX), **of_one}
            request = ApiRequest("GET", "/artifacts", params)
            page = decoded((yield from exchange(request, self.policy)), Page[ArtifactView])
            found += page.items
            if not page.items or len(found) >= page.total:
                return found

    def _chunks(self, path: str, body: bytes, params: Mapping[str, str] | None = None) -> Operation[ApiReply]:
        """Asked twice, it answers and stores the same."""
        patient = replace(self.policy, retries_max=max(self.policy.retries_max, RETRIES_MIN))
        request = ApiRequest("POST", path, params or {}, _BYTES, body, timeout_s=CHUNKS_TIMEOUT_S)
        return (yield from exchange(request, patient))

    def _once(self, path: str, params: Mapping[str, str], type_: type[T]) -> Operation[T]:
        """Long work of the hub: asked again after a broken connection, it would be done twice at the same time."""
        request = ApiRequest("POST", path, params, timeout_s=CHECK_TIMEOUT_S)
        return decoded((yield from exchange(request, replace(self.policy, retries_max=0))), type_)


class Content:
    """`client.content`: chunks and trees of the asked hub. Safe to share between threads, as the client is."""

    def __init__(self, run: Run, ops: ContentOperations) -> None:
        self._run, self._ops = run, ops

    def missing(self, ids: bytes) -> bytes:
        """Which of these chunks the hub does not have; names of 32 bytes, one after the other, in and out."""
        return self._run(self._ops.missing(ids))

    def put(self, body: bytes) -> ChunksStored:
        """Stores chunks, as frames; they are on the hub's disk when this returns."""
        return self._run(self._ops.put(body))

    def fetch(self, ref: str, ids: bytes) -> bytes:
        """Chunks of a tree, as frames. `ref`: a data object, or a snapshot of the files of work."""
        return self._run(self._ops.fetch(ref, ids))

    def tree(self, ref: str) -> TreeView | TransferView:
        """The tree, or how far it has come if the hub is fetching it from another one: then ask again."""
        return self._run(self._ops.tree(ref))

    def status(self) -> ContentStatus:
        """What the store of the hub holds, and for whom."""
        return self._run(self._ops.status())

    def collect(self, *, grace_s: float | None = None) -> Collected:
        """Removes what nobody holds any more. Needs the role `operator`."""
        return self._run(self._ops.collect(grace_s))

    def check(self) -> ContentCheck:
        """Reads and verifies every chunk. Needs the role `operator`."""
        return self._run(self._ops.check())


class AsyncContent:
    """`client.content` of the asynchronous client. The methods are those of `Content`."""

    def __init__(self, run: AsyncRun, ops: ContentOperations) -> None:
        self._run, self._ops = run, ops

    async def missing(self, ids: bytes) -> bytes:
        return await self._run(self._ops.missing(ids))

    async def put(self, body: bytes) -> ChunksStored:
        return await self._run(self._ops.put(body))

    async def fetch(self, ref: str, ids: bytes) -> bytes:
        return await self._run(self._ops.fetch(ref, ids))

    async def tree(self, ref: str) -> TreeView | TransferView:
        return await self._run(self._ops.tree(ref))

    async def status(self) -> ContentStatus:
        return await self._run(self._ops.status())

    async def collect(self, *, grace_s: float | None = None) -> Collected:
        return await self._run(self._ops.collect(grace_s))

    async def check(self) -> ContentCheck:
        return await self._run(self._ops.check())


def _files(ref: str) -> str:
    return f"/workloads/{quote(ref, safe='')}/files"
