"""What became of a batch? What a stage returns: features, events for the late lane, alerts, counters that balance."""

from __future__ import annotations

from enum import Enum

from msgspec import Struct, field

from harch.pipelines.sense.features import FeatureBatch
from harch.pipelines.wire.columns import Columns
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


class Outcome(Struct, kw_only=True):
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
    batches_shed: int = 0  # told by gap headers
    events_shed: int = 0
    windows_closed: int = 0
    rows_out: int = 0
