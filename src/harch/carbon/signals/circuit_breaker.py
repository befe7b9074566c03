"""When may a source be asked again? A limit on requests per window, and a breaker that leaves a failing source alone.

Both are plain state with the monotonic time as an argument.
"""

# harch: pure

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field


@dataclass(slots=True)
class RequestLimit:
    """At most `requests_max` requests in any window of `window_s` seconds."""

    requests_max: int
    window_s: float
    _times_s: deque[float] = field(default_factory=deque)

    def wait_s(self, now_s: float) -> float:
        """Seconds until a request is allowed; 0 when it is."""
        while self._times_s and self._oldest_leaves_in_s(now_s) <= 0:
            self._times_s.popleft()
        if len(self._times_s) < self.requests_max:
            return 0.0
        return self._oldest_leaves_in_s(now_s)

    def count(self, now_s: float) -> None:
        self._times_s.append(now_s)

    def _oldest_leaves_in_s(self, now_s: float) -> float:
        """Above 0 for as long as the oldest request is within the window.

        `fsum` is exact and rounds once. With plain `+` and `-` a tiny time is absorbed by the window (`1e-45 + 1.0` is
        `1.0`), the wait comes out as 0, and a full window lets one more through.
        """
        return math.fsum((self._times_s[0], self.window_s, -now_s))


@dataclass(slots=True)
class CircuitBreaker:
    """Opens after failures in a row, lets one try through after a pause, doubles the pause if that fails too."""

    failures_max: int = 3
    pause_s_first: float = 60.0
    pause_s_max: float = 900.0
    failures: int = 0
    _pause_s: float = 0.0
    _closed_until_s: float = 0.0

    def wait_s(self, now_s: float) -> float:
        return max(0.0, self._closed_until_s - now_s)

    def succeeded(self) -> None:
        self.failures, self._pause_s, self._closed_until_s = 0, 0.0, 0.0

    def failed(self, now_s: float, *, retry_after_s: float | None = None) -> None:
        """Counts a failure. A source that says how long to wait is obeyed at once, up to the longest pause."""
        self.failures += 1
        pause_s = 0.0
        if self.failures >= self.failures_max:
            self._pause_s = min(self.pause_s_max, self._pause_s * 2 or self.pause_s_first)
            pause_s = self._pause_s
        if retry_after_s is not None:
            pause_s = max(pause_s, min(retry_after_s, self.pause_s_max))
        self._closed_until_s = now_s + pause_s
