"""How are the labels of a series written as bytes? As remote-write v1 has them, sorted, so that most need no change."""

from __future__ import annotations

from collections.abc import Iterable

from harch.base.errors import HarchError
from harch.sentinel.model.labels import METRIC_NAME, Labels
from harch.sentinel.store.limits import Limits

_LABEL, _NAME, _VALUE = 0x0A, 0x0A, 0x12


class Refusal(HarchError):
    """Why one series cannot be taken, while others of the same request can."""


def encode_labels(labels: Iterable[tuple[str, str]]) -> bytes:
    """The bytes of labels that are sorted and valid already."""
    out = bytearray()
    for name, value in labels:
        put_label(out, name.encode(), value.encode())
    return bytes(out)


def put_label(out: bytearray, name: bytes, value: bytes) -> None:
    name_head, value_head = _head(_NAME, len(name)), _head(_VALUE, len(value))
    out += _head(_LABEL, len(name_head) + len(name) + len(value_head) + len(value))
    out += name_head
    out += name
    out += value_head
    out += value


def decode_labels(data: bytes) -> Labels:
    """Labels of bytes that `encode_labels` wrote."""
    return tuple((name.decode(), value.decode()) for name, value in _pairs(data))


def read_labels(data: bytes, limits: Limits) -> Labels:
    """Labels as a stranger wrote them: any order, any legal protobuf. Raises a Refusal with the reason."""
    found: dict[str, str] = {}
    for raw_name, raw_value in _pairs(data):
        if len(raw_name) > limits.label_name_bytes_max or len(raw_value) > limits.label_value_bytes_max:
            raise Refusal("E0607", f"label `{_shown(raw_name)}`: name {len(raw_name)}, value {len(raw_value)} bytes")
        try:
            name, value = raw_name.decode(), raw_value.decode()
        except UnicodeDecodeError as broken:
            raise Refusal("E0607", f"label `{_shown(raw_name)}` is not UTF-8") from broken
        if name in found:
            raise Refusal("E0607", f"label `{name}` is there twice")
        if not name:
            raise Refusal("E0607", "a label has no name")
        found[name] = value
    return check_labels(found.items(), limits)


def check_labels(pairs: Iterable[tuple[str, str]], limits: Limits) -> Labels:
    """Sorted, without empty values; refused where there are too many, or no metric name."""
    kept = tuple(sorted((name, value) for name, value in pairs if value))
    if len(kept) > limits.labels_per_series_max:
        raise Refusal("E0607", f"{len(kept)} labels; {limits.labels_per_series_max} are allowed")
    if not any(name == METRIC_NAME for name, _ in kept):
        raise Refusal("E0607", "a series has no metric name")
    return kept


def check_given(labels: Labels, limits: Limits) -> bytes:
    """The bytes of labels that come as text, from scrapes and rules. Raises a Refusal with the reason."""
    if len({name for name, _ in labels}) != len(labels):
        raise Refusal("E0607", "a label is there twice")
    kept = check_labels(labels, limits)
    out = bytearray()
    for name, value in kept:
        try:
            raw_name, raw_value = name.encode(), value.encode()
        except UnicodeEncodeError as broken:
            raise Refusal("E0607", "a label is not UTF-8") from broken
        if not name or len(raw_name) > limits.label_name_bytes_max or len(raw_value) > limits.label_value_bytes_max:
            raise Refusal("E0607", f"label `{_shown(raw_name)}`: name {len(raw_name)}, value {len(raw_value)} bytes")
        put_label(out, raw_name, raw_value)
    return bytes(out)


def _pairs(data: bytes) -> list[tuple[bytes, bytes]]:
    pairs = []
    offset, size = 0, len(data)
    while offset < size:
        if data[offset] != _LABEL:
            raise Refusal("E0605", "labels of a series are not where they should be")
        offset, end = _span(data, offset + 1, size)
        name = value = b""
        while offset < end:
            tag = data[offset]
            if tag in (_NAME, _VALUE):
                start, offset = _span(data, offset + 1, end)
                if tag == _NAME:
                    name = data[start:offset]
                else:
                    value = data[start:offset]
            else:
                offset = _skipped(data, offset, end)
        pairs.append((name, value))
    return pairs


def _span(data: bytes, offset: int, end: int) -> tuple[int, int]:
    length, start = _varint(data, offset, end)
    if length > end - start:
        raise Refusal("E0605", "a label reaches beyond its series")
    return start, start + length


def _varint(data: bytes, offset: int, end: int) -> tuple[int, int]:
    value = 0
    for step in range(10):
        if offset + step >= end:
            break
        byte = data[offset + step]
        value |= (byte & 0x7F) << (7 * step)
        if byte < 0x80:
            return value, offset + step + 1
    raise Refusal("E0605", "a number in a label does not end")


def _skipped(data: bytes, offset: int, end: int) -> int:
    tag, offset = _varint(data, offset, end)
    match tag & 7:
        case 0:
            return _varint(data, offset, end)[1]
        case 1 if end - offset >= 8:
            return offset + 8
        case 2:
            return _span(data, offset, end)[1]
        case 5 if end - offset >= 4:
            return offset + 4
    raise Refusal("E0605", "a label has a field that does not exist")


def _head(tag: int, length: int) -> bytes:
    if length < 0x80:
        return bytes((tag, length))
    out = [tag]
    while length >= 0x80:
        out.append(length & 0x7F | 0x80)
        length >>= 7
    out.append(length)
    return bytes(out)


def _shown(name: bytes) -> str:
    return name[:64].decode(errors="replace")
