"""How are samples cut into blocks? At fixed hours, so that blocks of all sources fit together."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from harch.sentinel.model.selection import Samples
from harch.sentinel.store.blocks.selecting_kernels import cut_regions, windows_of_regions

_BLOCKS_MAX = 48  # from one selection: years of old samples become few long blocks and not thousands of short ones


def split_windows(samples: Samples, start_ms: int, end_ms: int, ranges_ms: Sequence[int]) -> list[tuple[int, int]]:
    """The parts of `start_ms <= t < end_ms` that hold any sample, cut at the shortest range that gives few of them."""
    first, count = cut_regions(samples.timestamps, samples.first, samples.count, start_ms, end_ms - 1)
    for span in ranges_ms:
        windows = np.unique(windows_of_regions(samples.timestamps, first, count, span))
        if len(windows) <= _BLOCKS_MAX:
            break
    return [(max(start_ms, window * span), min(end_ms, (window + 1) * span)) for window in windows.tolist()]
