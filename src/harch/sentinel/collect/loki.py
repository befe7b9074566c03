"""How do Promtail, Alloy and others push log lines?

Loki's own protocol, as protobuf in a snappy block and as JSON; stream names are read strictly.
"""

# harch: pure

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

import cramjam
import msgspec
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from harch.base.errors import HarchError
from harch.sentinel.collect.part_limits import check_count, check_parts
from harch.sentinel.collect.pushed import LINES_MAX, METADATA_MAX, Pushed, metadata_of, plain_name
from harch.sentinel.model.labels import Labels, is_plain_label_name, labels
from harch.sentinel.promql.syntax.literals import BadEscape, unquote

# What is a push in protobuf? The message `logproto.PushRequest`, described here field by field.
#
# Lines and labels are declared as bytes, which are the same on the wire: Loki does not insist on UTF-8 either, and one
# odd byte in one line is no reason to refuse all others. Protobuf's own reader checks every length.


_BYTES, _INT64, _INT32, _MESSAGE = 12, 3, 5, 11  # types of fields, as descriptors number them
_ONE, _MANY = 1, 3

_MESSAGES: dict[str, tuple[tuple[int, str, int, int, str], ...]] = {
    "Time": ((1, "seconds", _INT64, _ONE, ""), (2, "nanos", _INT32, _ONE, "")),
    "Pair": ((1, "name", _BYTES, _ONE, ""), (2, "value", _BYTES, _ONE, "")),
    "Entry": (
        (1, "timestamp", _MESSAGE, _ONE, "Time"),
        (2, "line", _BYTES, _ONE, ""),
        (3, "metadata", _MESSAGE, _MANY, "Pair"),
    ),
    "Stream": ((1, "labels", _BYTES, _ONE, ""), (2, "entries", _MESSAGE, _MANY, "Entry")),
    "Push": ((1, "streams", _MESSAGE, _MANY, "Stream"),),
}


