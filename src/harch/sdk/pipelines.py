"""How does a program run pipelines? Operations, and both namespaces of `client.pipelines`."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec

from harch.sdk.data import AsyncRun, Run
from harch.sdk.exchange import ApiRequest, Operation, RetryPolicy, decoded, exchange
from harch.sdk.pipeline_types import (
    ActionPage,
    LogPiece,
    Pipeline,
    PipelineAction,
    PipelineApplied,
    PipelineDetails,
    PipelinePage,
    PipelineReplay,
    PipelineReplayRun,
    PipelineResults,
    PipelineSourceKey,
)

PIECE_BYTES = 512 * 1024

T = TypeVar("T")
Table = Mapping[str, Mapping[str, float]]


@dataclass(frozen=True, slots=True)
class PipelineOperations:
    """One operation per question; see `exchange` for how they are driven."""

    retry: RetryPolicy

    def all(self) -> Operation[tuple[Pipeline, ...]]:
        return decoded((yield from exchange(ApiRequest("GET", "/pipelines"), self.retry)), PipelinePage).items

    def get(self, name: str) -> Operation[PipelineDetails]:
        return decoded((yield from exchange(ApiRequest("GET", _path(name)), self.retry)), PipelineDetails)

    def apply(
        self, file: str, source: str, dry_run: bool, enrichment: Table | None, drop_state: bool
    ) -> Operation[PipelineApplied]:
        body: dict[str, object] = {"file": file, "source": source, "dry_run": dry_run, "enrichment": enrichment}
        body |= {"drop_state": True} if drop_state else {}
        return self._send("POST", "/pipelines", body, PipelineApplied)

    def put_file(self, name: str, path: str, data: bytes) -> Operation[None]:
        digest = hashlib.sha256(data).hexdigest()
        for offset in range(0, max(1, len(data)), PIECE_BYTES):
            piece = data[offset : offset + PIECE_BYTES]
            params = {"path": path, "offset": str(offset), "total": str(len(data)), "sha256": digest}
            headers = {"content-type": "application/octet-stream"}
            yield from exchange(ApiRequest("PUT", f"{_path(name)}/files", params, headers, piece), self.retry)

    def set_version(self, name: str, model: str, version: Mapping[str, object]) -> Operation[PipelineApplied]:
        return self._send("POST", f"{_path(name)}/models/{quote(model, safe='')}", version, PipelineApplied)

    def scale(self, name: str, workers: Mapping[str, int | None]) -> Operation[Pipeline]:
        return self._send("POST", f"{_path(name)}/scale", {"workers": workers}, Pipeline)

    def halt(self, name: str, reason: str) -> Operation[Pipeline]:
        return self._send("POST", f"{_path(name)}/halt", {"reason": reason}, Pipeline)

    def resume(self, name: str) -> Operation[Pipeline]:
        return decoded((yield from exchange(ApiRequest("DELETE", f"{_path(name)}/halt"), self.retry)), Pipeline)

    def drain(self, name: str) -> Operation[Pipeline]:
        return self._send("POST", f"{_path(name)}/drain", {}, Pipeline)

    def remove(self, name: str) -> Operation[Pipeline]:
        return decoded((yield from exchange(ApiRequest("DELETE", _path(name)), self.retry)), Pipeline)

    def log(self, name: str, worker: str, offset: int) -> Operation[LogPiece]:
        params = {"worker": worker, "offset": str(offset)}
        reply = yield from exchange(ApiRequest("GET", f"{_path(name)}/logs", params), self.retry)
        return LogPiece(
            data=reply.body,
            offset=int(reply.headers.get("x-log-offset", "0")),
            next_offset=int(reply.headers.get("x-log-next-offset", "0")),
        )

    def results(self, name: str, after: int) -> Operation[PipelineResults]:
        request = ApiRequest("GET", f"{_path(name)}/results", {"after": str(after)})
        return decoded((yield from exchange(request, self.retry)), PipelineResults)

    def source_key(self, name: str, source: str, renew: bool) -> Operation[PipelineSourceKey]:
        params = {"source": source} if source else {}
        request = ApiRequest("POST" if renew else "GET", f"{_path(name)}/key", params)
        return decoded((yield from exchange(request, self.retry)), PipelineSourceKey)

    def approvals(self, name: str) -> Operation[tuple[PipelineAction, ...]]:
        return decoded(
            (yield from exchange(ApiRequest("GET", f"{_path(name)}/approvals"), self.retry)), ActionPage
        ).items

    def approve(self, name: str, cmd_id: str, digest: str) -> Operation[None]:
        yield from self._post(f"{_path(name)}/approvals/{quote(cmd_id, safe='')}/approve", {"digest": digest})

    def reject(self, name: str, cmd_id: str, reason: str) -> Operation[None]:
        yield from self._post(f"{_path(name)}/approvals/{quote(cmd_id, safe='')}/reject", {"reason": reason})

    def dead(self, name: str) -> Operation[tuple[PipelineAction, ...]]:
        return decoded((yield from exchange(ApiRequest("GET", f"{_path(name)}/dead"), self.retry)), ActionPage).items

    def replay_dead(self, name: str, cmd_id: str, not_carried_out: bool) -> Operation[None]:
        body = {"not_carried_out": not_carried_out}
        yield from self._post(f"{_path(name)}/dead/{quote(cmd_id, safe='')}/replay", body)

    def drop_dead(self, name: str, cmd_id: str) -> Operation[None]:
        yield from exchange(ApiRequest("DELETE", f"{_path(name)}/dead/{quote(cmd_id, safe='')}"), self.retry)

    def replay(self, name: str, from_seq: int, since: datetime | None, dry_run: bool) -> Operation[PipelineReplay]:
        body = {"from_seq": from_seq, "since": since, "dry_run": dry_run}
        return self._send("POST", f"{_path(name)}/replay", body, PipelineReplay)

    def replay_events(self, name: str, replay_options: Mapping[str, object]) -> Operation[PipelineReplayRun]:
        return self._send("POST", f"{_path(name)}/replays", replay_options, PipelineReplayRun)

    def replay_run(self, name: str, run: str, *, stop: bool = False) -> Operation[PipelineReplayRun]:
        request = ApiRequest("DELETE" if stop else "GET", f"{_path(name)}/replays/{quote(run, safe='')}")
        return decoded((yield from exchange(request, self.retry)), PipelineReplayRun)

    def _post(self, path: str, body: Mapping[str, object]) -> Operation[None]:
        yield from exchange(_with_body("POST", path, body), self.retry)

    def _send(self, method: str, path: str, body: Mapping[str, object], type_: type[T]) -> Operation[T]:
        return decoded((yield from exchange(_with_body(method, path, body), self.retry)), type_)


def _path(name: str) -> str:
    return f"/pipelines/{quote(name, safe='')}"


def _with_body(method: str, path: str, body: Mapping[str, object]) -> ApiRequest:
    return ApiRequest(method, path, headers={"content-type": "application/json"}, body=msgspec.json.encode(body))


class Pipelines:
    """`client.pipelines`: of the asked hub. Changes need the role `operator`."""

    def __init__(self, run: Run, ops: PipelineOperations) -> None:
        self._run, self._ops = run, ops

    def list(self) -> tuple[Pipeline, ...]:
        return self._run(self._ops.all())

    def get(self, name: str) -> PipelineDetails:
        return self._run(self._ops.get(name))

    def apply(
        self,
        file: str,
        *,
        source: str = "pipeline.yaml",
        dry_run: bool = False,
        enrichment: Table | None = None,
        drop_state: bool = False,
    ) -> PipelineApplied:
        """Creates or updates from the text of a pipeline file. Files of its models are sent before, by `put_file`."""
        return self._run(self._ops.apply(file, source, dry_run, enrichment, drop_state))

    def put_file(self, name: str, path: str, data: bytes) -> None:
        """A file that a model is made of, under the path that the pipeline file names."""
        self._run(self._ops.put_file(name, path, data))

    def set_version(self, name: str, model: str, version: str, role: str, **fields: Any) -> PipelineApplied:
        """`role`: loaded, shadow, canary, active or retired. `fields` of a new version: path, callable, sha256."""
        return self._run(self._ops.set_version(name, model, {"version": version, "role": role, **fields}))

    def scale(self, name: str, workers: Mapping[str, int | None]) -> Pipeline:
        """Numbers of workers by stage; None gives a stage back to its load."""
        return self._run(self._ops.scale(name, workers))

    def halt(self, name: str, *, reason: str = "") -> Pipeline:
        """Emergency stop: no action is sent until `resume`."""
        return self._run(self._ops.halt(name, reason))

    def resume(self, name: str) -> Pipeline:
        return self._run(self._ops.resume(name))

    def drain(self, name: str) -> Pipeline:
        return self._run(self._ops.drain(name))

    def remove(self, name: str) -> Pipeline:
        return self._run(self._ops.remove(name))

    def log(self, name: str, worker: str, *, offset: int = 0) -> LogPiece:
        return self._run(self._ops.log(name, worker, offset))

    def results(self, name: str, *, after: int = -20) -> PipelineResults:
        """What a pipeline without ACT made, behind number `after` of its lane; negative: so many before the end."""
        return self._run(self._ops.results(name, after))

    def source_key(self, name: str, source: str = "", *, renew: bool = False) -> PipelineSourceKey:
        """The key that senders of a listening source show; of the only one, if none is named. `renew` makes another."""
        return self._run(self._ops.source_key(name, source, renew))

    def approvals(self, name: str) -> tuple[PipelineAction, ...]:
        return self._run(self._ops.approvals(name))

    def approve(self, name: str, cmd_id: str, digest: str) -> None:
        """Exactly the command of this digest."""
        self._run(self._ops.approve(name, cmd_id, digest))

    def reject(self, name: str, cmd_id: str, *, reason: str = "") -> None:
        self._run(self._ops.reject(name, cmd_id, reason))

    def dead(self, name: str) -> tuple[PipelineAction, ...]:
        return self._run(self._ops.dead(name))

    def replay_dead(self, name: str, cmd_id: str, *, not_carried_out: bool = False) -> None:
        self._run(self._ops.replay_dead(name, cmd_id, not_carried_out))

    def drop_dead(self, name: str, cmd_id: str) -> None:
        self._run(self._ops.drop_dead(name, cmd_id))

    def replay(
        self, name: str, *, from_seq: int = 0, since: datetime | None = None, dry_run: bool = False
    ) -> PipelineReplay:
        """Messages of the dead lanes, again."""
        return self._run(self._ops.replay(name, from_seq, since, dry_run))

    def replay_events(self, name: str, *, dry_run: bool = True, **replay_options: Any) -> PipelineReplayRun:
        """Begins a replay. `wish`: since, until, file (sent by `put_file`), source, again, events_per_s."""
        return self._run(self._ops.replay_events(name, {"dry_run": dry_run, **replay_options}))

    def replay_run(self, name: str, run: str, *, stop: bool = False) -> PipelineReplayRun:
        """How far it is; with `stop`, it ends."""
        return self._run(self._ops.replay_run(name, run, stop=stop))


class AsyncPipelines:
    """`client.pipelines` of the asynchronous client. The methods are those of `Pipelines`."""

    def __init__(self, run: AsyncRun, ops: PipelineOperations) -> None:
        self._run, self._ops = run, ops

    async def list(self) -> tuple[Pipeline, ...]:
        return await self._run(self._ops.all())

    async def get(self, name: str) -> PipelineDetails:
        return await self._run(self._ops.get(name))

    async def apply(
        self,
        file: str,
        *,
        source: str = "pipeline.yaml",
        dry_run: bool = False,
        enrichment: Table | None = None,
        drop_state: bool = False,
    ) -> PipelineApplied:
        return await self._run(self._ops.apply(file, source, dry_run, enrichment, drop_state))

    async def put_file(self, name: str, path: str, data: bytes) -> None:
        await self._run(self._ops.put_file(name, path, data))

    async def set_version(self, name: str, model: str, version: str, role: str, **fields: Any) -> PipelineApplied:
        return await self._run(self._ops.set_version(name, model, {"version": version, "role": role, **fields}))

    async def scale(self, name: str, workers: Mapping[str, int | None]) -> Pipeline:
        return await self._run(self._ops.scale(name, workers))

    async def halt(self, name: str, *, reason: str = "") -> Pipeline:
        return await self._run(self._ops.halt(name, reason))

    async def resume(self, name: str) -> Pipeline:
        return await self._run(self._ops.resume(name))

    async def drain(self, name: str) -> Pipeline:
        return await self._run(self._ops.drain(name))

    async def remove(self, name: str) -> Pipeline:
        return await self._run(self._ops.remove(name))

    async def log(self, name: str, worker: str, *, offset: int = 0) -> LogPiece:
        return await self._run(self._ops.log(name, worker, offset))

    async def results(self, name: str, *, after: int = -20) -> PipelineResults:
        return await self._run(self._ops.results(name, after))

    async def source_key(self, name: str, source: str = "", *, renew: bool = False) -> PipelineSourceKey:
        return await self._run(self._ops.source_key(name, source, renew))

    async def approvals(self, name: str) -> tuple[PipelineAction, ...]:
        return await self._run(self._ops.approvals(name))

    async def approve(self, name: str, cmd_id: str, digest: str) -> None:
        await self._run(self._ops.approve(name, cmd_id, digest))

    async def reject(self, name: str, cmd_id: str, *, reason: str = "") -> None:
        await self._run(self._ops.reject(name, cmd_id, reason))

    async def dead(self, name: str) -> tuple[PipelineAction, ...]:
        return await self._run(self._ops.dead(name))

    async def replay_dead(self, name: str, cmd_id: str, *, not_carried_out: bool = False) -> None:
        await self._run(self._ops.replay_dead(name, cmd_id, not_carried_out))

    async def drop_dead(self, name: str, cmd_id: str) -> None:
        await self._run(self._ops.drop_dead(name, cmd_id))

    async def replay(
        self, name: str, *, from_seq: int = 0, since: datetime | None = None, dry_run: bool = False
    ) -> PipelineReplay:
        return await self._run(self._ops.replay(name, from_seq, since, dry_run))

    async def replay_events(self, name: str, *, dry_run: bool = True, **replay_options: Any) -> PipelineReplayRun:
        return await self._run(self._ops.replay_events(name, {"dry_run": dry_run, **replay_options}))

    async def replay_run(self, name: str, run: str, *, stop: bool = False) -> PipelineReplayRun:
        return await self._run(self._ops.replay_run(name, run, stop=stop))
