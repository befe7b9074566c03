"""How often, how soon again, and when is it enough? Pauses that double, a bucket of tokens per receiver."""

# harch: pure

from __future__ import annotations

from dataclasses import dataclass

PAUSE_MS_FIRST = 1_000
PAUSE_MS_MAX = 60_000
BURST_MAX = 20
PER_MINUTE_MAX = 60


def pause_ms(attempt: int) -> int:
    """After the attempt with this number, from 1."""
    return min(PAUSE_MS_FIRST * (1 << min(attempt - 1, 10)), PAUSE_MS_MAX)


@dataclass(slots=True)
class TokenBucket:
    """A receiver gets a burst at once and then a steady trickle: an alert storm must not become a mail storm."""

    tokens: float = BURST_MAX
    filled_ms: int = 0

    def wait_ms(self, now_ms: int) -> int:
        """Takes a token and answers 0, or answers how long to wait for the next one."""
        if self.filled_ms:
            elapsed_ms = max(0, now_ms - self.filled_ms)
            self.tokens = min(BURST_MAX, self.tokens + elapsed_ms * PER_MINUTE_MAX / 60_000)
        self.filled_ms = now_ms
        if self.tokens >= 1:
            self.tokens -= 1
            return 0
        return int((1 - self.tokens) * 60_000 / PER_MINUTE_MAX) + 1
