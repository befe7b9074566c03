"""How is a linear program written down and solved? Blocks of columns and rows, handed to HiGHS as sparse arrays.

HiGHS comes with the extra `energy` and is imported at the first solve. One thread, and nothing of it depends on time:
the same program gives the same answer.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import ModuleType

import numpy as np
from numpy.typing import ArrayLike, NDArray

from harch.energy.steps import Array

Index = NDArray[np.int32]
TIME_LIMIT_S = 45.0
PRESOLVE_COLUMNS_MIN = 2000  # below it, simplifying a program takes longer than solving it


@dataclass(slots=True)
class LinearProgram:
    """Minimise cost over columns within bounds, with rows within bounds. Filled block by block."""

    _costs: list[Array] = field(default_factory=list)
    _lowers: list[Array] = field(default_factory=list)
    _uppers: list[Array] = field(default_factory=list)
    _row_lowers: list[Array] = field(default_factory=list)
    _row_uppers: list[Array] = field(default_factory=list)
    _entries: list[tuple[Index, Index, Array]] = field(default_factory=list)
    column_count: int = 0
    row_count: int = 0

    def columns(self, count: int, *, cost: ArrayLike = 0.0, low: ArrayLike = 0.0, high: ArrayLike = np.inf) -> Index:
        """New columns; their numbers, to be used in rows."""
        for store, values in ((self._costs, cost), (self._lowers, low), (self._uppers, high)):
            store.append(np.broadcast_to(np.asarray(values, dtype=np.float64), (count,)))
        self.column_count += count
        return np.arange(self.column_count - count, self.column_count, dtype=np.int32)

    def rows(self, count: int, *, low: ArrayLike = -np.inf, high: ArrayLike = np.inf) -> Index:
        for store, values in ((self._row_lowers, low), (self._row_uppers, high)):
            store.append(np.broadcast_to(np.asarray(values, dtype=np.float64), (count,)))
        self.row_count += count
        return np.arange(self.row_count - count, self.row_count, dtype=np.int32)

    def entries(self, rows: Index, columns: Index, values: ArrayLike) -> None:
        """Coefficients, one per pair; a single row or value holds for all columns."""
        pairs = (len(columns),)
        numbers = np.broadcast_to(np.asarray(values, dtype=np.float64), pairs)
        self._entries.append((np.broadcast_to(rows, pairs).astype(np.int32), columns, numbers))

    def solve(self, *, time_limit_s: float = TIME_LIMIT_S) -> Solution:
        """Never raises for what the program says: a status that is not optimal is told in `failure`."""
        highspy = _load_highs()
        if highspy is None:
            return Solution(failure="HiGHS is not installed: pip install 'harch[energy]'")
        model = highspy.Highs()
        model.setOptionValue("output_flag", False)
        model.setOptionValue("threads", 1)
        model.setOptionValue("time_limit", time_limit_s)
        if self.column_count < PRESOLVE_COLUMNS_MIN:
            model.setOptionValue("presolve", "off")
        if model.passModel(self._as_highs(highspy)) == highspy.HighsStatus.kError:
            return Solution(failure="HiGHS does not take the program")
        model.run()
        status = model.getModelStatus()
        if status != highspy.HighsModelStatus.kOptimal:
            return Solution(failure=f"HiGHS ended with `{model.modelStatusToString(status)}`")
        found = model.getSolution()
        return Solution(np.array(found.col_value), np.array(found.row_dual))

    def _as_highs(self, highspy: ModuleType) -> object:
        rows, columns, values = (np.concatenate(parts) for parts in zip(*self._entries, strict=True))
        order = np.lexsort((columns, rows))
        program = highspy.HighsLp()
        program.num_col_, program.num_row_ = self.column_count, self.row_count
        program.col_cost_ = np.concatenate(self._costs)
        program.col_lower_, program.col_upper_ = np.concatenate(self._lowers), np.concatenate(self._uppers)
        program.row_lower_, program.row_upper_ = np.concatenate(self._row_lowers), np.concatenate(self._row_uppers)
        program.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        program.a_matrix_.start_ = np.searchsorted(rows[order], np.arange(self.row_count + 1)).astype(np.int32)
        program.a_matrix_.index_ = columns[order]
        program.a_matrix_.value_ = values[order]
        return program


@dataclass(frozen=True, slots=True)
class Solution:
    """Values of columns and duals of rows (what one unit more of the right-hand side costs), or why there are none."""

    values: Array = field(default_factory=lambda: np.zeros(0))
    duals: Array = field(default_factory=lambda: np.zeros(0))
    failure: str = ""


def _load_highs() -> ModuleType | None:
    try:
        import highspy
    except ImportError:
        return None
    module: ModuleType = highspy
    return module
