"""Which version of a model answers whom?

The life of versions as a state machine, the hash that sends devices to the canary, and the steps from what is loaded
to what is wanted. Pure.
"""

# harch: pure

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from hashlib import blake2b
from typing import Literal

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from harch.base.errors import HarchError
from harch.pipelines.think.settings import ModelRole, ModelSettings, VersionSettings

# Which version of a model answers whom? The life of versions as a state machine: events in, new state and reasons out.
#
#     loaded -> shadow -> canary -> active -> retired
#
# A step may skip stations, but not go back; anything may be retired. One version is active and at most one is canary.
# The
# version that was active before stays warm until the next one is promoted, so that going back takes no loading.


SHADOWS_MAX = 2  # each scores every row once more


class VersionState(StrEnum):
    LOADED = "loaded"
    SHADOW = "shadow"
    CANARY = "canary"
    ACTIVE = "active"
    RETIRED = "retired"


_ORDER = {state: rank for rank, state in enumerate(VersionState)}


class RolloutChange(Struct, frozen=True, kw_only=True):
    """One version went from one state to another. `by_itself`: a rule did it, not a person."""

    version: str
    before: VersionState | None
    after: VersionState
    reason: str
    by_itself: bool = False


class Rollout(Struct, frozen=True, kw_only=True):
    """All versions of one model. `previous` is the warm one to return to; a model without `active` answers nothing."""

    model: str
    states: dict[str, VersionState] = {}
    previous: str | None = None

    @property
    def active(self) -> str | None:
        return self._first(VersionState.ACTIVE)

    @property
    def canary(self) -> str | None:
        return self._first(VersionState.CANARY)

    @property
    def shadows(self) -> tuple[str, ...]:
        return tuple(version for version, state in self.states.items() if state is VersionState.SHADOW)

    @property
    def warm(self) -> frozenset[str]:
        """Versions whose sessions must stay in memory."""
        kept = {version for version, state in self.states.items() if state is not VersionState.RETIRED}
        return frozenset(kept if self.previous is None else kept | {self.previous})

    def _first(self, wanted: VersionState) -> str | None:
        return next((version for version, state in self.states.items() if state is wanted), None)


def loaded(rollout: Rollout, version: str) -> tuple[Rollout, list[RolloutChange]]:
    """A session for this version is ready. A retired version may be loaded again, and starts from the beginning."""
    before = rollout.states.get(version)
    if before not in (None, VersionState.RETIRED):
        raise _refused(rollout, version, f"is {before} already", "give the new file its own version")
    previous = None if rollout.previous == version else rollout.previous
    change = RolloutChange(version=version, before=before, after=VersionState.LOADED, reason="loaded")
    return replace(_with(rollout, {version: VersionState.LOADED}), previous=previous), [change]


def promote(
    rollout: Rollout, version: str, to: VersionState, *, reason: str = "requested"
) -> tuple[Rollout, list[RolloutChange]]:
    """Takes a version forward. Who was active before becomes `previous`; who was canary before is loaded again."""
    before = rollout.states.get(version)
    if before is None or before is VersionState.RETIRED:
        raise _refused(rollout, version, "is not loaded", "load it first")
    if to is VersionState.RETIRED:
        return retire(rollout, version, reason=reason)
    if _ORDER[to] <= _ORDER[before]:
        raise _refused(rollout, version, f"is {before} and cannot become {to}", "steps go forward only")
    if to is VersionState.SHADOW and len(rollout.shadows) >= SHADOWS_MAX:
        raise _refused(rollout, version, f"would be shadow number {SHADOWS_MAX + 1}", "retire or promote one first")
    if to is not VersionState.ACTIVE and rollout.active is None:
        raise _refused(
            rollout, version, f"cannot be {to} of a model without active version", "activate a version first"
        )
    changes = [RolloutChange(version=version, before=before, after=to, reason=reason)]
    states: dict[str, VersionState] = {version: to}
    previous = rollout.previous
    if to is VersionState.CANARY and (other := rollout.canary) is not None:
        states[other] = VersionState.LOADED
        changes.append(
            RolloutChange(
                version=other,
                before=VersionState.CANARY,
                after=VersionState.LOADED,
                reason=f"{version} is now the canary",
            )
        )
    if to is VersionState.ACTIVE and (old := rollout.active) is not None:
        states[old] = VersionState.RETIRED
        previous = old
        changes.append(
            RolloutChange(
                version=old,
                before=VersionState.ACTIVE,
                after=VersionState.RETIRED,
                reason=f"{version} is now active; kept warm",
            )
        )
    return replace(_with(rollout, states), previous=previous), changes


def retire(rollout: Rollout, version: str, *, reason: str) -> tuple[Rollout, list[RolloutChange]]:
    """Takes a version out for good, because a person says so or a law does. The active one leaves none behind."""
    before = rollout.states.get(version)
    if before is None:
        raise _refused(rollout, version, "is unknown", "`loaded` versions can be retired")
    previous = None if rollout.previous == version else rollout.previous
    changes = [] if before is VersionState.RETIRED else [_retired(version, before, reason)]
    return replace(_with(rollout, {version: VersionState.RETIRED}), previous=previous), changes


