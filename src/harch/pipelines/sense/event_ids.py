"""Did this very event come before? The newest ids of a source, as 64-bit hashes within a limit.

For senders that repeat themselves, such as MQTT with QoS 1 or a client after a time-out. It remembers as far back as
its limit reaches and as long as the process lives; the sequence numbers of batches do the rest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray


class RecentIds:
    """At most `kept_max` ids; the oldest goes first."""

    def __init__(self, kept_max: int) -> None:
        self._kept_max = kept_max
        self._seen: dict[bytes, None] = {}

    def fresh(self, ids: Sequence[str]) -> NDArray[np.bool_]:
        """True for ids that are neither remembered nor named before in the same list. Remembers nothing."""
        found, here = np.ones(len(ids), np.bool_), set()
        for place, name in enumerate(ids):
            key = _hash_of(name)
            found[place] = key not in self._seen and key not in here
            here.add(key)
        return found

    def remember(self, ids: Iterable[str]) -> None:
        for name in ids:
            self._seen[_hash_of(name)] = None
        while len(self._seen) > self._kept_max:
            del self._seen[next(iter(self._seen))]


def _hash_of(name: str) -> bytes:
    return hashlib.blake2b(name.encode("utf-8", "replace"), digest_size=8).digest()
