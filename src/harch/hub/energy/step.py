"""What happened in a step? Gathered while it runs, and one record when it is over.

The running step is gathered in memory. A crash costs its readings up to then; the record is made from those after.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from msgspec import Struct

REMEMBER = timedelta(days=40)  # in memory: a month of peaks, a week of loads


class StepRecord(Struct, frozen=True, kw_only=True):
    """One step that is over. Emissions are sums of the month from `since` on; `per_mwh` is what a source told."""

    at: datetime
    step_s: int
    load_kwh: float
    own_kwh: float
    import_kwh: float
    agreements_kwh: float
    charge_kwh: float
    discharge_kwh: float
    stored_kwh: float
    rule_stored_kwh: float
    grid_g_per_kwh: float
    per_mwh: float | None
    since: datetime
    emitted_kg: float
    rule_emitted_kg: float
    planner: str

    @property
    def bought_kw(self) -> float:
        return (self.import_kwh + self.agreements_kwh) / (self.step_s / 3600)


@dataclass(slots=True)
class Gathered:
    """Means of one running step."""

    start: datetime
    _load_kw: list[float] = field(default_factory=list)
    _own_kw: list[float] = field(default_factory=list)
    _g_per_kwh: list[float] = field(default_factory=list)
    _per_mwh: list[float] = field(default_factory=list)

    def note(self, load_kw: float, own_kw: float, g_per_kwh: float | None, per_mwh: float | None) -> None:
        self._load_kw.append(max(0.0, load_kw))
        self._own_kw.append(max(0.0, own_kw))
        if g_per_kwh is not None:
            self._g_per_kwh.append(g_per_kwh)
        if per_mwh is not None:
            self._per_mwh.append(per_mwh)

    @property
    def load_kw(self) -> float:
        return _mean(self._load_kw) or 0.0

    @property
    def own_kw(self) -> float:
        return _mean(self._own_kw) or 0.0

    @property
    def g_per_kwh(self) -> float | None:
        return _mean(self._g_per_kwh)

    @property
    def per_mwh(self) -> float | None:
        return _mean(self._per_mwh)


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None