def roll_back(rollout: Rollout, version: str, *, reason: str) -> tuple[Rollout, list[RolloutChange]]:
    """A rule found a version bad. A shadow or canary is retired; for an active one, the previous one answers again.

    An active version without a previous one stays: a bad answer is counted and marked, no answer would be worse.
    """
    before = rollout.states.get(version)
    if before in (VersionState.SHADOW, VersionState.CANARY):
        after = _with(rollout, {version: VersionState.RETIRED})
        return after, [replace(_retired(version, before, reason), by_itself=True)]
    if before is not VersionState.ACTIVE or rollout.previous is None:
        return rollout, []
    back = rollout.previous
    after = replace(_with(rollout, {version: VersionState.RETIRED, back: VersionState.ACTIVE}), previous=None)
    return after, [
        replace(_retired(version, before, reason), by_itself=True),
        RolloutChange(
            version=back,
            before=VersionState.RETIRED,
            after=VersionState.ACTIVE,
            reason=f"active again in place of {version}",
            by_itself=True,
        ),
    ]


def _with(rollout: Rollout, states: dict[str, VersionState]) -> Rollout:
    return replace(rollout, states={**rollout.states, **states})


def _retired(version: str, before: VersionState, reason: str) -> RolloutChange:
    return RolloutChange(version=version, before=before, after=VersionState.RETIRED, reason=reason)


def _refused(rollout: Rollout, version: str, what: str, hint: str) -> HarchError:
    return HarchError("E0509", f"{rollout.model}@{version} {what}", hint=hint)


# Which rows go to the canary? By a hash of the device, so that each device sees one version for as long as it lasts.
#
# The hash is salted with the model's name: the same devices are not the first to meet every new model. A larger share
# only adds devices; it moves none back.


BUCKETS = 10_000


def canary_rows(devices: NDArray[np.generic], model: str, percent: float) -> NDArray[np.bool_]:
    """True where a row belongs to the canary."""
    return buckets(devices, model) < round(percent * BUCKETS / 100)


def buckets(devices: NDArray[np.generic], model: str) -> NDArray[np.uint64]:
    """A number below `BUCKETS` for each device: the same on every machine, whatever integer type carries the id."""
    salt = np.uint64(int.from_bytes(blake2b(model.encode(), digest_size=8).digest(), "little"))
    if devices.dtype.kind in "iu":
        keys = devices.astype(np.uint64)
    else:
        names, inverse = np.unique(devices.astype(str), return_inverse=True)
        hashed = [int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little") for text in names]
        keys = np.array(hashed, dtype=np.uint64)[inverse]
    return _mixed(keys ^ salt) % np.uint64(BUCKETS)


def _mixed(keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of SplitMix64: neighbouring ids land far apart."""
    mixed = keys + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


# Which versions should be loaded, and in which role? What is wanted against what is there, as steps in order. Pure.


_STATES = {
    ModelRole.LOADED: VersionState.LOADED,
    ModelRole.SHADOW: VersionState.SHADOW,
    ModelRole.CANARY: VersionState.CANARY,
    ModelRole.ACTIVE: VersionState.ACTIVE,
}


class WantedModels(Struct, frozen=True):
    """What a person or a rollout wants served now. A worker carries out each `revision` once: what a rule takes back
    afterwards stays so until somebody asks again."""

    revision: int
    versions: dict[str, tuple[VersionSettings, ...]]  # by model; a model that is not named stays as it is
    models: tuple[ModelSettings, ...] = ()  # whose rules and share of the canary hold from now on


class ModelStep(Struct, frozen=True):
    """`load` brings a version into memory, `promote` gives it a role, `retire` takes it away."""

    verb: Literal["load", "promote", "retire"]
    version: str
    to: VersionState | None = None


def plan_models(wanted: Sequence[VersionSettings], states: Mapping[str, VersionState]) -> list[ModelStep]:
    """Load first, then the active version; then take away what nobody wants, and fill the other roles.

    So there is an active version at every moment, and no event finds none; and a new shadow finds its place free.
    """
    there = {version: state for version, state in states.items() if state is not VersionState.RETIRED}
    loads: list[ModelStep] = []
    activations: list[ModelStep] = []
    promotions: list[ModelStep] = []
    for one in sorted(wanted, key=lambda one: one.role is not ModelRole.ACTIVE):
        goal, now = _STATES[one.role], there.get(one.version)
        if now is goal or now is VersionState.ACTIVE:
            continue  # an active version ends when another one becomes active, and stays warm then
        if now is None:
            loads.append(ModelStep("load", one.version))
        elif _ORDER[now] > _ORDER[goal]:  # roles go forward only: it starts again
            loads += [ModelStep("retire", one.version), ModelStep("load", one.version)]
        if goal is not VersionState.LOADED:
            steps = activations if goal is VersionState.ACTIVE else promotions
            steps.append(ModelStep("promote", one.version, goal))
    named = {one.version for one in wanted}
    keeps_active = any(one.role is ModelRole.ACTIVE for one in wanted)
    replaced = {version for version, state in there.items() if state is VersionState.ACTIVE}
    retirements = [
        ModelStep("retire", version)
        for version in there
        if version not in named and not (version in replaced and (keeps_active or not named))
    ]
    return [*loads, *activations, *retirements, *promotions]
