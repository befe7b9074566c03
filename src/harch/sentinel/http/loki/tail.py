"""How are logs followed? `/loki/api/v1/tail` over a WebSocket: the last lines, then new ones as they are stored."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

from harch.base.clock import Clock, epoch_ms
from harch.base.errors import HarchError
from harch.base.http.streams import NoRoom, Slots
from harch.sentinel.http.loki.messages import (
    HOUR_NS,
    NS,
    duration_of,
    limit_of,
    now_ns,
    streams_of,
    time_ns,
    wants_categories,
)
from harch.sentinel.http.messages import HttpReply, TelemetryRequest, to_json
from harch.sentinel.http.routing import HttpRoute, Socket, SocketGone, SocketRoute, WorkClass
from harch.sentinel.http.tenants import LogTenants
from harch.sentinel.logql.evaluate.context import LogQueryOptions
from harch.sentinel.logql.evaluate.engine import LogqlEngine
from harch.sentinel.logql.evaluate.lines import DroppedLines, LineWindow, LogEntry, TailBuffer, tailed_entries
from harch.sentinel.logql.syntax.nodes import LogQuery
from harch.sentinel.model.logs import LineOrder, LogStore

TAILS_MAX = 32
FOLLOWED_S_MAX = 3600.0
DELAY_NS_MAX = 5 * NS
LINES_A_MESSAGE = 1_000
_PATH = "/loki/api/v1/tail"
OVERLAP_S = 5.0  # how long a line that was sent as past may still be sent as new


class LokiTail:
    """Connections that follow logs, at most `TAILS_MAX` at once. No tenant can take all of them."""

    def __init__(self, tenants: LogTenants, engine: LogqlEngine, clock: Clock) -> None:
        self._tenants = tenants
        self._engine = engine
        self._clock = clock
        self._slots = Slots(TAILS_MAX)

    def routes(self) -> list[HttpRoute]:
        return [HttpRoute(("GET",), _PATH, self.not_a_socket, WorkClass.QUICK)]

    def not_a_socket(self, *_: object) -> HttpReply:
        raise HarchError("E0201", "tailing lines requires a WebSocket", hint="connect with ws:// instead of http://")

    def sockets(self) -> list[SocketRoute]:
        return [SocketRoute(_PATH, self.tail)]

    async def tail(self, request: TelemetryRequest, socket: Socket) -> None:
        """Until the reader leaves. Raises HarchError for what is wrong before anything was sent."""
        if refused := self._slots.take(request.tenant):
            message = f"{TAILS_MAX} connections are already tailing logs"
            if refused is NoRoom.OWN_SHARE:
                message = "this tenant has reached its share of log tails"
            raise HarchError("E0688", message, retry_after_s=5)
        try:
            await self._followed(request, socket)
        finally:
            self._slots.leave(request.tenant)

    async def _followed(self, request: TelemetryRequest, socket: Socket) -> None:
        query = self._engine.tree(request.needed("query"))
        if not isinstance(query, LogQuery):
            raise HarchError("E0689", "only lines can be tailed", hint="use query_range for metric queries")
        delay_ns = duration_of(request, "delay_for", 0)
        if delay_ns > DELAY_NS_MAX:
            raise HarchError("E0201", "`delay_for` must be at most 5 s", field="delay_for")
        limit = limit_of(request, self._engine.options.limits.entries_default)
        start_ns = time_ns(request, "start", now_ns(request) - HOUR_NS)
        store = await asyncio.to_thread(self._tenants.logs, request.tenant)
        follower = _Follower(query, store, self._engine, self._clock, socket, categorized=wants_categories(request))
        await follower.run(start_ns, limit, delay_ns / NS)


class _Follower:
    """One connection."""

    def __init__(
        self,
        query: LogQuery,
        store: LogStore,
        engine: LogqlEngine,
        clock: Clock,
        socket: Socket,
        *,
        categorized: bool,
    ) -> None:
        self._query = query
        self._store = store
        self._engine = engine
        self._clock = clock
        self._socket = socket
        self._categorized = categorized
        self._loop = asyncio.get_running_loop()
        self._woken = asyncio.Event()
        self._buffer = TailBuffer(query.matchers, self._wake)

    def _wake(self) -> None:
        """Called by writers in their threads; a loop that has ended needs no waking."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._woken.set)

    async def run(self, start_ns: int, limit: int, delay_s: float) -> None:
        # Listening begins before the past is read: no line can fall between the two, and those in both are sent once.
        stop = self._store.watch(self._buffer.receive)
        try:
            past = await asyncio.to_thread(self._past, start_ns, limit)
            await self._socket.accept()
            following = asyncio.create_task(self._follow(past, delay_s))
            left = asyncio.create_task(self._socket.left())
            try:
                # A key is asked for when a connection opens; so that it stays a key, no connection is open forever.
                await asyncio.wait({following, left}, timeout=FOLLOWED_S_MAX, return_when=asyncio.FIRST_COMPLETED)
                if following.done():
                    following.result()
            finally:
                for task in (following, left):
                    task.cancel()
                    with contextlib.suppress(asyncio.CancelledError, SocketGone):
                        await task
        except SocketGone:
            return
        finally:
            stop()

    def _past(self, start_ns: int, limit: int) -> list[LogEntry]:
        """The newest lines since the start, oldest first."""
        end_ns = self._now_ns() + HOUR_NS  # clocks of senders may be ahead
        window = LineWindow(start_ns, max(end_ns, start_ns), LineOrder.NEWEST_FIRST, limit)
        answer = self._engine.lines(self._query, window, self._store, self._now_ns(), LogQueryOptions())
        return answer.value[::-1] if isinstance(answer.value, list) else []

    def _now_ns(self) -> int:
        return epoch_ms(self._clock.now()) * 1_000_000

    async def _follow(self, past: list[LogEntry], delay_s: float) -> None:
        if past:
            await self._send(past, DroppedLines())
        known, overlap_until_s = set(past), self._clock.monotonic_s() + OVERLAP_S
        while True:
            await self._woken.wait()
            if delay_s:
                await self._clock.sleep(delay_s)
            self._woken.clear()
            batches, dropped = self._buffer.take()
            entries = await asyncio.to_thread(tailed_entries, self._query, batches, self._now_ns())
            if known:  # what was stored while the past was read is in both
                entries = [entry for entry in entries if entry not in known]
                known = known if self._clock.monotonic_s() < overlap_until_s else set()
            if entries or dropped.count:
                await self._send(entries, dropped)

    async def _send(self, entries: Sequence[LogEntry], dropped: DroppedLines) -> None:
        for begin in range(0, max(len(entries), 1), LINES_A_MESSAGE):
            part = entries[begin : begin + LINES_A_MESSAGE]
            message: dict[str, object] = {"streams": streams_of(part, categorized=self._categorized)}
            if dropped.count and begin == 0:
                message["dropped_entries"] = [
                    {"labels": dict(labels), "timestamp": str(time_ns)} for labels, time_ns in dropped.listed
                ]
                message["dropped_count"] = dropped.count
            if self._categorized:
                message["encodingFlags"] = ["categorize-labels"]
            await self._socket.write(to_json(message))
