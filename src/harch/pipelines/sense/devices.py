"""Which number has this device? A bounded table of ids that only grows, so that a number never changes its meaning."""

# harch: pure

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from harch.base.errors import InvariantBroken
from harch.base.rejection import Rejection

ID_CHARS_MAX = 128


class DeviceTable:
    """Ids to dense numbers. `version` is how many there are: a longer table knows all that a shorter one knew."""

    def __init__(self, ids: Iterable[str], capacity: int, metrics: tuple[str, ...]) -> None:
        self.capacity = capacity
        self._numbers: dict[str, int] = {}
        self._metrics = {name: number for number, name in enumerate(metrics)}
        for name in ids:
            if isinstance(refused := self.add(name), Rejection):
                raise InvariantBroken("devices of checked settings fit into their table", refused.detail)

    @property
    def version(self) -> int:
        return len(self._numbers)

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(self._numbers)

    def device(self, name: str) -> int | None:
        return self._numbers.get(name)

    def metric(self, name: str) -> int | None:
        return self._metrics.get(name)

    def add(self, name: str) -> int | Rejection:
        """The number of a device, a new one if need be. An operator adds devices; an event never does."""
        if (known := self._numbers.get(name)) is not None:
            return known
        if not 0 < len(name) <= ID_CHARS_MAX or not name.isprintable():
            return Rejection("device", "name", f"`{name[:40]!r}` is not 1 to {ID_CHARS_MAX} printable characters")
        if len(self._numbers) >= self.capacity:
            return Rejection("device", "full", f"the table holds {self.capacity} devices", "raise `devices_max`")
        self._numbers[name] = len(self._numbers)
        return self._numbers[name]


class EnrichmentTable(Struct, frozen=True):
    """Numbers per device, joined to its features, which carry its `version`. A device without a row gets NaN."""

    version: int
    columns: tuple[str, ...]
    matrix: NDArray[np.float64]  # (devices, columns)

    @classmethod
    def of(
        cls, version: int, columns: tuple[str, ...], rows: Mapping[str, Mapping[str, float]], devices: DeviceTable
    ) -> EnrichmentTable:
        """Rows of devices that are not known are passed over: there will be no features to join them to."""
        matrix = np.full((devices.capacity, len(columns)), np.nan)
        for name, row in rows.items():
            if (number := devices.device(name)) is not None:
                matrix[number] = [row.get(column, np.nan) for column in columns]
        return cls(version, columns, matrix)
