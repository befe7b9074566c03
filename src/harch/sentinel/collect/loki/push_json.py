"""What does a push in JSON say? `streams` of today, or `labels` and `entries` as older clients write them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec

from harch.base.errors import HarchError
from harch.sentinel.collect.loki.pushed import LINES_MAX, Pushed, metadata_of
from harch.sentinel.collect.loki.stream_text import checked_stream, parse_stream
from harch.sentinel.collect.parts import check_count

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DIGITS_MAX = 20


class _Value(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """`["1700000000000000000", "a line", {"trace_id": "…"}]`."""

    time_ns: str | int
    line: str
    metadata: dict[str, str] | None = None


class _Entry(msgspec.Struct):
    ts: str
    line: str


class _Stream(msgspec.Struct):
    stream: dict[str, str] | None = None
    values: list[_Value] = []
    labels: str | None = None  # of older clients
    entries: list[_Entry] = []


class _Push(msgspec.Struct):
    streams: list[_Stream]


_decode = msgspec.json.Decoder(_Push).decode


def read_json(body: bytes) -> Pushed:
    """Raises E0680 for what is no push, E0606 for too many lines; streams and lines that cannot be taken are refused
    alone."""
    try:
        push = _decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as broken:
        raise HarchError("E0680", f"the body is no push in JSON: {str(broken)[:200]}") from broken
    check_count(sum(len(one.values) + len(one.entries) for one in push.streams), LINES_MAX, "lines in one push")
    pushed = Pushed()
    for stream in push.streams:
        try:
            named = parse_stream(stream.labels) if stream.labels is not None else checked_stream(stream.stream or {})
        except HarchError as problem:
            pushed.refuse(len(stream.values) + len(stream.entries), problem.message)
            continue
        values = stream.values
        times_ns = [_time_ns(value.time_ns) for value in values] + [_rfc3339_ns(entry.ts) for entry in stream.entries]
        texts = [value.line for value in values] + [entry.line for entry in stream.entries]
        metadata = [metadata_of(value.metadata) if value.metadata else () for value in values]
        pushed.add(named, times_ns, texts, [*metadata, *([()] * len(stream.entries))])
    return pushed


def _time_ns(told: str | int) -> int:
    """0, which no line may have, for what is no number."""
    if isinstance(told, int):
        return told
    return int(told) if told.isdecimal() and told.isascii() and len(told) <= _DIGITS_MAX else 0


def _rfc3339_ns(text: str) -> int:
    """Nine digits behind the point count; `datetime` would forget three of them."""
    whole, point, rest = text.partition(".")
    digits = rest[: len(rest) - len(rest.lstrip("0123456789"))] if point else ""
    try:
        moment = datetime.fromisoformat(whole + rest[len(digits) :])
        since = moment - _EPOCH  # TypeError without a time zone
    except (ValueError, TypeError, OverflowError):
        return 0
    return (since // timedelta(seconds=1)) * 1_000_000_000 + int(digits[:9].ljust(9, "0") or 0)
