"""What does THINK hand over? Outputs with the version that made them, answers to requests, and rows that got none."""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from harch.base.errors import HarchError
from harch.base.rejection import Rejection
from harch.pipelines.think.models import VersionRef
from harch.pipelines.think.sessions import Array


class Scored(Struct, frozen=True, kw_only=True, eq=False):
    """Outputs of one version for some rows of a feature batch; `rows` are their places in it."""

    ref: VersionRef
    source: Any
    rows: NDArray[np.intp]
    devices: NDArray[np.generic]
    outputs: dict[str, Array]


class Dropped(Struct, frozen=True, kw_only=True, eq=False):
    """Rows of a feature batch that were not scored, and why. They are counted, and never lost without a word."""

    model: str
    source: Any
    rows: NDArray[np.intp]
    reason: Rejection


class Answer(Struct, frozen=True, kw_only=True, eq=False):
    """What became of one inference request: tensors, or the error to send."""

    ticket: Any
    ref: VersionRef | None = None
    tensors: dict[str, Array] = field(default_factory=dict)
    error: HarchError | None = None


class Thought(Struct, kw_only=True, eq=False):
    """The outcome of one step."""

    scored: list[Scored] = field(default_factory=list)
    dropped: list[Dropped] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)


class RowCounters(Struct):
    """Rows of one model. Every row that came in is waiting, or in one of the others."""

    came: int = 0
    scored: int = 0
    incomplete: int = 0  # a feature was NaN, infinite or too large
    refused: int = 0  # queue full, columns missing, model paused
    late: int = 0
    failed: int = 0  # no version could score it
    unshadowed: int = 0  # scored, but its shadow had no time for it
