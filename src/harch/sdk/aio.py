"""How does a program talk to HarchOS while it does other things? The asynchronous client."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from datetime import datetime
from types import TracebackType
from typing import NamedTuple, Self, TypeVar

import httpx

from harch.base.clock import SystemClock
from harch.base.errors import HarchError
from harch.sdk.carbon import AsyncCarbon, CarbonOperations
from harch.sdk.content import ArtifactList, AsyncContent, ContentOperations, TreeView
from harch.sdk.data import AsyncData, DataOperations
from harch.sdk.energy import AsyncEnergy, EnergyOperations
from harch.sdk.exchange import ApiReply, ApiRequest, Operation, RetryPolicy, SendFailure, Sleep
from harch.sdk.failover import (
    PROBE,
    explain_failover,
    may_go_elsewhere,
    needs_probe,
    request_timeout,
    stream_timeout,
)
from harch.sdk.hubs import AsyncHubs, HubOperations
from harch.sdk.nodes import AsyncNodes, NodeOperations
from harch.sdk.operations import EVENTS_PER_PAGE, PER_PAGE_MAX, Operations, Spec
from harch.sdk.pipelines import AsyncPipelines, PipelineOperations
from harch.sdk.settings import (
    TIMEOUT_S,
    Settings,
    client_options,
    explain_missing_key,
    failure_of,
    settings_from_env,
    traced,
)
from harch.sdk.streams import ChainExport, EventStream, LogStream, Stream
from harch.sdk.types import (
    AuditLoss,
    Event,
    EventPage,
    Explanation,
    FederationPage,
    Gpu,
    Health,
    Identity,
    Page,
    SignedCheckpoint,
    TenantQuota,
    Workload,
)

T = TypeVar("T")

# Inside the classes below, `list` is a method.
NameList = list[str]
CheckpointList = list[SignedCheckpoint]


class AsyncHubConnection(NamedTuple):
    """One hub, and the connections to it."""

    settings: Settings
    http: httpx.AsyncClient


class AsyncClient:
    """One hub, one key. Use it in an `async with` block, or await `close`. The methods are those of `Client`."""

    def __init__(
        self,
        url: str | None = None,
        api_key: str | None = None,
        *,
        timeout_s: float = TIMEOUT_S,
        retry: RetryPolicy | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
        on_failover: Callable[[str, str], None] = lambda silent, next_: None,
    ) -> None:
        """`on_failover` hears which hub of a context does not answer, and which one is asked in its place."""
        self._retry = retry or RetryPolicy()
        self._ops = Operations(self._retry, SystemClock().monotonic_s)
        self._transport, self._timeout_s, self._on_failover = transport, timeout_s, on_failover
        self._hub = self._opened(settings_from_env(url, api_key))
        self._answered: AsyncHubConnection | None = None
        self._earlier: list[AsyncHubConnection] = []  # other tasks may still be using them
        self.workloads = AsyncWorkloads(self, self._ops, self._retry)
        self.hubs = AsyncHubs(self.run, HubOperations(self._retry))
        self.gpus = AsyncGpus(self, self._ops)
        self.secrets = AsyncSecrets(self, self._ops)
        self.audit = AsyncAudit(self, self._ops, self._retry)
        self.data = AsyncData(self.run, DataOperations(self._retry))
        self.content = AsyncContent(self.run, ContentOperations(self._retry))
        self.nodes = AsyncNodes(self.run, NodeOperations(self._retry))
        self.carbon = AsyncCarbon(self.run, self.stream, CarbonOperations(self._retry))
        self.energy = AsyncEnergy(self.run, EnergyOperations(self._retry))
        self.pipelines = AsyncPipelines(self.run, PipelineOperations(self._retry))

    @property
    def settings(self) -> Settings:
        """Of the hub that is asked now; another one may have been before."""
        return self._hub.settings

    async def plan(self, spec: Spec) -> Explanation:
        """What would happen to this workload now; changes nothing."""
        return await self.run(self._ops.plan(spec))

    async def events(self, after: int | None = None) -> AsyncIterator[Event]:
        """Each event from now on, or every one after that number, forever; resumes by itself."""
        if after is None:
            # Known before the first connection, so that one which breaks early loses nothing.
            after = (await self.event_page()).last_seq
        async for event in self.stream(EventStream(self._retry, after)):
            yield event

    async def event_page(
        self, after: int | None = None, *, limit: int = EVENTS_PER_PAGE, subject: str | None = None
    ) -> EventPage:
        """Events that have already happened, of one subject if it is named: the newest, or those after that number."""
        return await self.run(self._ops.events(after, limit, subject))

    async def quotas(self) -> list[TenantQuota]:
        """What tenants hold at the hub, and what they may: one's own, and for operators all."""
        return await self.run(self._ops.quotas())

    async def health(self) -> Health:
        return await self.run(self._ops.health())

    async def me(self) -> Identity:
        return await self.run(self._ops.me())

    async def run(self, operation: Operation[T]) -> T:
        """Drives one operation of the core to its result."""
        answer: ApiReply | SendFailure | None = None
        doubtful: tuple[ApiRequest, AsyncHubConnection] | None = (
            None  # a change that may have arrived: it goes nowhere else
        )
        while True:
            try:
                step = operation.send(answer)
            except StopIteration as stop:
                result: T = stop.value
                return result
            except HarchError as error:
                explain_missing_key(error, self.settings)
                explain_failover(error, [hub.settings.url for hub in self._earlier], self.settings.url)
                raise
            if isinstance(step, Sleep):
                await asyncio.sleep(step.delay_s)
                answer = None
            else:
                only = doubtful[1] if doubtful is not None and step is doubtful[0] else None
                answer, hub = await self._send(step, only)
                if isinstance(answer, SendFailure) and answer.sent and step.method != "GET":
                    doubtful = step, hub

    async def stream(self, machine: Stream[T]) -> AsyncIterator[T]:
        """Drives one stream of the core, item by item."""
        hub = self._hub  # where it began: what it has seen means nothing elsewhere
        while not machine.done:
            try:
                request = _built(hub, machine.request(), stream_timeout(others=hub.settings.others))
                async with contextlib.aclosing(await hub.http.send(request, stream=True)) as response:
                    if response.status_code >= 400:
                        delay_s = machine.refused(
                            ApiReply(response.status_code, dict(response.headers), await response.aread())
                        )
                    else:
                        machine.opened(dict(response.headers))
                        async for data in response.aiter_bytes():
                            for item in machine.feed(data):
                                yield item
                        delay_s = machine.ended()
            except httpx.TransportError as error:
                delay_s = machine.broke(failure_of(error, hub.settings.url))
                if machine.gone and self._moved(hub):
                    machine.move()
                    hub, delay_s = self._hub, 0.0
            if not machine.done:
                await asyncio.sleep(delay_s)

    async def close(self) -> None:
        for hub in (*self._earlier, self._hub):
            await hub.http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _send(
        self, request: ApiRequest, only: AsyncHubConnection | None = None
    ) -> tuple[ApiReply | SendFailure, AsyncHubConnection]:
        """The answer, and which hub it is from. `only`: no other hub may be asked."""
        if only is None and self._hub is not self._answered and needs_probe(request, self.settings.others):
            await self._send(PROBE)
        hub = only or self._hub
        timeout = request_timeout(request, self._timeout_s, others=() if only else hub.settings.others)
        try:
            response = await hub.http.send(_built(hub, request, timeout))
        except httpx.TransportError as error:
            failure = failure_of(error, hub.settings.url)
            elsewhere = only is None and may_go_elsewhere(request, failure, answered_before=hub is self._answered)
            return await self._send(request) if elsewhere and self._moved(hub) else (failure, hub)
        self._answered = hub
        return ApiReply(response.status_code, dict(response.headers), response.content), hub

    def _moved(self, tried: AsyncHubConnection) -> bool:
        """Whether there is another hub of the context to ask. Of requests that failed together, the first one moves."""
        if self._hub is not tried:
            return True
        elsewhere = tried.settings.elsewhere()
        if elsewhere is None:
            return False
        self._on_failover(tried.settings.url, elsewhere.url)
        self._earlier.append(tried)
        self._hub = self._opened(elsewhere)
        return True

    def _opened(self, settings: Settings) -> AsyncHubConnection:
        return AsyncHubConnection(settings, httpx.AsyncClient(transport=self._transport, **client_options(settings)))


