"""How much may each source have on its way to us? The receiving half of credit flow control.

Grants are absolute and told again and again, so a lost one costs nothing but time. An epoch is made of the incarnation
of the receiver, which must grow with every start (the revision of its lease serves), and of the holes found since.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from harch.base.errors import InvariantBroken
from harch.pipelines.wire.credit import Credit
from harch.pipelines.wire.header import MESSAGE_BYTES_MAX

WINDOW_BYTES = 2 * MESSAGE_BYTES_MAX
RESEND_S = 0.05
HOLE_PATIENCE_S = 0.25  # what is being sent again is not asked for again within this
SILENT_S = 10.0  # a source that says nothing for this long is told nothing until it does
_HOLES_BITS = 20


class _Line(Struct):
    """One source."""

    seen_s: float
    checkpointed_seq: int = 0
    holes: int = 0
    hole_s: float = -HOLE_PATIENCE_S
    taken_bytes: int = 0  # in this epoch
    granted_bytes: int = 0
    granted_s: float = -RESEND_S


class Receiving:
    """All sources of one receiver. The windows of all of them together are at most `total_bytes`."""

    def __init__(
        self,
        incarnation: int,
        *,
        window_bytes: int = WINDOW_BYTES,
        total_bytes: int = 8 * WINDOW_BYTES,
        message_bytes_max: int = MESSAGE_BYTES_MAX,
    ) -> None:
        """A window never falls below one message of the largest size, however many sources there are."""
        if window_bytes < message_bytes_max or incarnation < 0:
            raise InvariantBroken("a window has room for the largest message", window_bytes, incarnation)
        self._incarnation = incarnation
        self._window_bytes = window_bytes
        self._total_bytes = total_bytes
        self._message_bytes_max = message_bytes_max
        self._lines: dict[int, _Line] = {}

    def resume(self, checkpointed: Mapping[int, int], now_s: float) -> None:
        """After a start: sources of the checkpoint are told at once where to go on."""
        for source, seq in checkpointed.items():
            self._lines[source] = _Line(now_s, checkpointed_seq=seq)

    def taken(self, source: int, message_bytes: int, now_s: float) -> None:
        """A message of this source was dealt with, whatever became of it."""
        line = self._lines.get(source)
        if line is None:
            line = self._lines[source] = _Line(now_s)
        line.seen_s = now_s
        line.taken_bytes += message_bytes

    def hole(self, source: int, now_s: float) -> None:
        """Something of this source is missing: it shall send again from the checkpoint on."""
        line = self._lines.setdefault(source, _Line(now_s))
        if now_s - line.hole_s < HOLE_PATIENCE_S:
            return
        line.holes += 1
        line.hole_s = now_s
        line.taken_bytes = 0
        line.granted_s = now_s - RESEND_S

    def checkpointed(self, seqs: Mapping[int, int]) -> None:
        """A checkpoint is stored: sources may forget what is in it."""
        for source, seq in seqs.items():
            if source in self._lines:
                self._lines[source].checkpointed_seq = max(self._lines[source].checkpointed_seq, seq)

    def due(self, now_s: float) -> list[Credit]:
        """Grants to send now: after half a window, and every 50 ms."""
        live = {source: line for source, line in self._lines.items() if now_s - line.seen_s <= SILENT_S}
        window = max(self._message_bytes_max, min(self._window_bytes, self._total_bytes // max(1, len(live))))
        grants = []
        for source, line in live.items():
            is_half_used = line.taken_bytes - line.granted_bytes >= window // 2
            if not is_half_used and now_s - line.granted_s < RESEND_S:
                continue
            line.granted_bytes, line.granted_s = line.taken_bytes, now_s
            epoch = self._incarnation << _HOLES_BITS | line.holes
            grants.append(Credit(source, epoch, line.taken_bytes + window, line.checkpointed_seq))
        return grants

    def forget(self, source: int) -> None:
        """A source has ended."""
        self._lines.pop(source, None)
