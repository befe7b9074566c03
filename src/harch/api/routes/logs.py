"""What does a task print? Its output as plain text, a page at a time or as it comes."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

from harch.api.access import tenant_scope
from harch.api.limits import LOG_BYTES_PER_PAGE
from harch.api.routes.context import Here, Offset, RouteContext, Viewer
from harch.base.http.streams import ResponseStream, StreamEnded, StreamKind
from harch.base.integers import INT32_MAX
from harch.hub.views import LogPage

router = APIRouter(tags=["workloads"])

_TEXT = "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True)
class LogSource:
    """One task's output at one hub."""

    here: RouteContext
    ref: str
    tenant: str | None
    rank: int
    attempt: int | None
    since: datetime | None
    preparation: bool = False

    async def read(self, offset: int) -> LogPage:
        return await self.here.hub.read_log(
            self.ref,
            tenant=self.tenant,
            rank=self.rank,
            attempt=self.attempt,
            offset=offset,
            bytes_max=LOG_BYTES_PER_PAGE,
            since_s=None if self.since is None else self.since.timestamp(),
            preparation=self.preparation,
        )


@router.get("/workloads/{ref}/logs", response_class=PlainTextResponse, summary="The output of one task")
async def logs(
    ref: str,
    caller: Viewer,
    here: Here,
    rank: Annotated[int, Query(ge=0, le=INT32_MAX)] = 0,
    attempt: Annotated[int | None, Query(ge=0, le=INT32_MAX, description="The newest if absent.")] = None,
    offset: Offset = 0,
    since: Annotated[
        datetime | None, Query(description="Not what was written before; UTC if it has no time zone.")
    ] = None,
    follow: bool = False,
    preparation: Annotated[
        bool, Query(description="What was fetched and built before it started, instead of its output.")
    ] = False,
) -> Response:
    """`X-Log-Offset` and `X-Log-Next-Offset` are the start and end of the page, `X-Log-Eof` whether more may come.

    With `since` the page starts at what was written at that time, by the clock of the node and to the second.
    With `follow` the answer continues until the task has ended. If the hub stops first, the answer breaks off
    without a proper end, so that no client takes it for the whole output.
    """
    if since is not None and since.tzinfo is None:
        since = since.replace(tzinfo=UTC)
    source = LogSource(here, ref, tenant_scope(caller), rank, attempt, since, preparation)
    first = await source.read(offset)
    return FollowedLog(source, first) if follow else Response(first.data, headers=_headers(first))


class FollowedLog(Response):
    def __init__(self, source: LogSource, first: LogPage) -> None:
        super().__init__()
        self._source = source
        self._first = first

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(name.encode(), value.encode()) for name, value in _headers(self._first).items()]
        async with self._source.here.streams.open(StreamKind.LOGS, scope, receive, send) as stream:
            await stream.start(headers)
            try:
                await self._follow(stream)
            except StreamEnded:
                return
            await stream.finish()

    async def _follow(self, stream: ResponseStream) -> None:
        here, page = self._source.here, self._first
        while True:
            if page.data:
                await stream.write(page.data)
            if page.eof:
                return
            if not page.data:
                await stream.wait(here.clock.sleep(here.limits.log_poll_s))
            page = await self._source.read(page.next_offset)


def _headers(page: LogPage) -> dict[str, str]:
    return {
        "content-type": _TEXT,
        "x-log-offset": str(page.offset),
        "x-log-next-offset": str(page.next_offset),
        "x-log-eof": "true" if page.eof else "false",
    }
