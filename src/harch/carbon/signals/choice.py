"""Which of several readings does a decision rest on, and why on none of the others? Pure: candidates in, one state out.

The first source of the order wins unless it is stale, stuck or contradicted. Sources vote: one that a larger group
contradicts is not used. The model is one voice too, but it knows only the yearly mean: a single live source whose own
past agrees with the model is believed against it, so a windy night may be ten times cleaner than the year.
"""

# harch: pure

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from harch.base.rejection import Rejection
from harch.carbon.signals.quality import (
    HISTORY_MIN,
    NO_HISTORY,
    SampleHistory,
    SignalLimits,
    agree,
    looks_like_lbs,
    median,
    staleness,
    stuckness,
)
from harch.carbon.values import CarbonIntensity, Quantity, Reading, Signal

# Sources differ in method by tens of percent; five times is another thing.
PEER_FACTOR = 5.0
PEER_MARGIN_G_PER_KWH = 50.0


class Quality(StrEnum):
    """How good is what the decision rests on?"""

    FIRST = "first"  # the first source of the order
    FALLBACK = "fallback"  # a later one, because the ones before it could not be used
    DISPUTED = "disputed"  # sources contradict each other and none is outvoted: the worse value is used
    MISSING = "missing"  # no source has a value


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalCandidate:
    """What one source of the order has to offer: its last good reading, or the reasons why there is none."""

    source: str
    reading: Reading[Quantity] | None
    problems: tuple[Rejection, ...] = ()
    history: SampleHistory = NO_HISTORY
    is_model: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalState:
    """One signal of one hub, now: the reading in use, its quality, and why other sources are not used."""

    signal: Signal
    reading: Reading[Quantity] | None
    quality: Quality
    age_s: float
    not_used: tuple[Rejection, ...]

    def __str__(self) -> str:
        if self.reading is None:
            return f"{self.signal}: no value ({'; '.join(f'{no.subject}: {no.detail}' for no in self.not_used)})"
        return f"{self.signal}: {self.reading} [{self.quality}, {self.age_s:.0f} s old]"

    def as_plain(self) -> dict[str, object]:
        return {
            "signal": str(self.signal),
            "reading": None if self.reading is None else self.reading.as_plain(),
            "quality": str(self.quality),
            "age_s": self.age_s,
            "not_used": [
                {"source": no.subject, "rule": no.rule, "detail": no.detail, "nearest_fix": no.nearest_fix}
                for no in self.not_used
            ],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class HubSignals:
    """All signals of one hub at one moment: what a decision rests on, as a value."""

    hub: str
    taken_at: datetime
    states: Mapping[Signal, SignalState]

    def reading(self, signal: Signal) -> Reading[Quantity] | None:
        state = self.states.get(signal)
        return None if state is None else state.reading

    def as_plain(self) -> dict[str, object]:
        return {
            "hub": self.hub,
            "taken_at": self.taken_at.isoformat(),
            "signals": {str(signal): state.as_plain() for signal, state in self.states.items()},
        }


Usable = list[tuple[SignalCandidate, Reading[Quantity]]]


def choose(
    signal: Signal, candidates: tuple[SignalCandidate, ...], *, now: datetime, limits: SignalLimits
) -> SignalState:
    """The state of a signal from the candidates in the order of their sources."""
    not_used: list[Rejection] = []
    usable: Usable = []
    for candidate in candidates:
        worn = _worn(candidate, now, limits)
        not_used += [*candidate.problems, *worn]
        if candidate.reading is None:
            if not candidate.problems:
                not_used.append(Rejection(candidate.source, "none", "no value yet"))
        elif not worn:
            usable.append((candidate, candidate.reading))
    usable, outvoted, disputed = _vote(usable, limits)
    not_used += outvoted
    if not usable:
        return SignalState(signal=signal, reading=None, quality=Quality.MISSING, age_s=0.0, not_used=tuple(not_used))
    chosen, reading = usable[0]
    not_used += [Rejection(other.source, "order", f"ranked after {chosen.source}") for other, _ in usable[1:]]
    quality = Quality.FIRST if chosen.source == candidates[0].source else Quality.FALLBACK
    return SignalState(
        signal=signal,
        reading=reading,
        quality=Quality.DISPUTED if disputed else quality,
        age_s=max(0.0, reading.age(now).total_seconds()),
        not_used=tuple(not_used),
    )


def _worn(candidate: SignalCandidate, now: datetime, limits: SignalLimits) -> list[Rejection]:
    """Is it too old, or has it been the same for too long?"""
    if candidate.reading is None:
        return []
    stale = staleness(candidate.reading, now=now, limits=limits)
    stuck = stuckness(candidate.reading, history=candidate.history, limits=limits)
    return [found for found in (stale, stuck) if found is not None]


def _vote(usable: Usable, limits: SignalLimits) -> tuple[Usable, list[Rejection], bool]:
    """Who is contradicted by more sources than support it? Also the ones in another unit than the rest."""
    usable, rejected = _same_currency(usable)
    in_lbs = [index for index in range(len(usable)) if _is_in_lbs(usable, index)]
    rejected += [
        Rejection(usable[index][0].source, "unit", "is 2.205 times the value of other sources: probably lbs/MWh")
        for index in in_lbs
    ]
    usable = [entry for index, entry in enumerate(usable) if index not in in_lbs]
    if len(usable) < 2 or limits.odd_factor is None:
        return usable, rejected, False
    support = [sum(_supports(one, other) for other in usable) for one in usable]  # each counts itself
    if max(support) * 2 <= len(usable):
        return _settle_tie(usable, rejected, limits)
    outvoted = [index for index, votes in enumerate(support) if votes * 2 < len(usable)]
    rejected += [_contradicted(usable, index) for index in outvoted]
    return [entry for index, entry in enumerate(usable) if index not in outvoted], rejected, False


def _settle_tie(
    usable: Usable, rejected: list[Rejection], limits: SignalLimits
) -> tuple[Usable, list[Rejection], bool]:
    """As many say one thing as another. A live source with a sound past is believed, then the model, then the worse."""
    model = next((entry for entry in usable if entry[0].is_model), None)
    rivals = usable
    if model is not None:
        sound = [entry for entry in usable if entry is not model and _past_agrees(entry[0], model[1])]
        doubted = [index for index, entry in enumerate(usable) if entry not in sound and entry is not model]
        rejected += [_contradicted(usable, index) for index in doubted]
        if all(_supports(sound[0], other) for other in sound):
            return [*sound, model], rejected, False
        rejected.append(Rejection(model[0].source, "order", "ranked after the disputed sources"))
        rivals = sound
    by_number = sorted(rivals, key=lambda entry: entry[1].value.number, reverse=limits.worse == "high")
    rejected += [
        Rejection(entry[0].source, "disputed", f"reports {entry[1].value.number:.4g}; the higher value is used")
        for entry in by_number[1:]
    ]
    return by_number[:1], rejected, True


def _same_currency(usable: Usable) -> tuple[Usable, list[Rejection]]:
    """Values of another kind than the first source's cannot be compared with it: a price in another currency."""
    kept = [entry for entry in usable if entry[1].value.kind == usable[0][1].value.kind]
    others = [entry for entry in usable if entry not in kept]
    return kept, [
        Rejection(entry[0].source, "kind", f"{entry[1].value} is a different kind of quantity") for entry in others
    ]


def _is_in_lbs(usable: Usable, index: int) -> bool:
    """Judged by live sources only: an hour may well be 2.2 times the yearly mean that the model knows."""
    own = usable[index][1].value
    others = [entry[1].value.number for at, entry in enumerate(usable) if at != index and not entry[0].is_model]
    return isinstance(own, CarbonIntensity) and bool(others) and looks_like_lbs(own.number, median(others))


def _supports(one: tuple[SignalCandidate, Reading[Quantity]], other: tuple[SignalCandidate, Reading[Quantity]]) -> bool:
    return agree(one[1].value.number, other[1].value.number, PEER_FACTOR, PEER_MARGIN_G_PER_KWH)


def _past_agrees(candidate: SignalCandidate, model: Reading[Quantity]) -> bool:
    numbers = candidate.history.numbers()
    return len(numbers) >= HISTORY_MIN and agree(median(numbers), model.value.number, PEER_FACTOR, 0.0)


def _contradicted(usable: Usable, index: int) -> Rejection:
    candidate, reading = usable[index]
    others = ", ".join(
        f"{entry[0].source} {entry[1].value.number:.4g}" for at, entry in enumerate(usable) if at != index
    )
    return Rejection(
        candidate.source,
        "contradicted",
        f"reports {reading.value.number:.4g}, others report {others}",
        "check the source",
    )
