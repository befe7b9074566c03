"""How much may one tenant send and keep? Every limit has a code with which what is beyond it is refused."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one tenant. Times are milliseconds; None means no limit."""

    body_bytes_max: int = 32 * MIB  # compressed
    request_bytes_max: int = 64 * MIB  # what a body may unpack to
    request_samples_max: int = 1_000_000
    series_max: int = 1_000_000  # in the head: series that had samples since the last cut
    samples_per_s_max: float | None = None
    samples_burst_max: int = 1_000_000
    labels_per_series_max: int = 64
    label_names_max: int = 4_096  # different names over all series
    label_name_bytes_max: int = 1_024
    label_value_bytes_max: int = 4_096
    out_of_order_ms: int | None = 3_600_000  # how far behind the newest sample of its series; None: any
    age_ms_max: int | None = None  # how old by the store's own clock
    ahead_ms_max: int | None = None
    samples_in_memory_max: int = 64_000_000  # 16 bytes each; beyond it writes wait for a cut
    histograms_in_memory_max: int = 1_000_000
    exemplars_max: int = 100_000  # of all series; the oldest go
    metadata_max: int = 20_000  # metrics of which type, help and unit are kept
