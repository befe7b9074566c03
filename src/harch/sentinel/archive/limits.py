"""How many lines and spans may a tenant send, keep and read? What an operator decides; every limit has its code."""

# harch: pure

from __future__ import annotations

from dataclasses import dataclass

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class ArchivePolicy:
    """How long files are kept, and when they are written and merged."""

    keep_ns: int | None = 15 * 86_400 * 10**9  # None: forever
    size_bytes_max: int | None = None  # of all files of a tenant; the oldest go first
    flush_bytes: int = 64 * MIB  # of rows in memory: more are written into files
    flush_after_s: float = 1800.0  # rows wait in memory no longer than that
    memory_bytes_max: int = 256 * MIB  # of one tenant; beyond it writes are refused for a moment
    merge_bytes_max: int = 128 * MIB  # raw bytes that merging puts into one file
    free_bytes_min: int = 256 * MIB  # what merging leaves free on the disk


@dataclass(frozen=True, slots=True)
class LogLimits:
    """Limits of one tenant's lines. None means no limit."""

    line_bytes_max: int = 256 * 1024
    lines_per_s_max: float | None = None
    bytes_per_s_max: float | None = None
    lines_burst_max: int = 1_000_000
    bytes_burst_max: int = 256 * MIB
    streams_max: int = 100_000  # different label sets with lines in memory
    labels_per_stream_max: int = 32
    label_name_bytes_max: int = 1_024
    label_value_bytes_max: int = 2_048
    metadata_per_line_max: int = 64
    metadata_bytes_max: int = 16 * 1024  # of one line
    scanned_bytes_max: int = 64 << 30  # that one query may look at


@dataclass(frozen=True, slots=True)
class SpanLimits:
    """Limits of one tenant's spans."""

    span_bytes_max: int = 256 * 1024
    spans_per_s_max: float | None = None
    spans_burst_max: int = 1_000_000
    attributes_per_span_max: int = 128
    attribute_name_bytes_max: int = 1_024
    attribute_value_bytes_max: int = 32 * 1024
    events_per_span_max: int = 128
    links_per_span_max: int = 128
    scanned_spans_max: int = 100_000_000


@dataclass(frozen=True, slots=True)
class ArchiveSettings:
    logs: LogLimits = LogLimits()
    logs_policy: ArchivePolicy = ArchivePolicy()
    spans: SpanLimits = SpanLimits()
    spans_policy: ArchivePolicy = ArchivePolicy()
    memory_bytes_max: int = 1024 * MIB  # of all tenants' lines and spans together
