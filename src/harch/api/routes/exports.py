"""How does a whole chain leave the hub? Line by line, with an end that shows that nothing is missing."""

from __future__ import annotations

from typing import Protocol

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from harch.api.limits import AUDIT_LINES_PER_READ
from harch.api.routes.context import RouteContext
from harch.base.http.streams import ResponseStream, StreamEnded, StreamKind

_NDJSON = b"application/x-ndjson"


class ReadLines(Protocol):
    async def __call__(self, *, after: int, upto: int, limit: int) -> list[tuple[int, bytes]]:
        """Lines after that number, with their numbers; none at the end."""
        ...


class LineExport(Response):
    """The lines up to a number, then `closing`. Breaks off without a proper end if the hub stops first, so that nobody
    takes a part for the whole."""

    def __init__(self, here: RouteContext, read: ReadLines, *, upto: int, closing: bytes = b"") -> None:
        super().__init__()
        self._here, self._read, self._upto, self._closing = here, read, upto, closing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._here.streams.open(StreamKind.EXPORTS, scope, receive, send) as stream:
            await stream.start([(b"content-type", _NDJSON), (b"cache-control", b"no-store")])
            try:
                await self._write(stream)
            except StreamEnded:
                return
            await stream.finish()

    async def _write(self, stream: ResponseStream) -> None:
        after = 0
        while found := await self._read(after=after, upto=self._upto, limit=AUDIT_LINES_PER_READ):
            await stream.write(b"".join(line for _, line in found))
            after = found[-1][0]
        if self._closing:
            await stream.write(self._closing)
