"""How do features come to THINK, and what does it hand over?

Outputs with the version that made them, answers, and rows that got none: as values in one process, or as messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from harch.base.errors import HarchError, InvariantBroken
from harch.base.rejection import Rejection
from harch.pipelines.sense.features import FeatureBatch
from harch.pipelines.think.models import VersionRef
from harch.pipelines.think.sessions import Array, Features
from harch.pipelines.think.settings import PRIORITY_DEFAULT
from harch.pipelines.wire.columns import Columns, EventSchema, decode_columns
from harch.pipelines.wire.header import (
    HEADER_BYTES,
    BatchHeader,
    BatchLane,
    Buffer,
    check_payload,
    pack_batch,
    unpack_header,
)


class Scored(Struct, frozen=True, kw_only=True, eq=False):
    """Outputs of one version for some rows of a feature batch; `rows` are their places in it."""

    ref: VersionRef
    source: Any
    rows: NDArray[np.intp]
    devices: NDArray[np.generic]
    outputs: dict[str, Array]


class DroppedRows(Struct, frozen=True, kw_only=True, eq=False):
    """Rows of a feature batch that were not scored, and why. They are counted, and never lost without a word."""

    model: str
    source: Any
    rows: NDArray[np.intp]
    reason: Rejection


class InferenceAnswer(Struct, frozen=True, kw_only=True, eq=False):
    """What became of one inference request: tensors, or the error to send."""

    ticket: Any
    ref: VersionRef | None = None
    tensors: dict[str, Array] = field(default_factory=dict)
    error: HarchError | None = None


class Thought(Struct, kw_only=True, eq=False):
    """The outcome of one step."""

    scored: list[Scored] = field(default_factory=list)
    dropped: list[DroppedRows] = field(default_factory=list)
    answers: list[InferenceAnswer] = field(default_factory=list)


class RowCounters(Struct):
    """Rows of one model. Every row that came in is waiting, or in one of the others."""

    came: int = 0
    scored: int = 0
    incomplete: int = 0  # a feature was NaN, infinite or too large
    refused: int = 0  # queue full, columns missing, model paused
    late: int = 0
    failed: int = 0  # no version could score it
    unshadowed: int = 0  # scored, but its shadow had no time for it


# How do features come to THINK, and outputs go to ACT? From values in one process, or from and to messages.
#
# Both directions carry the jurisdiction mask of their events, so that a reader can check it before it stores anything.
# A message of outputs is a batch of the wire format whose payload is a head (who decided what, when) and columns.


OUTPUTS_SCHEMA = 0x0A17_0001  # in the place of a schema's number: the payload describes itself
HEAD_BYTES_MAX = 65_536
NO_MODEL = VersionRef(model="", version="", sha256="")
_ALIGNED_BYTES = 8


class Origin(Struct, frozen=True, kw_only=True):
    """Which window of which pipeline some rows belong to, and where they may be."""

    pipeline: str
    partition: int
    window_end_ns: int
    juris_mask: int
    policy_version: int
    again: str = ""  # the replay that these rows belong to, if what it decides is to be carried out once more


class DecodedOutputs(Struct, frozen=True, kw_only=True, eq=False):
    """Outputs as ACT reads them. `at_ms` is the time of the decision, and stays the same when it is delivered again."""

    origin: Origin
    ref: VersionRef
    at_ms: int
    devices: NDArray[np.generic]
    outputs: dict[str, Array]


class _Head(Struct, frozen=True, array_like=True):
    origin: Origin
    ref: VersionRef
    at_ms: int
    names: tuple[str, ...]


def features_of(batch: FeatureBatch, *, priority: int = PRIORITY_DEFAULT, deadline_s: float | None = None) -> Features:
    """What SENSE hands over in the same process; nothing is copied."""
    origin = Origin(
        pipeline=batch.pipeline,
        partition=batch.partition,
        window_end_ns=batch.window_end_ns,
        juris_mask=batch.juris_mask,
        policy_version=batch.policy_version,
    )
    columns = {name: batch.matrix[:, index] for index, name in enumerate(batch.names)}
    return Features(columns=columns, devices=batch.device, source=origin, priority=priority, deadline_s=deadline_s)


def features_of_message(
    header: BatchHeader, columns: Columns, names: Sequence[str], *, pipeline: str, partition: int, again: str = ""
) -> Features:
    """What SENSE sent, once header and payload were checked and decoded with its `feature_schema`."""
    origin = Origin(
        pipeline=pipeline,
        partition=partition,
        window_end_ns=header.t_first_ns,
        juris_mask=header.juris_mask,
        policy_version=header.policy_version,
        again=again,
    )
    named = dict(zip(names, columns.values, strict=True))
    return Features(columns=named, devices=columns.device, source=origin, priority=header.priority)


def decided_of(scored: Scored, *, at_ms: int) -> DecodedOutputs:
    """Outputs for an ACT in the same process; nothing is copied."""
    return DecodedOutputs(
        origin=scored.source, ref=scored.ref, at_ms=at_ms, devices=scored.devices, outputs=scored.outputs
    )


def encode_outputs(
    scored: Scored,
    *,
    at_ms: int,
    source: int,
    seq: int,
    lane: BatchLane = BatchLane.DURABLE,
    priority: int = PRIORITY_DEFAULT,
) -> bytes:
    """The message to ACT. `seq` is gapless per `source`, as for every batch."""
    origin: Origin = scored.source
    head = msgspec.msgpack.encode(_Head(origin, scored.ref, at_ms, tuple(scored.outputs)))
    parts = [len(head).to_bytes(4, "little"), head, b"\0" * (_columns_at(len(head)) - 4 - len(head))]
    parts += [np.ascontiguousarray(column, dtype="<f8").tobytes() for column in scored.outputs.values()]
    parts.append(np.ascontiguousarray(scored.devices, dtype="<u4").tobytes())
    payload = b"".join(parts)
    header = BatchHeader(
        schema=OUTPUTS_SCHEMA,
        n=len(scored.devices),
        juris_mask=origin.juris_mask,
        policy_version=origin.policy_version,
        source=source,
        seq=seq,
        t_first_ns=origin.window_end_ns,
        watermark_ns=origin.window_end_ns,
        payload_len=len(payload),
        priority=priority,
        lane=lane,
    )
    return pack_batch(header, payload)


def as_outputs(
    message: Buffer,
    schema: EventSchema,
    names: Sequence[str],
    *,
    pipeline: str,
    partition: int,
    at_ms: int,
    again: str = "",
) -> bytes:
    """Features of our own as ACT reads outputs: of no model, under the names that rules know them by."""
    header = unpack_header(message)
    columns = None if isinstance(header, Rejection) else decode_columns(schema, header.n, message[HEADER_BYTES:])
    if isinstance(header, Rejection) or columns is None or isinstance(columns, Rejection):
        raise InvariantBroken("features that were made here can be read", pipeline, partition)
    features = features_of_message(header, columns, names, pipeline=pipeline, partition=partition, again=again)
    scored = Scored(
        source=features.source,
        ref=NO_MODEL,
        rows=np.arange(header.n),
        devices=columns.device,
        outputs={name: np.asarray(column) for name, column in features.columns.items()},
    )
    return encode_outputs(scored, at_ms=at_ms, source=header.source, seq=header.seq, priority=header.priority)


def decode_outputs(message: Buffer) -> tuple[BatchHeader, DecodedOutputs] | Rejection:
    """What THINK decided. Whoever reads it tests `juris_mask` of the header before anything else."""
    header = unpack_header(message)
    if isinstance(header, Rejection):
        return header
    if header.schema != OUTPUTS_SCHEMA:
        return Rejection("batch", "schema", f"schema {header.schema:#010x} is not that of outputs")
    payload = check_payload(header, message)
    if isinstance(payload, Rejection):
        return payload
    size = int.from_bytes(payload[:4], "little")
    if len(payload) < _columns_at(size) or size > HEAD_BYTES_MAX:
        return Rejection("batch", "head", f"a head of {size} bytes in a payload of {len(payload)}")
    try:
        head = msgspec.msgpack.decode(payload[4 : 4 + size], type=_Head)
    except msgspec.DecodeError as error:
        return Rejection("batch", "head", f"the head cannot be read: {error}")
    n, rest = header.n, payload[_columns_at(size) :]
    if len(rest) != n * (8 * len(head.names) + 4):
        return Rejection("batch", "columns", f"{len(rest)} bytes for {n} rows of {len(head.names)} outputs")
    if (head.origin.juris_mask, head.origin.policy_version) != (header.juris_mask, header.policy_version):
        return Rejection("batch", "mask", "the head and the header name different jurisdictions")
    values = np.frombuffer(rest[: 8 * n * len(head.names)], dtype="<f8").reshape(len(head.names), n)
    decided = DecodedOutputs(
        origin=head.origin,
        ref=head.ref,
        at_ms=head.at_ms,
        devices=np.frombuffer(rest[8 * n * len(head.names) :], dtype="<u4"),
        outputs=dict(zip(head.names, values, strict=True)),
    )
    return header, decided


def _columns_at(head_bytes: int) -> int:
    """Columns start at a multiple of eight bytes, so that they are read without copying."""
    return -(-(4 + head_bytes) // _ALIGNED_BYTES) * _ALIGNED_BYTES
