"""How much may one tenant send and keep, and how fast?

Every limit has a code with which what is beyond it is refused.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from harch.base.errors import HarchError

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class TenantLimits:
    """Limits of one tenant. Times are milliseconds; None means no limit."""

    body_bytes_max: int = 32 * MIB  # compressed
    request_bytes_max: int = 64 * MIB  # what a body may unpack to
    request_samples_max: int = 1_000_000
    series_max: int = 1_000_000  # in the head: series that had samples since the last cut
    samples_per_s_max: float | None = None
    samples_burst_max: int = 1_000_000
    labels_per_series_max: int = 64
    label_names_max: int = 4_096  # different names over all series
    label_name_bytes_max: int = 1_024
    label_value_bytes_max: int = 4_096
    out_of_order_ms: int | None = 3_600_000  # how far behind the newest sample of its series; None: any
    age_ms_max: int | None = None  # how old by the store's own clock
    ahead_ms_max: int | None = None
    samples_in_memory_max: int = 64_000_000  # 16 bytes each; beyond it writes wait for a cut
    histograms_in_memory_max: int = 1_000_000
    exemplars_max: int = 100_000  # of all series; the oldest go
    metadata_max: int = 20_000  # metrics of which type, help and unit are kept


# How fast may a tenant send? A bucket that fills with time: bursts are fine, a lasting excess is not.


class Rate:
    """At most so many `things` a second, with a burst; without `per_s` any number."""

    def __init__(
        self, per_s: float | None, burst: float, unit: str, monotonic_s: Callable[[], float], *, code: str = "E0628"
    ) -> None:
        self._per_s, self._burst, self._unit, self._code = per_s, burst, unit, code
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
                    self._code, f"more than {self._per_s:g} {self._unit} per second", retry_after_s=wait_s,
                    hint=f"try again in {wait_s} s",
                )  # fmt: skip
            self._left -= count


def sample_rate(limits: TenantLimits, monotonic_s: Callable[[], float]) -> Rate:
    return Rate(limits.samples_per_s_max, float(limits.samples_burst_max), "samples", monotonic_s, code="E0609")
