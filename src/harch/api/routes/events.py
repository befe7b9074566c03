"""What has happened, and what happens now? The hub's history as pages of JSON or as server-sent events."""

from __future__ import annotations

from typing import Annotated

import msgspec
from fastapi import APIRouter, Header, Query
from msgspec import Struct
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from harch.api.access import tenant_scope
from harch.api.dialects.pages import page_of
from harch.api.limits import EVENTS_PER_PAGE_MAX
from harch.api.routes.context import Here, RouteContext, Viewer, reply
from harch.api.schema import answers
from harch.base.errors import HarchError
from harch.base.http.streams import ResponseStream, StreamEnded, StreamKind, StreamStalled
from harch.base.integers import INT64_MAX, read_natural
from harch.wire.events import EventPage, EventRecord

router = APIRouter(tags=["events"])

EVENTS_PER_READ = 256
COALESCE_S = 0.02  # a busy hub writes thousands of events per second: one read serves all of the last moment

_encode = msgspec.json.Encoder().encode


class EventFilter(Struct, frozen=True, kw_only=True):
    tenant: str | None
    subject: str | None
    kind: str | None


@router.get("/events", responses=answers(EventPage), summary="The hub's history: server-sent events, or JSON pages")
async def events(
    caller: Viewer,
    here: Here,
    after: Annotated[int | None, Query(ge=0, le=INT64_MAX, description="Only events with a greater `seq`.")] = None,
    subject: str | None = None,
    kind: str | None = None,
    limit: Annotated[int, Query(ge=1, le=EVENTS_PER_PAGE_MAX)] = 100,
    accept: Annotated[str, Header()] = "",
    last_event_id: Annotated[str, Header()] = "",
) -> Response:
    """`Accept: application/json` answers one page (the newest events, or those after `after`).

    Anything else gets a stream: from now on, or from `after` or `Last-Event-ID` on, whichever is later. `subject` is an
    id or a name; an unknown one is an error.
    """
    scope = tenant_scope(caller)
    if subject is not None:
        subject = await here.hub.references.subject(subject, tenant=scope)
    wanted = EventFilter(tenant=scope, subject=subject, kind=kind)
    if "application/json" in accept and "text/event-stream" not in accept:
        return reply(await _page(here, wanted, after, limit))
    return EventStreamResponse(here, wanted, after=_start(here, after, last_event_id))


async def _page(here: RouteContext, wanted: EventFilter, after: int | None, limit: int) -> EventPage:
    last = here.hub.last_event()
    start = max(0, last - limit) if after is None else after
    found = await _read(here, wanted, start, limit)
    page = page_of(found, total=len(found), page=1, per_page=limit)
    next_after = found[-1].seq if len(found) == limit else max(start, last, found[-1].seq if found else 0)
    remark = ""
    if not found and wanted.kind is not None:
        ever = await here.hub.events(after=0, limit=1, tenant=wanted.tenant, subject=None, kind=wanted.kind)
        remark = "" if ever else f"no event of kind `{wanted.kind[:64]}` is in this hub's history"
    return EventPage(
        items=found,
        total=page.total,
        pagination=page.pagination,
        next_after=next_after,
        last_seq=last,
        remark=remark,
    )


def _start(here: RouteContext, after: int | None, last_event_id: str) -> int:
    seen = read_natural(last_event_id or "0")
    if seen is None:
        raise HarchError("E0201", "Last-Event-ID is not a number", hint="send the `id` of the last event seen")
    last = here.hub.last_event()
    if after is None and not last_event_id:
        return last
    # A client that remembers more than the hub has met another history: it goes on from what there is.
    return min(last, max(after or 0, seen))


async def _read(here: RouteContext, wanted: EventFilter, after: int, limit: int) -> list[EventRecord]:
    return await here.hub.events(
        after=after, limit=limit, tenant=wanted.tenant, subject=wanted.subject, kind=wanted.kind
    )


class EventStreamResponse(Response):
    """Server-sent events with bare LF, as one of the public clients splits on nothing else."""

    def __init__(self, here: RouteContext, wanted: EventFilter, *, after: int) -> None:
        super().__init__()
        self._here = here
        self._wanted = wanted
        self._after = after

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-store")]
        async with self._here.streams.open(StreamKind.EVENTS, scope, receive, send) as stream:
            await stream.start(headers)
            try:
                await stream.write(b": connected\n\n")
                await self._follow(stream)
            except StreamStalled:
                return
            except StreamEnded:
                await stream.finish()

    async def _follow(self, stream: ResponseStream) -> None:
        here, clock = self._here, self._here.clock
        written_s = clock.monotonic_s()
        while True:
            last = here.hub.last_event()
            found = await _read(here, self._wanted, self._after, EVENTS_PER_READ)
            if found:
                await stream.write(b"".join(map(_sse, found)))
                written_s = clock.monotonic_s()
            if len(found) == EVENTS_PER_READ:
                self._after = found[-1].seq
                continue
            # Events that the filter hides are passed over, or the next wait would return at once forever.
            self._after = max(self._after, last, found[-1].seq if found else 0)
            quiet_s = clock.monotonic_s() - written_s
            if quiet_s >= here.limits.heartbeat_s:
                await stream.write(b": heartbeat\n\n")
                written_s, quiet_s = clock.monotonic_s(), 0.0
            await stream.wait(here.hub.wait_for_event(self._after, here.limits.heartbeat_s - quiet_s))
            await stream.wait(clock.sleep(COALESCE_S))


def _sse(record: EventRecord) -> bytes:
    return b"id: %d\nevent: %b\ndata: %b\n\n" % (record.seq, record.kind.encode(), _encode(record))
