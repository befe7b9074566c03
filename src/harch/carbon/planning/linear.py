"""How is a linear program written down and solved? As sparse triplets by HiGHS, imported at the first solve.

One thread, and nothing of it depends on time: the same program gives the same answer.
"""

# harch: pure

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from harch.carbon.planning.outlook import Floats

Index = NDArray[np.int64]
TIME_LIMIT_S = 30.0
OPTIONS = {"simplex_dual_edge_weight_strategy": 1}  # devex: two thirds of the time of exact weights on these plans


@dataclass
class SparseProgram:
    """Minimise cost over columns within bounds; every row lies within bounds too."""

    cost: list[Floats] = field(default_factory=list)
    low: list[Floats] = field(default_factory=list)
    high: list[Floats] = field(default_factory=list)
    row_low: list[Floats] = field(default_factory=list)
    row_high: list[Floats] = field(default_factory=list)
    triplets: list[tuple[Index, Index, Floats]] = field(default_factory=list)
    columns: int = 0
    rows: int = 0

    def add_columns(self, cost: Floats, low: Floats, high: Floats) -> Index:
        """Their numbers, in the shape of `cost`."""
        for store, values in ((self.cost, cost), (self.low, low), (self.high, high)):
            store.append(np.broadcast_to(values, cost.shape).ravel())
        first, self.columns = self.columns, self.columns + cost.size
        return np.arange(first, self.columns).reshape(cost.shape)

    def add_rows(self, low: Floats, high: Floats) -> Index:
        for store, values in ((self.row_low, low), (self.row_high, high)):
            store.append(np.broadcast_to(values, low.shape).ravel())
        first, self.rows = self.rows, self.rows + low.size
        return np.arange(first, self.rows).reshape(low.shape)

    def enter(self, rows: Index, columns: Index, values: Floats | float) -> None:
        shape = np.broadcast_shapes(rows.shape, columns.shape)
        row, column, value = (np.broadcast_to(part, shape).ravel() for part in (rows, columns, np.asarray(values)))
        self.triplets.append((row, column, value.astype(np.float64)))


@dataclass(frozen=True, eq=False)
class Solved:
    """Values of the columns and duals of the rows, or why there are none."""

    values: Floats = field(default_factory=lambda: np.zeros(0))
    duals: Floats = field(default_factory=lambda: np.zeros(0))
    failure: str = ""


def solve(
    program: SparseProgram, *, time_limit_s: float = TIME_LIMIT_S, options: Mapping[str, str | int] = OPTIONS
) -> Solved:
    """Never raises for what the program says: a status that is not optimal is reported in `failure`."""
    highspy = _load_highs()
    if highspy is None:
        return Solved(failure="HiGHS is not installed: pip install 'harch[energy]'")
    rows, columns, values = (np.concatenate(parts) for parts in zip(*program.triplets, strict=True))
    order = np.lexsort((rows, columns))
    model = highspy.HighsLp()
    model.num_col_, model.num_row_ = program.columns, program.rows
    model.col_cost_ = np.concatenate(program.cost)
    model.col_lower_, model.col_upper_ = np.concatenate(program.low), np.concatenate(program.high)
    model.row_lower_, model.row_upper_ = np.concatenate(program.row_low), np.concatenate(program.row_high)
    model.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    model.a_matrix_.start_ = np.searchsorted(columns[order], np.arange(program.columns + 1)).astype(np.int32)
    model.a_matrix_.index_ = rows[order].astype(np.int32)
    model.a_matrix_.value_ = values[order]
    solver = highspy.Highs()
    for option, value in {"output_flag": False, "threads": 1, "time_limit": time_limit_s, **options}.items():
        solver.setOptionValue(option, value)
    if solver.passModel(model) == highspy.HighsStatus.kError:
        return Solved(failure="HiGHS rejected the program")
    solver.run()
    status = solver.getModelStatus()
    if status != highspy.HighsModelStatus.kOptimal:
        return Solved(failure=f"HiGHS ended with `{solver.modelStatusToString(status)}`")
    found = solver.getSolution()
    return Solved(np.array(found.col_value), np.array(found.row_dual))


def _load_highs() -> ModuleType | None:
    try:
        import highspy
    except ImportError:
        return None
    module: ModuleType = highspy
    return module