@lru_cache(maxsize=1)
def push_type() -> Any:
    """The class of messages."""
    file = descriptor_pb2.FileDescriptorProto(name="harch_loki_push.proto", package="harch.loki", syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for number, field, kind, label, of in fields:
            descriptor = message.field.add(name=field, number=number)
            descriptor.type, descriptor.label = kind, label  # type: ignore[assignment]
            if of:
                descriptor.type_name = f".harch.loki.{of}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("harch.loki.Push"))


# Which stream does `{job="api", site="dakhla"}` name? Read strictly: a guess would file lines under a wrong name.


LABELS_MAX = 1000
TEXT_MAX, _REMEMBERED_MAX = 64 * 1024, 1024
_PAIR = re.compile(
    r"\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"
    r'("(?:[^"\\\n]|\\.)*"|' + r"'(?:[^'\\\n]|\\.)*'|`[^`]*`)\s*"
)


def parse_stream(text: str) -> Labels:
    """The labels of a stream's text. Raises E0681."""
    return _remembered(text) if len(text) <= _REMEMBERED_MAX else _parsed(text)


def _parsed(text: str) -> Labels:
    if len(text) > TEXT_MAX:
        raise _refusal(text, f"it has {len(text)} characters; {TEXT_MAX} are allowed")
    inside = text.strip()
    if not (inside.startswith("{") and inside.endswith("}")):
        raise _refusal(text, "it is not in braces")
    pairs: dict[str, str] = {}
    at, end = 1, len(inside) - 1
    while at < end or not pairs:
        found = _PAIR.match(inside, at, end)
        if found is None:
            if not inside[at:end].strip():
                break  # no labels at all, or a comma at the end, which Prometheus allows
            raise _refusal(text, f'`name="value"` is expected at character {at + 1}')
        name = found[1]
        if name in pairs:
            raise _refusal(text, f"`{name}` occurs twice")
        pairs[name] = _value(text, found[2])
        at = found.end()
        if at < end:
            if inside[at] != ",":
                raise _refusal(text, f"a comma is expected at character {at + 1}")
            at += 1
    return checked_stream(pairs)


_remembered = lru_cache(maxsize=16_384)(_parsed)  # the same streams come with every push


def checked_stream(pairs: Mapping[str, str]) -> Labels:
    """The labels of a stream, if they can name one. Raises E0681."""
    if len(pairs) > LABELS_MAX:
        raise HarchError("E0681", f"a stream with {len(pairs)} labels; {LABELS_MAX} is the maximum")
    for name in pairs:
        if not is_plain_label_name(name):
            raise HarchError("E0681", f"`{name[:80]}` is not a label name: letters, digits and `_`, no digit first")
    stream = labels(pairs)
    if not stream:
        raise HarchError("E0681", "a stream needs at least one label that is not empty")
    return stream


def _value(text: str, quoted: str) -> str:
    try:
        value = unquote(quoted)
        value.encode()  # an escape may name bytes that are no text
    except (BadEscape, UnicodeEncodeError):
        raise _refusal(text, f"{quoted[:80]} has an invalid escape") from None
    return value


def _refusal(text: str, why: str) -> HarchError:
    return HarchError("E0681", f"`{text[:200]}` is not a stream selector: {why}")


# What does a push in protobuf say? It comes as one snappy block, whose size is known before it is unpacked.


_S = 1_000_000_000


def unpacked(body: bytes, bytes_max: int) -> bytes:
    """A snappy block, plain. Raises E0204 before anything large is unpacked, E0680 for what is no such block."""
    size, shift = 0, 0
    for byte in body[:5]:
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    else:
        raise HarchError("E0680", "the body is not a snappy block")
    if size > bytes_max:
        raise HarchError("E0204", f"the body decompresses to {size} bytes; {bytes_max} are allowed")
    try:
        plain = bytes(cramjam.snappy.decompress_raw(body))
    except cramjam.DecompressionError as broken:
        raise HarchError("E0680", "the body is not a snappy block") from broken
    return plain


def read_protobuf(message: bytes) -> Pushed:
    """Raises E0680 for what is no push, E0606 for too many lines; a stream without a proper name is refused alone."""
    check_parts(message, (1, 2), LINES_MAX, "lines")
    push = push_type()()
    try:
        push.ParseFromString(message)
    except DecodeError as broken:
        raise HarchError("E0680", "the body is not a `logproto.PushRequest`") from broken
    check_count(sum(len(stream.entries) for stream in push.streams), LINES_MAX, "lines in one push")
    pushed = Pushed()
    names: dict[bytes, str] = {}
    for stream in push.streams:
        entries = stream.entries
        try:
            named = parse_stream(stream.labels.decode("utf-8", "replace"))
        except HarchError as problem:
            pushed.refuse(len(entries), problem.message)
            continue
        times_ns: list[int] = []
        lines: list[str] = []
        metadata: list[Labels] = []
        for entry in entries:
            at = entry.timestamp
            times_ns.append(at.seconds * _S + at.nanos)
            lines.append(entry.line.decode("utf-8", "replace"))
            more = entry.metadata
            metadata.append(_metadata(more, names) if more else ())
        pushed.add(named, times_ns, lines, metadata)
    return pushed


def _metadata(pairs: Sequence[Any], names: dict[bytes, str]) -> Labels:
    """`names` has those that came before: lines of a push share them."""
    check_count(len(pairs), METADATA_MAX, "metadata entries on one line")
    cleaned: dict[str, str] = {}
    for pair in pairs:
        raw = pair.name
        name = names.get(raw)
        if name is None:
            name = names[raw] = plain_name(raw.decode("utf-8", "replace"))
        cleaned[name] = pair.value.decode("utf-8", "replace")
    cleaned.pop("", None)
    return labels(cleaned)


# What does a push in JSON say? `streams` of today, or `labels` and `entries` as older clients write them.


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
        raise HarchError("E0680", f"the body is not a JSON push: {str(broken)[:200]}") from broken
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
        lines = [value.line for value in values] + [entry.line for entry in stream.entries]
        metadata = [metadata_of(value.metadata) if value.metadata else () for value in values]
        pushed.add(named, times_ns, lines, [*metadata, *([()] * len(stream.entries))])
    return pushed


def _time_ns(written: str | int) -> int:
    """0, which no line may have, for what is no number."""
    if isinstance(written, int):
        return written
    return int(written) if written.isdecimal() and written.isascii() and len(written) <= _DIGITS_MAX else 0


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
