"""What of long answers is still to be fetched? A few of them, for a short time, each for the hub that asked."""

from __future__ import annotations

from harch.base.clock import Clock
from harch.base.errors import HarchError
from harch.base.ids import new_id
from harch.hub.federation.messages import PIECE_BYTES_MAX, PieceAsked, PieceTold, TelemetryTold

KEPT_BYTES_MAX = 64 << 20
KEPT_S = 30.0


class KeptAnswers:
    """Answers in pieces. Beyond the limit the oldest go, and whoever still wants one asks again."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._kept: dict[str, tuple[str, float, bytes]] = {}

    def begin(self, hub_id: str, number: int, answer: bytes) -> TelemetryTold:
        """The first piece; the rest is kept, if there is any."""
        answer_id = ""
        if len(answer) > PIECE_BYTES_MAX:
            self._make_room(len(answer))
            answer_id = new_id("ans", now=self._clock.now())
            self._kept[answer_id] = (hub_id, self._clock.monotonic_s(), answer)
        return TelemetryTold(number=number, answer_id=answer_id, bytes_total=len(answer), data=answer[:PIECE_BYTES_MAX])

    def go_on(self, hub_id: str, asked: PieceAsked) -> PieceTold:
        """Raises E0698 for what is not kept for this hub. The last piece ends it."""
        to, _, answer = self._kept.get(asked.answer_id, ("", 0.0, b""))
        if to != hub_id or not 0 <= asked.offset < len(answer):
            raise HarchError("E0698", "that answer is not kept here any more", hint="ask again")
        end = asked.offset + PIECE_BYTES_MAX
        if end >= len(answer):
            del self._kept[asked.answer_id]
        return PieceTold(number=asked.number, data=answer[asked.offset : end])

    def _make_room(self, size: int) -> None:
        since_s = self._clock.monotonic_s() - KEPT_S
        self._kept = {key: kept for key, kept in self._kept.items() if kept[1] >= since_s}
        while self._kept and sum(len(kept[2]) for kept in self._kept.values()) + size > KEPT_BYTES_MAX:
            del self._kept[next(iter(self._kept))]
