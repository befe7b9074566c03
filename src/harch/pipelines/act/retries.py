"""How long until the next attempt? Exponential, with a jitter that follows from a seed."""

from __future__ import annotations

import hashlib

from harch.pipelines.act.settings import Retries


def delay_ms(retries: Retries, *, attempt: int, key: str, seed: int) -> int:
    """The wait after attempt number `attempt` (from 1) of `key`. Different keys wait differently, or all would return
    to a recovering device in the same moment."""
    plain_s = min(retries.max_s, retries.base_s * retries.factor ** min(attempt - 1, 64))
    noise = int.from_bytes(hashlib.blake2b(f"{seed}:{key}:{attempt}".encode(), digest_size=8).digest()) / 2**64
    return max(1, round(1000 * plain_s * (1 + retries.jitter * (2 * noise - 1))))
