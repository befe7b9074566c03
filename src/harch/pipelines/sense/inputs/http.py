"""How do events come in over HTTP?

POST of JSON, NDJSON, Arrow or ready-made batches; an ASGI application of one path.

202 means that the rows are on their way to the stage, with what was left out and why; 429 that there is no room now,
and nothing of the body was taken; 401 that the source's key was not shown, and nothing of the body was read.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import asdict

from harch.base.clock import Clock
from harch.base.errors import HarchError
from harch.base.rejection import Rejection
from harch.pipelines.listener_keys import check_headers
from harch.pipelines.sense.edge import EdgeBatcher, PreparedBatches
from harch.pipelines.sense.intake import Intake
from harch.pipelines.sense.quarantine import Quarantined
from harch.pipelines.sense.settings import NS_PER_S
from harch.pipelines.wire.header import check_payload, unpack_header
from harch.pipelines.wire.rows import ROWS_MAX, ParsedRows, RowFormat, RowReader

# What does an Arrow stream hold? Record batches as rows; only at the edge, since opening one costs more than a batch.
#
# Columns go by the names of a `RowFormat`. Times are integers in its unit or Arrow timestamps; devices and metrics are
# text. Rows are then judged like any other, so that a bad value costs one row and not the stream.


def read_arrow(body: bytes, reader: RowReader, format: RowFormat) -> ParsedRows | Rejection:
    """The rows of an Arrow IPC stream, or why it is none."""
    arrow = _library()
    try:
        table = arrow.ipc.open_stream(arrow.py_buffer(body)).read_all()
        if table.num_rows > ROWS_MAX:
            return Rejection("body", "too_many", f"{table.num_rows} rows; at most {ROWS_MAX}", "send smaller bodies")
        if format.time in table.column_names:
            table = _with_plain_times(arrow, table, format)
        table.validate(full=True)  # offsets that point outside of a buffer would be read later
        return reader.mappings(_rows(table))  # inside: values are read, and may be found unreadable, row by row
    except (arrow.ArrowException, ValueError, TypeError, KeyError, OverflowError, OSError) as error:
        return Rejection("body", "unreadable", f"not an Arrow IPC stream: {str(error)[:200]}")


def _rows(table: Any) -> Iterator[Mapping[str, object]]:
    for batch in table.to_batches(max_chunksize=4096):
        yield from batch.to_pylist()


def _with_plain_times(arrow: Any, table: Any, format: RowFormat) -> Any:
    """Timestamps as integers of the format's unit, without the detour over datetime, which has no nanoseconds."""
    at = table.column_names.index(format.time)
    column = table.column(at)
    if not arrow.types.is_timestamp(column.type):
        return table
    plain = column.cast(arrow.timestamp(format.time_unit), safe=False).cast(arrow.int64())
    return table.set_column(at, format.time, plain)


def _library() -> Any:
    try:
        import pyarrow
        import pyarrow.ipc
    except ImportError as missing:
        raise HarchError(
            "E0740", "the package `pyarrow` is not installed", hint="pip install 'harch[pipelines]'"
        ) from missing
    return pyarrow


BATCH_TYPE = "application/vnd.harch.batch"
ARROW_TYPE = "application/vnd.apache.arrow.stream"
NDJSON_TYPES = ("application/x-ndjson", "application/ndjson", "application/jsonl")
RETRY_AFTER_S = 1
_EXAMPLES_MAX = 10

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class _Left(Struct, frozen=True):
    reason: str
    detail: str
    row: str


class _Taken(Struct, frozen=True, kw_only=True):
    accepted: int
    rejected: int
    reasons: dict[str, int]
    examples: list[_Left]


