"""Identity of commands: the same decision has the same id, and whatever changes changes a hash."""

from __future__ import annotations

import hashlib
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from harch.pipelines.act.ledger import CommandStep, command_id, digest, is_itself
from harch.pipelines.act.settings import Mode
from unit.pipelines.act.act_builders import command

SCALARS = st.one_of(
    st.booleans(), st.integers(-(2**53), 2**53), st.floats(allow_nan=False, allow_infinity=False), st.text()
)
ARGS = st.dictionaries(st.text(), SCALARS, max_size=6)


@given(args=ARGS, seed=st.randoms())
def test_the_order_of_arguments_does_not_matter(args: dict[str, Any], seed: Any) -> None:
    shuffled = list(args.items())
    seed.shuffle(shuffled)
    steps, other = (CommandStep("s", args),), (CommandStep("s", dict(shuffled)),)
    assert command_id("p", "d", "a", steps, 1) == command_id("p", "d", "a", other, 1)


def test_fields_do_not_run_into_each_other() -> None:
    ids = {
        command_id(pipeline, device, action, (CommandStep("s", {}),), window)
        for pipeline, device, action, window in [
            ("a", "b", "c", 1),
            ("ab", "", "c", 1),
            ("a", "bc", "", 1),
            ("a", "b", "c", 2),
        ]
    }
    assert len(ids) == 4
    assert command_id("p", "d", "a", (CommandStep("s", {"x": "1"}),), 1) != command_id(
        "p", "d", "a", (CommandStep("s", {"x": 1}),), 1
    )


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_not_a_number_makes_no_command(value: float) -> None:
    with pytest.raises(ValueError, match="finite"):
        command_id("p", "d", "a", (CommandStep("s", {"x": value}),), 1)


@pytest.mark.parametrize(
    "change",
    [
        {"steps": (CommandStep("valve", {"value": 81.0}),)},
        {"steps": (CommandStep("other", {"value": 80.0}),)},
        {"device": "d9"},
        {"window": 2},
        {"mode": Mode.FIRE_AND_FORGET},
        {"expires_ms": 10**15},
        {"juris_mask": 255},
        {"dry_run": True},
        {"priority": 0},
        {"model": "other"},
    ],
)
def test_any_change_changes_what_a_person_approved(change: dict[str, Any]) -> None:
    before = command()
    after = structs.replace(before, **change)
    assert digest(after) != digest(before)
    if set(change) & {"steps", "device", "window"}:
        assert not is_itself(after)


def test_an_id_is_the_hash_of_the_decision_in_canonical_json() -> None:
    """Ledgers are full of them: another way to write the same decision would let it be carried out once more."""

    def sha256(*named: object) -> str:
        return hashlib.sha256(json.dumps(named, separators=(",", ":")).encode()).hexdigest()

    steps = ({"sink": "s", "args": {"a": True, "b": 1.5}, "undo": None},)
    own = (CommandStep("s", {"b": 1.5, "a": True}),)
    assert command_id("p", "d", "act", own, 7) == sha256("p", "d", "act", steps, 7)
    assert command_id("p", "d", "act", own, 7, "replay-1") == sha256("p", "d", "act", steps, 7, "replay-1")
