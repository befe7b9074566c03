"""What does THINK read? Columns of numbers by name, one row for each device and window, and what to do about holes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from harch.base.rejection import Rejection
from harch.pipelines.think.sessions import Array
from harch.pipelines.think.settings import PRIORITY_DEFAULT


class Features(Struct, frozen=True, kw_only=True, eq=False):
    """A batch of feature rows. `source` comes back with every output, to acknowledge by; THINK does not look at it."""

    columns: Mapping[str, NDArray[Any]]
    devices: NDArray[np.generic]
    source: Any = None
    priority: int = PRIORITY_DEFAULT
    deadline_s: float | None = None

    @property
    def rows(self) -> int:
        return len(self.devices)


def matrix_of(features: Features, names: tuple[str, ...]) -> tuple[Array, NDArray[np.bool_]] | Rejection:
    """The columns as float32 rows, and which rows are complete: models never see NaN, infinity or too large numbers."""
    missing = [name for name in names if name not in features.columns]
    if missing:
        have = ", ".join(list(features.columns)[:8])
        return Rejection("features", "columns", f"`{missing[0]}` is missing; there are {have}", "mend `inputs`")
    matrix = np.empty((features.rows, len(names)), dtype=np.float32)
    with np.errstate(over="ignore"):  # what does not fit into float32 becomes infinite, and its row incomplete
        for index, name in enumerate(names):
            column = features.columns[name]
            if column.shape != (features.rows,):
                detail = f"`{name}` has shape {list(column.shape)}, and there are {features.rows} devices"
                return Rejection("features", "columns", detail, "give one value for each device")
            matrix[:, index] = column
    return matrix, np.asarray(np.isfinite(matrix).all(axis=1))
