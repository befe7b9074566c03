"""Which partition does an event belong to? By its device, so that all of a device is in one place. Pure."""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from harch.base.rejection import Rejection
from harch.pipelines.sense.edge import Permit
from harch.pipelines.wire.checksum import Buffer
from harch.pipelines.wire.columns import Columns, decode_columns, encode_columns, select
from harch.pipelines.wire.header import BatchHeader, check_payload, unpack_header
from harch.pipelines.wire.schema import EventSchema


class Piece(Struct, frozen=True):
    """The events of one message that go to one partition. The header has neither its number nor its length yet."""

    partition: int
    header: BatchHeader
    payload: bytes


def partition_of(devices: NDArray[np.generic], partitions: int) -> NDArray[np.int64]:
    """The partition of each device number: neighbours go to different ones."""
    return devices.astype(np.int64) % partitions


def split(message: Buffer, schema: EventSchema, partitions: int, permit: Permit) -> list[Piece] | Rejection:
    """The pieces of a message, in the order of their partitions; a Rejection if it is none of this schema.

    Where events may be is narrowed to what the pipeline permits: a sender may say less, never more.
    """
    header = unpack_header(message)
    if isinstance(header, Rejection):
        return header
    payload = check_payload(header, message)
    if isinstance(payload, Rejection):
        return payload
    if header.is_gap or header.is_watermark_only:
        return []
    if header.schema != schema.id:
        detail = f"schema {header.schema:#010x}; this pipeline reads {schema.id:#010x}"
        return Rejection("batch", "unknown_schema", detail, "send the pipeline's schema")
    columns = decode_columns(schema, header.n, payload)
    if isinstance(columns, Rejection):
        return columns
    if header.policy_version == permit.policy_version:
        header = replace(header, juris_mask=header.juris_mask & permit.juris_mask)
    if partitions == 1:
        return [Piece(0, header, bytes(payload))]
    homes = partition_of(columns.device, partitions)
    return [
        Piece(int(home), *_picked(header, columns, np.flatnonzero(homes == home), schema)) for home in np.unique(homes)
    ]


def _picked(
    header: BatchHeader, columns: Columns, picks: NDArray[np.intp], schema: EventSchema
) -> tuple[BatchHeader, bytes]:
    payload = encode_columns(schema, select(columns, picks))
    return replace(header, n=len(picks), payload_len=len(payload)), payload
