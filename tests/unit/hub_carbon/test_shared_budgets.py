"""What other hubs spent of a tenant's month counts here, and nobody learns names from it."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harch.hub.carbon.budgets import TENANTS_PUBLISHED_MAX, SharedBudgets, SpentEntry, received_spent

MONTH = "2026-01"
_names = st.sampled_from(["atlas", "rif", "souss"])
_spent = st.dictionaries(_names, st.floats(0, 1e9, allow_nan=False))


def heard(*said: bytes) -> SharedBudgets:
    here = SharedBudgets("west")
    here.hear({f"hub-{number}": received_spent(one) for number, one in enumerate(said)})  # type: ignore[misc]
    return here


@given(hubs=st.lists(_spent, max_size=5))
def test_what_all_hubs_together_give_out_is_one_budget(hubs: list[dict[str, float]]) -> None:
    here = heard(*(SharedBudgets("west").published(MONTH, one) for one in hubs))
    found = here.elsewhere(MONTH, ["atlas", "unknown"])
    assert found == {"atlas": pytest.approx(sum(one.get("atlas", 0.0) for one in hubs)), "unknown": 0.0}


def test_a_hub_that_is_away_has_still_spent_what_it_said_and_a_new_month_is_empty() -> None:
    here = heard(SharedBudgets("west").published(MONTH, {"atlas": 700.0}))
    here.hear({})
    assert here.elsewhere(MONTH, ["atlas"]) == {"atlas": 700.0}
    assert here.elsewhere("2026-02", ["atlas"]) == {"atlas": 0.0}


def test_names_do_not_travel_and_another_federation_means_others() -> None:
    said = SharedBudgets("west").published(MONTH, {"atlas": 700.0})
    assert b"atlas" not in said
    other = SharedBudgets("east")
    other.hear({"dakar": msgspec.msgpack.decode(said, type=SpentEntry)})
    assert other.elsewhere(MONTH, ["atlas"]) == {"atlas": 0.0}


@pytest.mark.parametrize("grams", [-5.0, math.nan, math.inf])
def test_nobody_gives_grams_to_others(grams: float) -> None:
    assert received_spent(msgspec.msgpack.encode(SpentEntry(MONTH, {b"x": grams}))) is None


def test_what_cannot_be_read_is_left_out() -> None:
    many = SpentEntry(MONTH, {str(number).encode(): 1.0 for number in range(TENANTS_PUBLISHED_MAX + 1)})
    assert received_spent(None) is None
    assert received_spent(b"\xc1 no words") is None
    assert received_spent(msgspec.msgpack.encode(many)) is None


def test_of_many_tenants_those_that_spent_most_are_told() -> None:
    spent = {f"tenant-{number}": float(number) for number in range(TENANTS_PUBLISHED_MAX + 10)}
    here = heard(SharedBudgets("west").published(MONTH, spent))
    found = here.elsewhere(MONTH, ["tenant-0", "tenant-509"])
    assert found == {"tenant-0": 0.0, "tenant-509": 509.0}