def _built(hub: AsyncHubConnection, request: ApiRequest, timeout: httpx.Timeout) -> httpx.Request:
    return hub.http.build_request(
        request.method,
        request.path,
        params=dict(request.params),
        headers=traced(request),
        content=request.body,
        timeout=timeout,
    )


class _Namespace:
    def __init__(self, client: AsyncClient, ops: Operations) -> None:
        self._run = client.run
        self._stream = client.stream
        self._ops = ops


class AsyncWorkloads(_Namespace):
    """`client.workloads`. A `ref` is an id or a name."""

    def __init__(self, client: AsyncClient, ops: Operations, retry: RetryPolicy) -> None:
        super().__init__(client, ops)
        self._retry = retry
        self._content = ContentOperations(retry)

    async def submit(self, spec: Spec, *, idempotency_key: str | None = None) -> Workload:
        return await self._run(self._ops.submit(spec, idempotency_key))

    async def get(self, ref: str) -> Workload:
        return await self._run(self._ops.workload(ref))

    async def list(
        self,
        *,
        page: int = 1,
        per_page: int = PER_PAGE_MAX,
        status: str | None = None,
        type: str | None = None,
        name: str | None = None,
        active: bool = False,
        tenant: str | None = None,
        labels: Mapping[str, str] | None = None,
        borrowed: bool = False,
    ) -> Page[Workload]:
        """A page, newest first. `active`: only those that have not ended; `borrowed`: work of other hubs, instead."""
        return await self._run(
            self._ops.workloads(
                page=page,
                per_page=per_page,
                status=status,
                type_=type,
                name=name,
                active=active,
                tenant=tenant,
                labels=labels or {},
                borrowed=borrowed,
            )
        )

    async def everywhere(
        self, *, page: int = 1, per_page: int = PER_PAGE_MAX, status: str | None = None, tenant: str | None = None
    ) -> FederationPage:
        """The unfinished work of all hubs; `silent_hubs` are those that did not answer."""
        return await self._run(self._ops.everywhere(page=page, per_page=per_page, status=status, tenant=tenant))

    async def stop(self, ref: str) -> Workload:
        """Asks for the end: TERM, then KILL after the grace time. Use `wait` to see it ended."""
        return await self._run(self._ops.set_status(ref, "cancelled"))

    async def pause(self, ref: str) -> Workload:
        return await self._run(self._ops.set_status(ref, "paused"))

    async def resume(self, ref: str) -> Workload:
        return await self._run(self._ops.set_status(ref, "running"))

    async def restart(self, ref: str) -> Workload:
        """From its beginning: what runs is stopped first; what has ended is submitted again, and gets a new id."""
        return await self._run(self._ops.restart(ref))

    async def why(self, ref: str) -> Explanation:
        return await self._run(self._ops.why(ref))

    async def wait(
        self, ref: str, *, until: Callable[[Workload], bool] | None = None, timeout_s: float | None = None
    ) -> Workload:
        """Returns once it has ended, or `until` says so. Raises `TimeoutError` after `timeout_s`."""
        return await self._run(self._ops.wait(ref, until=until or (lambda w: w.is_final), timeout_s=timeout_s))

    def logs(
        self,
        ref: str,
        *,
        rank: int = 0,
        attempt: int | None = None,
        offset: int = 0,
        follow: bool = False,
        since: datetime | None = None,
        preparation: bool = False,
    ) -> AsyncIterator[bytes]:
        """The output of one task, piece by piece. `follow` goes on until the task has ended; `since` (with a time zone)
        leaves out what was written before. `preparation`: of what was fetched and built for it, instead."""
        machine = LogStream(
            self._retry,
            ref,
            rank=rank,
            attempt=attempt,
            offset=offset,
            follow=follow,
            since=since,
            preparation=preparation,
        )
        return self._stream(machine)

    async def files(self, ref: str, path: str = ".", *, rank: int = 0, attempt: int | None = None) -> TreeView:
        """A snapshot of what is at `path` below the working folder of one task; `content` fetches it by its ref."""
        return await self._run(self._content.files(ref, path, rank, attempt))

    async def place_files(self, ref: str, path: str, digest: str, *, rank: int = 0) -> None:
        """Puts an uploaded tree at `path` below the working folder of one task that runs."""
        await self._run(self._content.place_files(ref, path, digest, rank))

    async def artifacts(self, ref: str | None = None) -> ArtifactList:
        """What is kept of one workload; without `ref`, of all of them, newest first."""
        return await self._run(self._content.artifacts(ref))


