"""Which versions should be loaded, and in which role? What is wanted against what is there, as steps in order. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec import Struct

from harch.pipelines.think.rollout import State
from harch.pipelines.think.settings import ModelSettings, Role, VersionSettings

_STATES = {Role.LOADED: State.LOADED, Role.SHADOW: State.SHADOW, Role.CANARY: State.CANARY, Role.ACTIVE: State.ACTIVE}
_ORDER = {state: rank for rank, state in enumerate(State)}


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
    to: State | None = None


def plan_models(wanted: Sequence[VersionSettings], states: Mapping[str, State]) -> list[ModelStep]:
    """Load first, then the active version; then take away what nobody wants, and fill the other roles.

    So there is an active version at every moment, and no event finds none; and a new shadow finds its place free.
    """
    there = {version: state for version, state in states.items() if state is not State.RETIRED}
    loads: list[ModelStep] = []
    activations: list[ModelStep] = []
    promotions: list[ModelStep] = []
    for one in sorted(wanted, key=lambda one: one.role is not Role.ACTIVE):
        goal, now = _STATES[one.role], there.get(one.version)
        if now is goal or now is State.ACTIVE:
            continue  # an active version ends when another one becomes active, and stays warm then
        if now is None:
            loads.append(ModelStep("load", one.version))
        elif _ORDER[now] > _ORDER[goal]:  # roles go forward only: it starts again
            loads += [ModelStep("retire", one.version), ModelStep("load", one.version)]
        if goal is not State.LOADED:
            steps = activations if goal is State.ACTIVE else promotions
            steps.append(ModelStep("promote", one.version, goal))
    named = {one.version for one in wanted}
    keeps_active = any(one.role is Role.ACTIVE for one in wanted)
    replaced = {version for version, state in there.items() if state is State.ACTIVE}
    retirements = [
        ModelStep("retire", version)
        for version in there
        if version not in named and not (version in replaced and (keeps_active or not named))
    ]
    return [*loads, *activations, *retirements, *promotions]
