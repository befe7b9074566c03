"""What the tests of SENSE share: a stage with few devices, batches for it, and clocks that a test sets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from harch.pipelines.sense.accounting import SenseOutcome
from harch.pipelines.sense.devices import DeviceTable
from harch.pipelines.sense.gate import PolicyTable, ResidencyGate
from harch.pipelines.sense.settings import SenseSettings, WindowSettings
from harch.pipelines.sense.stage import SenseStage
from harch.pipelines.sense.state import StageIdentity
from harch.pipelines.wire.columns import COMPACT, Columns, EventSchema, encode_columns
from harch.pipelines.wire.header import BatchHeader, pack_batch

S = 1_000_000_000
T0 = 1_700_000_000 * S
TABLE = PolicyTable(1, {"dakhla": 0, "tangier": 1, "dakar": 2})
HERE = 0b001
Event = tuple[float, int, int, float]  # seconds after T0, device, metric, value


def settings_of(**changed: object) -> SenseSettings:
    fields: dict[str, object] = {
        "devices": ("pump-0", "pump-1", "pump-2"),
        "devices_max": 4,
        "metrics": ("flow", "pressure"),
        "windows": WindowSettings(size_s=1.0, lateness_s=0.5, skew_s=2.0, future_s=2.0),
        "source_idle_s": 5.0,
    }
    return SenseSettings(**{**fields, **changed})  # type: ignore[arg-type]


def stage_of(settings: SenseSettings | None = None, *, hub: str = "dakhla", table: PolicyTable = TABLE) -> SenseStage:
    settings = settings or settings_of()
    devices = DeviceTable(settings.devices, settings.devices_max, settings.metrics)
    return SenseStage(StageIdentity("farm", 3), settings, devices, ResidencyGate(hub, table))


def columns_of(events: Sequence[Event], schema: EventSchema = COMPACT) -> tuple[int, Columns]:
    """T of the first event, and the columns."""
    first_s = min((event[0] for event in events), default=0.0)
    ticks = np.array([round((event[0] - first_s) * S / schema.tick_ns) for event in events], np.uint64)
    values = np.zeros((len(schema.values), len(events)))
    values[0] = [event[3] for event in events]
    device, metric = (np.array([event[index] for event in events], np.uint64) for index in (1, 2))
    return T0 + round(first_s * S), Columns(ticks, device, metric, np.zeros(len(events)), values)


def batch_of(
    seq: int, events: Sequence[Event], *, source: int = 1, mark_s: float | None = None, **changed: int
) -> bytes:
    """A message. Without `mark_s` the source is as far as its first event."""
    t_first_ns, columns = columns_of(events)
    payload = encode_columns(COMPACT, columns)
    fields = {
        "schema": COMPACT.id,
        "n": len(events),
        "juris_mask": HERE,
        "policy_version": 1,
        "source": source,
        "seq": seq,
        "t_first_ns": t_first_ns,
        "watermark_ns": t_first_ns if mark_s is None else T0 + round(mark_s * S),
        "payload_len": len(payload),
    }
    return pack_batch(BatchHeader(**{**fields, **changed}), payload)


def empty_of(seq: int, mark_s: float, *, source: int = 1, flags: int = 4, **changed: int) -> bytes:
    """A message without events: by default only a watermark."""
    return batch_of(seq, [], source=source, mark_s=mark_s, flags=flags, **changed)


def take(stage: SenseStage, message: bytes, *, at_s: float = 1000.0) -> SenseOutcome:
    """At a time at which nothing of the test lies in the future."""
    return stage.take(message, now_ns=T0 + round(at_s * S), now_s=at_s)


def rows_of(outcomes: Iterable[SenseOutcome]) -> dict[tuple[float, int], dict[str, float]]:
    """(end of window in seconds after T0, device): features by name."""
    found = {}
    for outcome in outcomes:
        for batch in outcome.features:
            for device, row in zip(batch.device, batch.matrix, strict=True):
                found[(batch.window_end_ns - T0) / S, int(device)] = dict(zip(batch.names, row.tolist(), strict=True))
    return found


def pass_time(stage: SenseStage, from_s: float, to_s: float) -> list[SenseOutcome]:
    """Time passes while the stage listens."""
    return [
        stage.tick(now_ns=T0 + round(float(now_s) * S), now_s=float(now_s))
        for now_s in (*np.arange(from_s, to_s, 0.5), to_s)
    ]
