"""Bodies of pushes, in the shapes that Promtail, Alloy and the Grafana agent send them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import cramjam

from harch.sentinel.collect.loki import push_type

Line = tuple[int, str | bytes, Mapping[str, str]]  # nanoseconds, text, metadata


def protobuf(streams: Mapping[str, Sequence[Line]]) -> bytes:
    push = push_type()()
    for labels, lines in streams.items():
        stream = push.streams.add(labels=labels.encode())
        for time_ns, text, metadata in lines:
            entry = stream.entries.add(line=text if isinstance(text, bytes) else text.encode())
            entry.timestamp.seconds, entry.timestamp.nanos = divmod(time_ns, 10**9)
            for name, value in metadata.items():
                entry.metadata.add(name=name.encode(), value=value.encode())
    message: bytes = push.SerializeToString()
    return message


def packed(message: bytes) -> bytes:
    return bytes(cramjam.snappy.compress_raw(message))


# Recorded byte by byte from the protocol's description, not made by the code under test: one stream
# `{job="varlogs", filename="/var/log/messages"}` with one line at 1700000000.000000042 s, with the stream's hash
# (field 3), which Promtail sends and nobody reads.
_LABELS = b'{filename="/var/log/messages", job="varlogs"}'
_TIME = bytes((0x0A, 8, 0x08, 0x80, 0xE2, 0xCF, 0xAA, 0x06, 0x10, 0x2A))
_ENTRY = _TIME + bytes((0x12, 5)) + b"hello"
_STREAM = bytes((0x0A, len(_LABELS))) + _LABELS + bytes((0x12, len(_ENTRY))) + _ENTRY + bytes((0x18, 0x7B))
PROMTAIL = bytes((0x0A, len(_STREAM))) + _STREAM
