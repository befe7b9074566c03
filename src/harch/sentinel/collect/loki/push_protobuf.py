"""What does a push in protobuf say? It comes as one snappy block, whose size is known before it is unpacked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import cramjam
from google.protobuf.message import DecodeError

from harch.base.errors import HarchError
from harch.sentinel.collect.loki.messages import push_type
from harch.sentinel.collect.loki.pushed import LINES_MAX, METADATA_MAX, Pushed, plain_name
from harch.sentinel.collect.loki.stream_text import parse_stream
from harch.sentinel.collect.parts import check_count, check_parts
from harch.sentinel.model.labels import Labels, labels

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
        raise HarchError("E0204", f"the body unpacks to {size} bytes; {bytes_max} are allowed")
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
        raise HarchError("E0680", "the body is no `logproto.PushRequest`") from broken
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
        texts: list[str] = []
        metadata: list[Labels] = []
        for entry in entries:
            at = entry.timestamp
            times_ns.append(at.seconds * _S + at.nanos)
            texts.append(entry.line.decode("utf-8", "replace"))
            more = entry.metadata
            metadata.append(_metadata(more, names) if more else ())
        pushed.add(named, times_ns, texts, metadata)
    return pushed


def _metadata(pairs: Sequence[Any], names: dict[bytes, str]) -> Labels:
    """`names` has those that came before: lines of a push share them."""
    check_count(len(pairs), METADATA_MAX, "pieces of metadata of one line")
    told: dict[str, str] = {}
    for pair in pairs:
        raw = pair.name
        name = names.get(raw)
        if name is None:
            name = names[raw] = plain_name(raw.decode("utf-8", "replace"))
        told[name] = pair.value.decode("utf-8", "replace")
    told.pop("", None)
    return labels(told)
