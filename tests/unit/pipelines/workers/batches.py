"""Batches for the tests of this folder."""

from __future__ import annotations

import numpy as np

from harch.pipelines.wire.columns import COMPACT, Columns, encode_columns
from harch.pipelines.wire.header import BatchHeader, Flags, pack_batch


def batch(
    seq: int,
    devices: list[int],
    *,
    source: int = 7,
    mask: int = 1,
    priority: int = 3,
    first_ns: int = 10**18,
    flags: Flags = Flags(0),
) -> bytes:
    n = len(devices)
    zeros = np.zeros(n)
    columns = Columns(np.arange(n), np.array(devices), zeros, zeros, np.arange(2 * n, dtype=float).reshape(2, n))
    payload = encode_columns(COMPACT, columns) if not flags & Flags.WATERMARK_ONLY else b""
    header = BatchHeader(
        schema=COMPACT.id,
        n=n,
        juris_mask=mask,
        policy_version=1,
        source=source,
        seq=seq,
        t_first_ns=first_ns + seq,
        watermark_ns=first_ns + seq,
        payload_len=len(payload),
        priority=priority,
        flags=flags,
    )
    return pack_batch(header, payload)
