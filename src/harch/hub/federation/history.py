"""Which events of the federation belong into a hub's history? Gossip news in words, and never a flood of them."""

# harch: pure

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from harch.federation.gossip.membership import (
    Appeared,
    Forged,
    IdentityCloned,
    News,
    Recovered,
    StateChanged,
    Suspected,
)

NOTES_MAX, NOTES_WITHIN_S = 100, 60.0

Note = Callable[[str, str, str], None]  # kind, subject, message


class FederationHistory:
    """`note` writes a line of history. Beyond 100 lines a minute they are counted, and the next line says how many."""

    def __init__(self, me: str, note: Note) -> None:
        self._me, self._note = me, note
        self._times_s: deque[float] = deque(maxlen=NOTES_MAX)
        self._left_out = 0

    def record(self, news: Iterable[News], now_s: float) -> None:
        for one in news:
            value = _words(one, self._me)
            if value is not None:
                self._write(*value, now_s)

    def _write(self, kind: str, subject: str, message: str, now_s: float) -> None:
        if len(self._times_s) == NOTES_MAX and now_s - self._times_s[0] < NOTES_WITHIN_S:
            self._left_out += 1
            return
        self._times_s.append(now_s)
        if self._left_out:
            message, self._left_out = f"{message} ({self._left_out} earlier lines were left out)", 0
        self._note(kind, subject, message)


def _words(news: News, me: str) -> tuple[str, str, str] | None:
    match news:
        case Appeared(hub, _):
            return "hub.appeared", hub, "first contact since it or this hub started"
        case Suspected(hub, silence_s):
            return "hub.suspected", hub, f"silent for {silence_s:.1f} s: no new offers; nothing is evicted"
        case Recovered(hub):
            return "hub.recovered", hub, "contact restored"
        case IdentityCloned(generation, via):
            message = (
                f"another process signs as {me}, life {generation}, as {via} reports: was its state folder copied?"
            )
            return "federation.cloned", me, message
        case Forged(hub, via, reason, times):
            source = f" from {via}" if via else ""
            return "federation.forged", hub, f"what came{source} about {hub} is rejected: {reason} ({times} times)"
        case StateChanged():
            return None
