"""Does anything that was set aside as damaged wait for somebody? Counts as series, so that an alert can say so."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harch.base.clock import Clock, epoch_ms
from harch.base.set_aside import SUFFIX
from harch.sentinel.archive.folder import ArchiveFolder
from harch.sentinel.model.labels import METRIC_NAME, labels
from harch.sentinel.model.selection import SeriesBatch
from harch.sentinel.store.tenants import StoreFolder

SERIES = "harchos_sentinel_damaged_files"


class DamageFigures:
    """Counts what is on disk, of all tenants together: so the alert outlives a restart, and ends when it is deleted."""

    EVERY_S = 30.0

    def __init__(self, folder: StoreFolder, archive: ArchiveFolder, data: Path, clock: Clock) -> None:
        self._folder, self._archive, self._data, self._clock = folder, archive, data, clock

    def series(self) -> Sequence[SeriesBatch]:
        """Looks into folders, so it belongs into a thread."""
        counts = {
            "metrics": len(self._folder.refused)
            + sum(len(self._folder.store(name).damaged_files()) for name in self._folder.names()),
            **self._archive.damaged(),
            "state": sum(1 for _ in self._data.glob(f"*{SUFFIX}")),
        }
        now_ms = epoch_ms(self._clock.now())
        return [
            SeriesBatch(labels({METRIC_NAME: SERIES, "store": store}), (now_ms,), (float(count),))
            for store, count in counts.items()
        ]
