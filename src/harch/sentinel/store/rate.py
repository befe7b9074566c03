"""How fast may a tenant send? A bucket that fills with time: bursts are fine, a lasting excess is not."""

from __future__ import annotations

import threading
from collections.abc import Callable

from harch.base.errors import HarchError
from harch.sentinel.store.limits import Limits


class Rate:
    """At most so many `things` a second, with a burst; without `per_s` any number."""

    def __init__(
        self, per_s: float | None, burst: float, things: str, monotonic_s: Callable[[], float], *, code: str = "E0628"
    ) -> None:
        self._per_s, self._burst, self._things, self._code = per_s, burst, things, code
        self._monotonic_s = monotonic_s
        self._left = burst
        self._at = monotonic_s()
        self._lock = threading.Lock()

    def take(self, count: int) -> None:
        """Raises the rate's code where the tenant has sent too much lately. A request may overdraw what is left."""
        if self._per_s is None:
            return
        with self._lock:
            now = self._monotonic_s()
            self._left = min(self._burst, self._left + (now - self._at) * self._per_s)
            self._at = now
            if self._left <= 0:
                wait_s = max(1, round(-self._left / self._per_s) + 1)
                raise HarchError(
                    self._code, f"more than {self._per_s:g} {self._things} per second", retry_after_s=wait_s,
                    hint=f"try again in {wait_s} s",
                )  # fmt: skip
            self._left -= count


def sample_rate(limits: Limits, monotonic_s: Callable[[], float]) -> Rate:
    return Rate(limits.samples_per_s_max, float(limits.samples_burst_max), "samples", monotonic_s, code="E0609")
