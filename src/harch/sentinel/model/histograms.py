"""What is a native histogram? Exponential buckets of a schema, or buckets with bounds of their own (schema -53)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

CUSTOM_BUCKETS_SCHEMA = -53
EXPONENTIAL_SCHEMA_RANGE = (-4, 8)

Floats = npt.NDArray[np.float64]


class ResetHint(IntEnum):
    """What is known of the counter since the sample before? The numbers are those of the remote-write protocol."""

    UNKNOWN = 0
    RESET = 1
    NOT_RESET = 2
    GAUGE = 3


@dataclass(frozen=True, slots=True)
class BucketSpan:
    """`length` buckets in a row; `offset` counts from the end of the span before, the first one from bucket 0."""

    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class NativeHistogram:
    """One histogram sample. Bucket counts are absolute, one for each bucket of the spans."""

    count: float
    sum: float
    schema: int = 0
    zero_threshold: float = 0.0
    zero_count: float = 0.0
    positive_spans: tuple[BucketSpan, ...] = ()
    positive_counts: tuple[float, ...] = ()
    negative_spans: tuple[BucketSpan, ...] = ()
    negative_counts: tuple[float, ...] = ()
    custom_bounds: tuple[float, ...] = ()  # upper bounds without +Inf; only with CUSTOM_BUCKETS_SCHEMA
    reset_hint: ResetHint = ResetHint.UNKNOWN
    is_integer: bool = False  # whether counts came as integers, so that they go out as such

    @property
    def uses_custom_buckets(self) -> bool:
        return self.schema == CUSTOM_BUCKETS_SCHEMA

    @property
    def is_stale(self) -> bool:
        """The marker that says that the series ended: its sum carries the stale NaN."""
        bits: Any = np.float64(self.sum).view(np.uint64)
        return int(bits) == STALE_BITS


STALE_BITS = 0x7FF0000000000002  # the NaN that says that a series ended; other NaNs are values
STALE = float(np.uint64(STALE_BITS).view(np.float64))


def stale_mask(values: Floats) -> npt.NDArray[np.bool_]:
    """Which of these values are stale markers? Compared by bits, since no NaN equals another."""
    mask: npt.NDArray[np.bool_] = values.view(np.uint64) == np.uint64(STALE_BITS)
    return mask
