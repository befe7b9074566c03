"""How is the program of a purchase plan written down? In blocks of columns and rows, for the planner's one solver."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike

from harch.carbon.planning.linear import Index, Program, Solved, solve
from harch.energy.steps import Array

TIME_LIMIT_S = 45.0
PRESOLVE_COLUMNS_MIN = 2000  # below it, simplifying a program takes longer than solving it

Solution = Solved  # duals of rows are what one unit more of the right-hand side costs

__all__ = ["Index", "LinearProgram", "Solution"]


@dataclass(slots=True)
class LinearProgram:
    """Minimise cost over columns within bounds, with rows within bounds. Filled block by block."""

    _program: Program = field(default_factory=Program)

    def columns(self, count: int, *, cost: ArrayLike = 0.0, low: ArrayLike = 0.0, high: ArrayLike = np.inf) -> Index:
        """New columns; their numbers, to be used in rows."""
        return self._program.add_columns(_filled(count, cost), _filled(count, low), _filled(count, high))

    def rows(self, count: int, *, low: ArrayLike = -np.inf, high: ArrayLike = np.inf) -> Index:
        return self._program.add_rows(_filled(count, low), _filled(count, high))

    def entries(self, rows: Index, columns: Index, values: ArrayLike) -> None:
        """Coefficients, one per pair; a single row or value holds for all columns."""
        self._program.enter(rows, columns, np.asarray(values, dtype=np.float64))

    def solve(self, *, time_limit_s: float = TIME_LIMIT_S) -> Solution:
        """Never raises for what the program says: a status that is not optimal is told in `failure`."""
        small = self._program.columns < PRESOLVE_COLUMNS_MIN
        return solve(self._program, time_limit_s=time_limit_s, options={"presolve": "off"} if small else {})


def _filled(count: int, values: ArrayLike) -> Array:
    return np.broadcast_to(np.asarray(values, dtype=np.float64), (count,))
