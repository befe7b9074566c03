"""How do lines become a push? Loki's protobuf by hand: an agent has no room for a library that writes messages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from harch.sentinel.model.labels import Labels
from harch.sentinel.own_logs.line import Line

_S = 1_000_000_000
_SMALL = tuple(bytes((value,)) for value in range(0x80))


def push_body(streams: Iterable[tuple[Labels, Sequence[Line]]]) -> bytes:
    """The message, not yet packed."""
    return b"".join(_field(0x0A, _stream(labels, lines)) for labels, lines in streams if lines)


def stream_text(labels: Labels) -> str:
    return "{" + ", ".join(f'{name}="{_escaped(value)}"' for name, value in labels) + "}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _stream(labels: Labels, lines: Sequence[Line]) -> bytes:
    pieces = [_field(0x0A, stream_text(labels).encode())]
    known: dict[Labels, bytes] = {}  # the same metadata stands with many lines
    for time_ns, text, metadata in lines:
        more = known.get(metadata)
        if more is None:
            more = known[metadata] = b"".join(_field(0x1A, _pair(name, value)) for name, value in metadata)
        seconds, nanos = divmod(time_ns, _S)
        time = b"\x08" + varint(seconds) + b"\x10" + varint(nanos)
        raw = text.encode()
        entry = b"\x0a%c%b\x12%b%b%b" % (len(time), time, varint(len(raw)), raw, more)
        pieces += (b"\x12", varint(len(entry)), entry)
    return b"".join(pieces)


def _pair(name: str, value: str) -> bytes:
    return _field(0x0A, name.encode()) + _field(0x12, value.encode())


def _field(tag: int, content: bytes) -> bytes:
    return bytes((tag,)) + varint(len(content)) + content


def varint(value: int) -> bytes:
    if value < 0x80:
        return _SMALL[value]
    if value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    return bytes((value & 0x7F | 0x80,)) + varint(value >> 7)