class HttpInput:
    """The application. Whoever serves it decides on port and TLS; requests are taken from whoever shows the key."""

    def __init__(
        self,
        edge: EdgeBatcher,
        reader: RowReader,
        format: RowFormat,
        intake: Intake,
        clock: Clock,
        *,
        body_bytes_max: int,
        key_sha256: str,
    ) -> None:
        self._edge = edge
        self._reader = reader
        self._format = format
        self._intake = intake
        self._clock = clock
        self._body_bytes_max = body_bytes_max
        self._key_sha256 = key_sha256

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
            return
        if scope["type"] != "http":
            return
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        try:
            status, answer = 202, asdict(await self._post(scope, headers, receive))
        except HarchError as error:
            status = error.kind.status
            answer = {"code": error.code, "message": error.message, "hint": error.hint, **error.meta}
        extra = [(b"retry-after", str(RETRY_AFTER_S).encode())] if status == 429 else []
        extra += [(b"www-authenticate", b"Bearer")] if status == 401 else []
        body = msgspec.json.encode(answer)
        start = {"type": "http.response.start", "status": status}
        await send({**start, "headers": [(b"content-type", b"application/json"), *extra]})
        await send({"type": "http.response.body", "body": body})

    async def _post(self, scope: Scope, headers: Mapping[str, str], receive: Receive) -> _Taken:
        self._check_key(headers)
        if scope["path"] != "/v1/events":
            raise HarchError("E0207", f"`{scope['path'][:100]}` is not a path of this source", hint="POST /v1/events")
        if scope["method"] != "POST":
            raise HarchError("E0208", f"{scope['method']} is not allowed", hint="POST /v1/events")
        body = await self._body(headers, receive)
        kind = headers.get("content-type", "application/json").partition(";")[0].strip().lower()
        if kind == BATCH_TYPE:
            return self._batch(body)
        now_ns = round(self._clock.now().timestamp() * NS_PER_S)
        prepared = self._edge.prepare(self._rows(kind, body), now_ns)
        if not self._intake.try_put(prepared.messages):
            raise self._full()
        self._edge.commit(prepared, self._intake.quarantine)
        return _answer(prepared)

    def _check_key(self, headers: Mapping[str, str]) -> None:
        try:
            check_headers(headers, self._key_sha256)
        except HarchError as error:
            self._intake.quarantine.add(Quarantined("unauthorised", error.message, self._edge.source))
            raise

    def _rows(self, kind: str, body: bytes) -> ParsedRows:
        if kind in NDJSON_TYPES:
            return self._reader.ndjson(body)
        if kind == "application/json":
            return self._reader.json(body)
        if kind != ARROW_TYPE:
            hint = f"application/json, {NDJSON_TYPES[0]}, {ARROW_TYPE} or {BATCH_TYPE}"
            raise HarchError("E0202", f"bodies of type `{kind[:60]}` are not supported", hint=hint)
        rows = read_arrow(body, self._reader, self._format)
        if isinstance(rows, Rejection):
            raise HarchError("E0202", rows.detail, hint=rows.nearest_fix or "send an Arrow IPC stream")
        return rows

    def _batch(self, body: bytes) -> _Taken:
        """A message of the wire format goes on as it is; the stage judges it again."""
        header = unpack_header(body)
        if isinstance(header, Rejection):
            raise HarchError("E0202", f"not a batch: {header.detail}", hint=header.nearest_fix)
        if isinstance(damaged := check_payload(header, body), Rejection):
            raise HarchError("E0202", f"not a batch: {damaged.detail}", hint="send it again")
        if not self._intake.try_put((body,)):
            raise self._full()
        return _Taken(accepted=header.n, rejected=0, reasons={}, examples=[])

    async def _body(self, headers: Mapping[str, str], receive: Receive) -> bytes:
        announced = headers.get("content-length", "0")
        is_number = announced.isascii() and announced.isdigit() and len(announced) <= 18
        if is_number and int(announced) > self._body_bytes_max:  # anything else is found out while it is read
            raise self._too_large(int(announced))
        parts, size, more = [], 0, True
        while more:
            part = await receive()
            if part["type"] == "http.disconnect":
                raise HarchError("E0202", "the body ended early")
            parts.append(part.get("body", b""))
            size += len(parts[-1])
            if size > self._body_bytes_max:
                raise self._too_large(size)
            more = part.get("more_body", False)
        return b"".join(parts)

    def _too_large(self, size: int) -> HarchError:
        hint = f"send at most {self._body_bytes_max} bytes at once"
        return HarchError("E0204", f"a body of {size} bytes or more", hint=hint)

    def _full(self) -> HarchError:
        return HarchError(
            "E0742", "the stage is behind; nothing of this body was accepted", hint="try again in a second"
        )


def _answer(prepared: PreparedBatches) -> _Taken:
    reasons: dict[str, int] = {}
    for example, count in prepared.aside:
        reasons[example.reason] = reasons.get(example.reason, 0) + count
    examples = [_Left(example.reason, example.detail, example.excerpt) for example, _ in prepared.aside[:_EXAMPLES_MAX]]
    return _Taken(accepted=prepared.events, rejected=sum(reasons.values()), reasons=reasons, examples=examples)


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
