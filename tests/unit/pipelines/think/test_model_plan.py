"""From the versions that are there to the versions that are wanted, with an active one at every moment."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from harch.pipelines.think import rollout as life
from harch.pipelines.think.rollout import Rollout, VersionState, plan_models
from harch.pipelines.think.settings import ModelRole, RuntimeKind, VersionSettings


def _version(name: str, role: ModelRole) -> VersionSettings:
    return VersionSettings(version=name, runtime=RuntimeKind.PYTHON, callable="m:f", role=role)


@st.composite
def _wanted(draw: st.DrawFn) -> list[VersionSettings]:
    names = draw(st.lists(st.sampled_from(["1", "2", "3", "4"]), min_size=1, max_size=3, unique=True))
    others = [draw(st.sampled_from([ModelRole.LOADED, ModelRole.SHADOW])) for _ in names[1:]]
    return [_version(name, role) for name, role in zip(names, [ModelRole.ACTIVE, *others], strict=True)]


@given(asks=st.lists(_wanted(), min_size=1, max_size=5))
def test_steps_are_possible_lead_to_what_is_wanted_and_never_leave_none_active(
    asks: list[list[VersionSettings]],
) -> None:
    state = Rollout(model="m")
    state, _ = life.loaded(state, "0")
    state, _ = life.promote(state, "0", VersionState.ACTIVE)
    for wanted in asks:
        for step in plan_models(wanted, state.states):
            if step.verb == "load":
                state, _ = life.loaded(state, step.version)
            elif step.verb == "promote":
                assert step.to is not None
                state, _ = life.promote(state, step.version, step.to)
            else:
                state, _ = life.retire(state, step.version, reason="")
            assert state.active is not None
        assert state.active == next(one.version for one in wanted if one.role is ModelRole.ACTIVE)
        live = {version for version, now in state.states.items() if now is not VersionState.RETIRED}
        assert live <= {one.version for one in wanted}


def test_what_is_there_already_takes_no_step() -> None:
    wanted = [_version("2", ModelRole.ACTIVE), _version("3", ModelRole.SHADOW)]
    assert plan_models(wanted, {"1": VersionState.RETIRED, "2": VersionState.ACTIVE, "3": VersionState.SHADOW}) == []


def test_an_empty_wish_takes_nothing_away() -> None:
    assert plan_models([], {"1": VersionState.ACTIVE}) == []
