"""Which rows go to the canary? By a hash of the device, so that each device sees one version for as long as it lasts.

The hash is salted with the model's name: the same devices are not the first to meet every new model. A larger share
only adds devices; it moves none back.
"""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

BUCKETS = 10_000


def canary_rows(devices: NDArray[np.generic], model: str, percent: float) -> NDArray[np.bool_]:
    """True where a row belongs to the canary."""
    return buckets(devices, model) < round(percent * BUCKETS / 100)


def buckets(devices: NDArray[np.generic], model: str) -> NDArray[np.uint64]:
    """A number below `BUCKETS` for each device: the same on every machine, whatever integer type carries the id."""
    salt = np.uint64(int.from_bytes(blake2b(model.encode(), digest_size=8).digest(), "little"))
    if devices.dtype.kind in "iu":
        keys = devices.astype(np.uint64)
    else:
        texts, inverse = np.unique(devices.astype(str), return_inverse=True)
        hashed = [int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little") for text in texts]
        keys = np.array(hashed, dtype=np.uint64)[inverse]
    return _mixed(keys ^ salt) % np.uint64(BUCKETS)


def _mixed(keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of SplitMix64: neighbouring ids land far apart."""
    mixed = keys + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))
