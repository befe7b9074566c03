"""What does the operator say? Values set by hand, each with an end: a forgotten one must not rule forever."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from harch.base.clock import Clock
from harch.base.errors import HarchError
from harch.carbon.signals.sites import SignalSite
from harch.carbon.units import quantity
from harch.carbon.values import Evidence, Quantity, Reading, Signal

VALUES_MAX = 1000
VALID_MAX = timedelta(days=400)  # a year's contract and some weeks to renew it


@dataclass(frozen=True, slots=True, kw_only=True)
class ManualValue:
    """One value. `place` is a hub or a grid zone; a hub's value goes before its zone's."""

    place: str
    signal: Signal
    value: Quantity
    set_at: datetime
    valid_until: datetime
    note: str = ""
    evidence: Evidence = Evidence.ESTIMATED


@dataclass(slots=True, kw_only=True)
class Manual:
    """Answers from memory; the hub keeps what is set while it runs, the carbon file what is set for good."""

    name: str = "manual"
    provides: frozenset[Signal] = frozenset(Signal)
    by_zone: bool = False
    _values: dict[tuple[str, Signal], ManualValue] = field(default_factory=dict)

    def set(self, value: ManualValue) -> None:
        """Sets or replaces a value. Raises HarchError E0201 for one that has no end, or not a near one."""
        if not timedelta(0) < value.valid_until - value.set_at <= VALID_MAX:
            raise HarchError(
                "E0201",
                f"a value of `{value.signal}` set manually must expire within {VALID_MAX.days} days",
                hint="give an expiry time in the future",
            )
        if len(self._values) >= VALUES_MAX and (value.place, value.signal) not in self._values:
            raise HarchError("E0201", f"{VALUES_MAX} manual values are already set", hint="clear some of them")
        self._values[value.place, value.signal] = value

    def clear(self, place: str, signal: Signal, *, now: datetime) -> None:
        """Ends a value now. It is still reported, as one that has ended, so that nobody goes on resting on it."""
        if (value := self._values.get((place, signal))) is not None:
            self._values[place, signal] = replace(value, valid_until=min(now, value.valid_until))

    async def fetch(self, site: SignalSite, clock: Clock) -> list[Reading[Quantity]]:
        now = clock.now()
        return [self._reading(value, now) for signal in Signal if (value := self._in_force(site, signal, now))]

    def _in_force(self, site: SignalSite, signal: Signal, now: datetime) -> ManualValue | None:
        values = [self._values.get((place, signal)) for place in (site.hub, site.grid_zone)]
        known = [value for value in values if value is not None]
        return next((value for value in known if now < value.valid_until), known[0] if known else None)

    def _reading(self, value: ManualValue, now: datetime) -> Reading[Quantity]:
        return Reading(
            signal=value.signal,
            value=value.value,
            at=min(now, value.valid_until),  # an operator's word is about every moment until its end
            source=self.name,
            evidence=value.evidence,
            received_at=now,
            valid_until=value.valid_until,
            note=f"set {value.set_at:%Y-%m-%d %H:%M} UTC{'; ' if value.note else ''}{value.note}",
        )


def manual_value(
    place: str, signal: Signal, number: float, unit: str, *, set_at: datetime, valid_until: datetime, note: str = ""
) -> ManualValue:
    """From a number and its unit. Raises KindsMixed for a unit of something else."""
    return ManualValue(
        place=place,
        signal=signal,
        value=quantity(signal, number, unit),
        set_at=set_at,
        valid_until=valid_until,
        note=note,
    )
