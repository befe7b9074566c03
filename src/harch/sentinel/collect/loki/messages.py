"""What is a push in protobuf? The message `logproto.PushRequest`, described here field by field.

Lines and labels are declared as bytes, which are the same on the wire: Loki does not insist on UTF-8 either, and one
odd byte in one line is no reason to refuse all others. Protobuf's own reader checks every length.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

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
            told = message.field.add(name=field, number=number)
            told.type, told.label = kind, label  # type: ignore[assignment]
            if of:
                told.type_name = f".harch.loki.{of}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("harch.loki.Push"))
