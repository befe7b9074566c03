"""Which version of a model answers whom? The life of versions as a state machine: events in, new state and reasons out.

    loaded -> shadow -> canary -> active -> retired

A step may skip stations, but not go back; anything may be retired. One version is active and at most one is canary. The
version that was active before stays warm until the next one is promoted, so that going back takes no loading.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from harch.base.errors import HarchError

SHADOWS_MAX = 2  # each scores every row once more


class State(StrEnum):
    LOADED = "loaded"
    SHADOW = "shadow"
    CANARY = "canary"
    ACTIVE = "active"
    RETIRED = "retired"


_ORDER = {state: rank for rank, state in enumerate(State)}


class Change(Struct, frozen=True, kw_only=True):
    """One version went from one state to another. `by_itself`: a rule did it, not a person."""

    version: str
    before: State | None
    after: State
    reason: str
    by_itself: bool = False


class Rollout(Struct, frozen=True, kw_only=True):
    """All versions of one model. `previous` is the warm one to return to; a model without `active` answers nothing."""

    model: str
    states: dict[str, State] = {}
    previous: str | None = None

    @property
    def active(self) -> str | None:
        return self._first(State.ACTIVE)

    @property
    def canary(self) -> str | None:
        return self._first(State.CANARY)

    @property
    def shadows(self) -> tuple[str, ...]:
        return tuple(version for version, state in self.states.items() if state is State.SHADOW)

    @property
    def warm(self) -> frozenset[str]:
        """Versions whose sessions must stay in memory."""
        kept = {version for version, state in self.states.items() if state is not State.RETIRED}
        return frozenset(kept if self.previous is None else kept | {self.previous})

    def _first(self, wanted: State) -> str | None:
        return next((version for version, state in self.states.items() if state is wanted), None)


def loaded(rollout: Rollout, version: str) -> tuple[Rollout, list[Change]]:
    """A session for this version is ready. A retired version may be loaded again, and starts from the beginning."""
    before = rollout.states.get(version)
    if before not in (None, State.RETIRED):
        raise _refused(rollout, version, f"is {before} already", "give the new file a version of its own")
    previous = None if rollout.previous == version else rollout.previous
    change = Change(version=version, before=before, after=State.LOADED, reason="loaded")
    return replace(_with(rollout, {version: State.LOADED}), previous=previous), [change]


def promote(rollout: Rollout, version: str, to: State, *, reason: str = "asked for") -> tuple[Rollout, list[Change]]:
    """Takes a version forward. Who was active before becomes `previous`; who was canary before is loaded again."""
    before = rollout.states.get(version)
    if before is None or before is State.RETIRED:
        raise _refused(rollout, version, "is not loaded", "load it first")
    if to is State.RETIRED:
        return retire(rollout, version, reason=reason)
    if _ORDER[to] <= _ORDER[before]:
        raise _refused(rollout, version, f"is {before} and cannot become {to}", "steps go forward only")
    if to is State.SHADOW and len(rollout.shadows) >= SHADOWS_MAX:
        raise _refused(rollout, version, f"would be shadow number {SHADOWS_MAX + 1}", "retire or promote one first")
    if to is not State.ACTIVE and rollout.active is None:
        raise _refused(
            rollout, version, f"cannot be {to} of a model without active version", "activate a version first"
        )
    changes = [Change(version=version, before=before, after=to, reason=reason)]
    states: dict[str, State] = {version: to}
    previous = rollout.previous
    if to is State.CANARY and (other := rollout.canary) is not None:
        states[other] = State.LOADED
        changes.append(
            Change(version=other, before=State.CANARY, after=State.LOADED, reason=f"{version} is the canary now")
        )
    if to is State.ACTIVE and (old := rollout.active) is not None:
        states[old] = State.RETIRED
        previous = old
        changes.append(
            Change(version=old, before=State.ACTIVE, after=State.RETIRED, reason=f"{version} is active now; kept warm")
        )
    return replace(_with(rollout, states), previous=previous), changes


def retire(rollout: Rollout, version: str, *, reason: str) -> tuple[Rollout, list[Change]]:
    """Takes a version out for good, because a person says so or a law does. The active one leaves none behind."""
    before = rollout.states.get(version)
    if before is None:
        raise _refused(rollout, version, "is not known", "`loaded` versions can be retired")
    previous = None if rollout.previous == version else rollout.previous
    changes = [] if before is State.RETIRED else [_retired(version, before, reason)]
    return replace(_with(rollout, {version: State.RETIRED}), previous=previous), changes


def roll_back(rollout: Rollout, version: str, *, reason: str) -> tuple[Rollout, list[Change]]:
    """A rule found a version bad. A shadow or canary is retired; for an active one, the previous one answers again.

    An active version without a previous one stays: a bad answer is counted and marked, no answer would be worse.
    """
    before = rollout.states.get(version)
    if before in (State.SHADOW, State.CANARY):
        after = _with(rollout, {version: State.RETIRED})
        return after, [replace(_retired(version, before, reason), by_itself=True)]
    if before is not State.ACTIVE or rollout.previous is None:
        return rollout, []
    back = rollout.previous
    after = replace(_with(rollout, {version: State.RETIRED, back: State.ACTIVE}), previous=None)
    return after, [
        replace(_retired(version, before, reason), by_itself=True),
        Change(
            version=back,
            before=State.RETIRED,
            after=State.ACTIVE,
            reason=f"answers again in the place of {version}",
            by_itself=True,
        ),
    ]


def _with(rollout: Rollout, states: dict[str, State]) -> Rollout:
    return replace(rollout, states={**rollout.states, **states})


def _retired(version: str, before: State, reason: str) -> Change:
    return Change(version=version, before=before, after=State.RETIRED, reason=reason)


def _refused(rollout: Rollout, version: str, what: str, hint: str) -> HarchError:
    return HarchError("E0509", f"{rollout.model}@{version} {what}", hint=hint)
