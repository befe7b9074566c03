"""Which traces are kept? All of them while they are few; beyond a rate, those for which there is room.

The limit bounds what tracing costs: a hub that takes thousands of jobs in a second traces some of them, and nobody
pays for the others.
"""

from __future__ import annotations

import os

from harch.base.errors import HarchError
from harch.base.tracing.context import is_in_share

SWITCH, SHARE, BATCHES = "HARCH_TRACING", "HARCH_TRACE_SAMPLE", "HARCH_TRACE_SAMPLE_BATCHES"
SENTINEL_SWITCH = "HARCH_SENTINEL"
BATCH_SHARE = 0.01
TRACES_PER_S = 10.0
BURST = 100.0


class Budget:
    """New traces per second, with room for a burst. `now_s` is monotonic."""

    def __init__(self, share: float = 1.0, *, per_s: float = TRACES_PER_S, burst: float = BURST) -> None:
        self.share, self._per_s, self._burst = share, per_s, burst
        self._left = burst
        self._at_s = 0.0

    def has_room(self, now_s: float) -> bool:
        """The usual answer under load is no, and costs next to nothing."""
        if self._left >= 1.0:
            return True
        return (now_s - self._at_s) * self._per_s + self._left >= 1.0

    def takes(self, trace_id: bytes, now_s: float) -> bool:
        self._left = min(self._burst, self._left + max(0.0, now_s - self._at_s) * self._per_s)
        self._at_s = now_s
        if self._left < 1.0 or not is_in_share(trace_id, self.share):
            return False
        self._left -= 1.0
        return True


def is_on() -> bool:
    """Not without SENTINEL, which would keep the spans. Raises E0201 for a word that is neither on nor off."""
    word = os.environ.get(SWITCH, "on").lower()
    if word not in ("on", "off"):
        raise HarchError("E0201", f"{SWITCH} is `{word[:40]}`", hint="write on or off")
    return word == "on" and os.environ.get(SENTINEL_SWITCH, "").lower() != "off"


def share_from_env(name: str = SHARE, default: float = 1.0) -> float:
    """Raises E0201 for what is no number from 0 to 1."""
    text = os.environ.get(name, "")
    try:
        share = float(text) if text else default
    except ValueError:
        share = -1.0
    if not 0.0 <= share <= 1.0:
        raise HarchError("E0201", f"{name} is `{text[:40]}`", hint="write a share from 0 to 1, e.g. 0.1")
    return share


def batch_share() -> float:
    """The share of pipelines' windows that are followed; 0 while tracing is off."""
    return share_from_env(BATCHES, BATCH_SHARE) if is_on() else 0.0