class AsyncGpus(_Namespace):
    """`client.gpus`."""

    async def list(
        self,
        *,
        page: int = 1,
        per_page: int = PER_PAGE_MAX,
        hub: str | None = None,
        model: str | None = None,
        status: str | None = None,
    ) -> Page[Gpu]:
        return await self._run(self._ops.gpus(page=page, per_page=per_page, hub=hub, model=model, status=status))


class AsyncSecrets(_Namespace):
    """`client.secrets`. Values go in and never come out."""

    async def list(self) -> NameList:
        return await self._run(self._ops.secret_names())

    async def set(self, name: str, value: str) -> None:
        await self._run(self._ops.set_secret(name, value))

    async def remove(self, name: str) -> None:
        await self._run(self._ops.remove_secret(name))


class AsyncAudit(_Namespace):
    """`client.audit`: the hub's chain of decisions. To verify it, see `harch audit verify`."""

    def __init__(self, client: AsyncClient, ops: Operations, retry: RetryPolicy) -> None:
        super().__init__(client, ops)
        self._retry = retry

    async def head(self) -> SignedCheckpoint:
        """The signed head of the chain: a copy kept elsewhere shows later that nothing was cut or rewritten."""
        return await self._run(self._ops.audit_head())

    def export(self) -> AsyncIterator[bytes]:
        """The whole chain, piece by piece."""
        return self._stream(ChainExport(self._retry, "/audit/export"))

    async def checkpoints(self, hub: str | None = None) -> CheckpointList:
        """Checkpoints of other hubs (of one) that this one keeps."""
        return await self._run(self._ops.audit_checkpoints(hub))

    async def loss(self) -> AuditLoss:
        """What the chain is known to lack; `held` says whether the hub has stopped because of it."""
        return await self._run(self._ops.audit_loss())

    async def accept_loss(self, lost_seq: int, why: str) -> AuditLoss:
        """Lets the hub go on without the entries up to that number; the chain says so from then on."""
        return await self._run(self._ops.accept_audit_loss(lost_seq, why))

    async def rotate_key(self) -> str:
        """Replaces the signing key; answers the public half of the new one."""
        return (await self._run(self._ops.rotate_audit_key())).key
