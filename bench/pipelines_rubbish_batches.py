"""What does a hostile sender put on the wire? Whole batches of every kind that SENSE must refuse, and by which name."""

from __future__ import annotations

from collections import Counter
from itertools import cycle

import numpy as np

from harch.pipelines.wire.columns import Columns, EventSchema, encode_columns
from harch.pipelines.wire.header import BatchHeader, pack_batch

HOUR_NS = 3600 * 1_000_000_000
KINDS = ("unknown_schema", "future", "late", "bad_value", "unknown_device", "bad_checksum")


class Hostile:
    """One source per kind, so that each has gapless numbers; ignores credit. `expected` is what must be counted."""

    def __init__(self, schema: EventSchema, n: int, devices: int, source: int) -> None:
        self.expected: Counter[str] = Counter()
        self._schema, self._n, self._source = schema, n, source
        self._kinds = cycle(KINDS)
        self._seqs: Counter[str] = Counter()
        zeros, values = np.zeros(n), np.full((len(schema.values), n), 20.0)
        good = encode_columns(schema, Columns(zeros, zeros, zeros, zeros, values))
        nan = encode_columns(schema, Columns(zeros, zeros, zeros, zeros, values * np.nan))
        unknown = encode_columns(schema, Columns(zeros, zeros + devices + 9, zeros, zeros, values))
        self._payloads = dict.fromkeys(KINDS, good) | {"bad_value": nan, "unknown_device": unknown}

    def next(self, now_ns: int) -> bytes:
        kind = next(self._kinds)
        self._seqs[kind] += 1
        payload = self._payloads[kind]
        header = BatchHeader(
            schema=self._schema.id ^ (kind == "unknown_schema"),
            n=self._n,
            juris_mask=1,
            policy_version=1,
            source=self._source ^ (KINDS.index(kind) + 1) << 24,
            seq=self._seqs[kind],
            t_first_ns=now_ns + {"future": HOUR_NS, "late": -HOUR_NS}.get(kind, 0),
            watermark_ns=now_ns,
            payload_len=len(payload),
        )
        message = pack_batch(header, payload)
        if kind == "bad_checksum":
            self.expected[kind] += 1
            return message[:-1] + bytes((message[-1] ^ 1,))
        self.expected[kind] += self._n
        return message
