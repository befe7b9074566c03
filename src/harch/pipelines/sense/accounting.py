"""What became of a batch, and of all of them?

What a stage returns, with counters that balance, the quarantine, and alerts that do not flood.
"""

# harch: pure

from __future__ import annotations

from enum import Enum

import numpy as np
from msgspec import Struct, field

from harch.pipelines.sense.features import FeatureBatch
from harch.pipelines.sense.kernels import REASONS
from harch.pipelines.sense.quarantine import Quarantine, Quarantined
from harch.pipelines.sense.windows import Added
from harch.pipelines.wire.columns import Columns, select
from harch.pipelines.wire.header import BatchHeader


class Disposition(Enum):
    """Everything but HOLE, HELD, AHEAD and DAMAGED is accounted for: the source need not send it again."""

    TAKEN = "taken"
    DUPLICATE = "duplicate"
    DROPPED = "dropped"  # by the rule of a jurisdiction
    REFUSED = "refused"  # it can be read, but not be used
    GAP = "gap"  # the source has shed batches and says so
    WATERMARK = "watermark"
    HELD = "held"  # until the table of its policy version is there
    AHEAD = "ahead"  # it waits for slower sources
    HOLE = "hole"  # batches before it are missing
    DAMAGED = "damaged"  # not a message, or damaged: the sender is to send it again


class SideBatch(Struct, frozen=True):
    """Events that came too late or too early, with the header that they came with. Under the same mask as before."""

    header: BatchHeader
    columns: Columns
    reasons: tuple[str, ...]  # one per event


class StageAlert(Struct, frozen=True):
    """Something that a person should hear of. `count` events or batches since the last one of this rule."""

    rule: str
    detail: str
    count: int


class SenseOutcome(Struct, kw_only=True):
    """What `take` and `tick` return."""

    disposition: Disposition | None = None
    features: list[FeatureBatch] = field(default_factory=list)
    aside: list[SideBatch] = field(default_factory=list)
    alerts: list[StageAlert] = field(default_factory=list)
    fetch_versions: set[int] = field(default_factory=set)  # policy tables that are needed
    missing: tuple[int, int] | None = None  # (source, first missing seq) of a HOLE
    released: list[tuple[int, int]] = field(default_factory=list)  # (source, bytes) of what was AHEAD until now


class StageCounters(Struct):
    """All of one partition, since its first start: they are in the checkpoint.

    `events_in` = `events_accepted` + `events_aside` + `events_dropped` + `events_refused`.
    """

    batches_in: int = 0
    events_in: int = 0
    events_accepted: int = 0
    events_aside: int = 0  # set aside one by one; the quarantine says why
    events_dropped: int = 0  # whole batches, by jurisdiction
    events_refused: int = 0  # whole batches, by form
    batches_duplicate: int = 0
    batches_damaged: int = 0
    holes: int = 0
    batches_shed: int = 0  # reported by gap headers
    events_shed: int = 0
    windows_closed: int = 0
    rows_out: int = 0


# What does a stage tell about its work? Counters that balance, the quarantine, and alerts that do not flood.


ALERT_EVERY_S = 1.0  # per rule; a flood of bad batches is one alert with a count
_LATE, _FUTURE = REASONS.index("late"), REASONS.index("future")


class SenseAccounting:
    """The accounts of one stage."""

    def __init__(self, kept: int) -> None:
        self.counters = StageCounters()
        self.quarantine = Quarantine(kept)
        self._alerted_s: dict[str, float] = {}
        self._pending: dict[str, StageAlert] = {}

    def damaged(self, reason: str, detail: str, now_ns: int) -> None:
        """A message that cannot be believed. Nothing of it is kept, not even what claims to be its source."""
        self.counters.batches_damaged += 1
        self.quarantine.add(Quarantined(reason, detail, at_ns=now_ns))

    def batch_aside(self, header: BatchHeader, reason: str, detail: str, now_ns: int, count: int | None = None) -> None:
        """A whole batch, without its content. Counts its events, and one where it has none."""
        example = Quarantined(reason, detail, header.source, header.seq, "", now_ns)
        self.quarantine.add(example, max(1, header.n) if count is None else count)

    def set_aside_events(self, header: BatchHeader, columns: Columns, added: Added, now_ns: int) -> SideBatch | None:
        """Counts the events of a batch and keeps examples; returns what came too late or too early."""
        accepted = added.counts.get("accepted", 0)
        self.counters.events_accepted += accepted
        self.counters.events_aside += columns.n - accepted
        if accepted == columns.n:
            return None
        for reason, count in added.counts.items():
            if reason != "accepted":  # one example per batch: a flood costs little, and examples are of many batches
                place = int(added.aside[np.argmax(added.reasons == REASONS.index(reason))])
                excerpt = _excerpt(columns, place)
                self.quarantine.add(
                    Quarantined(reason, f"event {place}", header.source, header.seq, excerpt, now_ns), count
                )
        side = (added.reasons == _LATE) | (added.reasons == _FUTURE)
        if not side.any():
            return None
        reasons = tuple(REASONS[reason] for reason in added.reasons[side])
        return SideBatch(header, select(columns, added.aside[side]), reasons)

    def alert(self, rule: str, detail: str, count: int) -> None:
        """Somebody should hear of it, with all others of its rule, the next time that alerts are due."""
        before = self._pending.get(rule)
        self._pending[rule] = StageAlert(rule, detail, count + (before.count if before else 0))

    def alerts_due(self, now_s: float) -> list[StageAlert]:
        if not self._pending:
            return []
        due = [rule for rule in self._pending if now_s - self._alerted_s.get(rule, -ALERT_EVERY_S) >= ALERT_EVERY_S]
        for rule in due:
            self._alerted_s[rule] = now_s
        return [self._pending.pop(rule) for rule in due]


def _excerpt(columns: Columns, place: int) -> str:
    values = ", ".join(f"{float(value):g}" for value in columns.values[:8, place])
    return (
        f"tick {columns.ticks[place]}, device {columns.device[place]}, metric {columns.metric[place]}, values {values}"
    )
