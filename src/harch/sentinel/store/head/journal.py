"""What does the head tell the log? Everything it took, in the order in which it took it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from harch.sentinel.model.labels import Matcher, MetricMetadata
from harch.sentinel.model.selection import Exemplar
from harch.sentinel.store.bytes_kernels import Array


class HeadJournal(Protocol):
    """Called with the head's lock held, so nothing here may wait: records are put together, and written later."""

    def samples(self, rows: Array, keys: Array, series: Array, columns: tuple[Array, Array, Array]) -> None:
        """Samples that were taken: series, and (timestamps, bits, starts or nothing)."""
        ...

    def histogram(self, rows: Array, keys: Array, sid: int, timestamp: int, start: int, encoded: bytes) -> None: ...

    def exemplars(self, rows: Array, keys: Array, entries: Sequence[tuple[int, Exemplar]]) -> None: ...

    def metadata(self, metric: str, known: MetricMetadata) -> None: ...

    def cut(self, rows: Array, keys: Array, until: int, spared: Sequence[int]) -> int:
        """A cut of all series but those spared. Returns the first segment that holds nothing of before it."""
        ...

    def forget(self, idle_since: int) -> None: ...

    def erase(
        self, rows: Array, keys: Array, series: Array, matchers: Sequence[Matcher], span: tuple[int, int]
    ) -> None: ...


class NoJournal:
    """For heads whose content comes from a log or may be lost."""

    def samples(self, rows: Array, keys: Array, series: Array, columns: tuple[Array, Array, Array]) -> None:
        pass

    def histogram(self, rows: Array, keys: Array, sid: int, timestamp: int, start: int, encoded: bytes) -> None:
        pass

    def exemplars(self, rows: Array, keys: Array, entries: Sequence[tuple[int, Exemplar]]) -> None:
        pass

    def metadata(self, metric: str, known: MetricMetadata) -> None:
        pass

    def cut(self, rows: Array, keys: Array, until: int, spared: Sequence[int]) -> int:
        return 0

    def forget(self, idle_since: int) -> None:
        pass

    def erase(
        self, rows: Array, keys: Array, series: Array, matchers: Sequence[Matcher], span: tuple[int, int]
    ) -> None:
        pass
