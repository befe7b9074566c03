"""How fast may a tenant send? A bucket that fills with time: bursts are fine, a lasting excess is not."""

from __future__ import annotations

import threading
from collections.abc import Callable

from harch.base.errors import HarchError
from harch.sentinel.store.limits import Limits


class SampleRate:
    def __init__(self, limits: Limits, monotonic_s: Callable[[], float]) -> None:
        self._per_s = limits.samples_per_s_max
        self._burst = float(limits.samples_burst_max)
        self._monotonic_s = monotonic_s
        self._left = self._burst
        self._at = monotonic_s()
        self._lock = threading.Lock()

    def take(self, samples: int) -> None:
        """Raises E0609 where the tenant has sent too much lately. A request may overdraw what is left."""
        if self._per_s is None:
            return
        with self._lock:
            now = self._monotonic_s()
            self._left = min(self._burst, self._left + (now - self._at) * self._per_s)
            self._at = now
            if self._left <= 0:
                wait_s = max(1, round(-self._left / self._per_s) + 1)
                raise HarchError(
                    "E0609", f"more than {self._per_s:g} samples per second", retry_after_s=wait_s,
                    hint=f"try again in {wait_s} s",
                )  # fmt: skip
            self._left -= samples
