"""What may an operator change about logs and traces? The tables `[logs]` and `[traces]` of SENTINEL's settings."""

from __future__ import annotations

import msgspec

from harch.sentinel.archive.limits import MIB, ArchiveSettings, Keeping, LogLimits, SpanLimits
from harch.sentinel.model.durations import parse_duration_ms


class _Kept(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    keep: str = "15d"  # empty: for ever
    size_bytes_max: int | None = None
    memory_bytes_max: int = 256 * MIB
    flush_bytes: int = 64 * MIB
    flush_after: str = "30m"
    free_bytes_min: int = 256 * MIB

    def keeping(self) -> Keeping:
        if not 0 < self.flush_bytes <= self.memory_bytes_max:
            raise ValueError("`flush_bytes` is above 0 and no more than `memory_bytes_max`")
        return Keeping(
            keep_ns=parse_duration_ms(self.keep) * 1_000_000 if self.keep else None,
            size_bytes_max=self.size_bytes_max,
            flush_bytes=self.flush_bytes,
            flush_after_s=parse_duration_ms(self.flush_after) / 1000,
            memory_bytes_max=self.memory_bytes_max,
            free_bytes_min=self.free_bytes_min,
        )


class LogsTable(_Kept, frozen=True, forbid_unknown_fields=True):
    limits: LogLimits = LogLimits()


class TracesTable(_Kept, frozen=True, forbid_unknown_fields=True):
    limits: SpanLimits = SpanLimits()


def archive_settings(logs: LogsTable, traces: TracesTable) -> ArchiveSettings:
    """Raises ValueError for figures that make no sense together."""
    return ArchiveSettings(logs.limits, logs.keeping(), traces.limits, traces.keeping())
