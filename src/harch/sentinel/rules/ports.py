"""What do rules need of others? Queries, a place for samples, and somebody who takes alerts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from harch.sentinel.model.labels import Labels

Vector = list[tuple[dict[str, str], float]]


class Sample(Struct, frozen=True):
    """One value of a series. `STALE` of the model as value says that the series ended."""

    labels: Labels
    at_ms: int
    value: float


class Evaluate(Protocol):
    """An instant query. A scalar is one element without labels. Raises HarchError when the query fails."""

    def __call__(self, expression: str, at_ms: int, /) -> Vector: ...


class Append(Protocol):
    """Stores samples of one rule at once. Raises HarchError when they are refused; nothing of them is stored then."""

    def __call__(self, samples: Sequence[Sample], /) -> None: ...


class CheckExpression(Protocol):
    """Parses an expression. Raises HarchError with what is wrong in it."""

    def __call__(self, expression: str, /) -> object: ...


class ForStates(Protocol):
    """The last ALERTS_FOR_STATE sample of each series of an alert since `since_ms`.

    Series whose last sample is a stale marker are left out: that alert was over.
    """

    def __call__(self, alertname: str, since_ms: int, /) -> Sequence[Sample]: ...
