"""Aggregations and joins against their definitions, written out slowly over dictionaries."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable

import numpy as np
import pytest
from column_store import ColumnStore
from hypothesis import given, settings
from hypothesis import strategies as st
from promql_answers import at, over

from harch.base.errors import HarchError

Labels = tuple[tuple[str, str], ...]
Vector = dict[Labels, float]

_label = st.sampled_from(["", "x", "y", "zz"])
_number = st.one_of(st.integers(-20, 20).map(float), st.sampled_from([0.5, 1e100, -1e100, 1e-9]))
_odd = st.one_of(_number, st.sampled_from([math.nan, math.inf, -math.inf]))


def vectors(name: str, values: st.SearchStrategy[float] = _number, size: int = 12) -> st.SearchStrategy[Vector]:
    """Some series of one metric, each with one value."""
    labels = st.tuples(_label, _label, _label).map(
        lambda found: tuple(
            sorted(
                [("__name__", name)]
                + [(key, value) for key, value in zip(("a", "b", "c"), found, strict=True) if value]
            )
        )
    )
    return st.dictionaries(labels, values, max_size=size)


def store(*parts: Vector) -> ColumnStore:
    return ColumnStore({labels: [(0, value)] for part in parts for labels, value in part.items()})


def grouped(vector: Vector, names: tuple[str, ...], *, without: bool = False) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for labels, value in vector.items():
        kept = [(k, v) for k, v in labels if (k not in names and k != "__name__" if without else k in names)]
        found.setdefault(" ".join(f"{k}={v}" for k, v in kept), []).append(value)
    return found


_FOLDS: dict[str, Callable[[list[float]], float]] = {
    "sum": math.fsum,
    "avg": statistics.fmean,
    "min": min,
    "max": max,
    "count": lambda values: float(len(values)),
    "group": lambda values: 1.0,
    "stdvar": statistics.pvariance,
}


@settings(max_examples=20, deadline=None)
@given(vector=vectors("m", st.integers(-1000, 1000).map(float)))
@pytest.mark.parametrize("name", _FOLDS)
@pytest.mark.parametrize("clause", ["", "by (a)", "by (b, a)", "without (c)", "by (nowhere)"])
def test_groups_come_to_what_their_members_say(name: str, clause: str, vector: Vector) -> None:
    names = tuple(part.strip() for part in clause[clause.find("(") + 1 : -1].split(",")) if clause else ()
    wanted = {
        key: _FOLDS[name](values)
        for key, values in grouped(vector, tuple(sorted(names)), without=clause.startswith("without")).items()
    }
    got = at(f"{name} {clause} (m)", 0, store(vector))
    assert got.keys() == wanted.keys()
    for key, value in wanted.items():
        assert got[key] == pytest.approx(value, rel=1e-9, abs=1e-6)


@settings(max_examples=80, deadline=None)
@given(vector=vectors("m", _odd, size=20), k=st.integers(-1, 8))
@pytest.mark.parametrize("is_top", [True, False])
def test_the_best_k_are_passed_on_and_none_that_is_left_out_is_better(is_top: bool, vector: Vector, k: int) -> None:
    got = at(f"{'topk' if is_top else 'bottomk'} by (a) ({k}, m)", 0, store(vector))
    everything = at("m", 0, store(vector))
    for group in {labels.split("a=")[-1][:1] if "a=" in labels else "" for labels in everything}:
        members = {
            key: value for key, value in everything.items() if (key.split("a=")[-1][:1] if "a=" in key else "") == group
        }
        passed = {key: value for key, value in members.items() if key in got}
        assert len(passed) == max(min(k, len(members)), 0)
        rest = [value for key, value in members.items() if key not in passed and value == value]
        for value in passed.values():
            assert all(value >= other if is_top else value <= other for other in rest) or not rest


@settings(max_examples=60, deadline=None)
@given(vector=vectors("m", _odd, size=20), k=st.integers(1, 30))
def test_a_result_of_topk_is_ordered_with_nan_last(vector: Vector, k: int) -> None:
    values = list(at(f"topk({k}, m)", 0, store(vector)).values())
    known = [value for value in values if value == value]
    assert known == sorted(known, reverse=True)
    assert all(value != value for value in values[len(known) :])


@settings(max_examples=60, deadline=None)
@given(vector=vectors("m"), quantile=st.floats(0, 1))
def test_quantiles_of_groups(vector: Vector, quantile: float) -> None:
    got = at(f"quantile by (a) ({quantile!r}, m)", 0, store(vector))
    for key, values in grouped(vector, ("a",)).items():
        assert got[key] == pytest.approx(float(np.quantile(values, quantile)), rel=1e-9, abs=1e-9)


def without_name(labels: Labels) -> str:
    return " ".join(f"{key}={value}" for key, value in labels if key != "__name__")


@settings(max_examples=100, deadline=None)
@given(left=vectors("l"), right=vectors("r"))
def test_vectors_join_on_all_labels_but_their_names(left: Vector, right: Vector) -> None:
    ours = {without_name(labels): value for labels, value in left.items()}
    theirs = {without_name(labels): value for labels, value in right.items()}
    got = at("l + r", 0, store(left, right))
    assert got == {key: pytest.approx(ours[key] + theirs[key]) for key in ours.keys() & theirs.keys()}
    filled = at("l + fill(7) r", 0, store(left, right))
    both = ours.keys() | theirs.keys()
    assert filled == {key: pytest.approx(ours.get(key, 7.0) + theirs.get(key, 7.0)) for key in both}


@settings(max_examples=100, deadline=None)
@given(left=vectors("l"), right=vectors("r"))
def test_set_operators_ask_for_the_signature_only(left: Vector, right: Vector) -> None:
    def key(labels: Labels) -> str:
        return dict(labels).get("a", "")

    in_right, in_left = {key(labels) for labels in right}, {key(labels) for labels in left}

    def names(*parts: list[Labels]) -> set[str]:
        return {f"{dict(one)['__name__']} {without_name(one)}".strip() for part in parts for one in part}

    base = store(left, right)
    assert at("l and on (a) r", 0, base).keys() == names([one for one in left if key(one) in in_right])
    assert at("l unless on (a) r", 0, base).keys() == names([one for one in left if key(one) not in in_right])
    rest = [one for one in right if key(one) not in in_left]
    assert at("l or on (a) r", 0, base).keys() == names(list(left), rest)


@settings(max_examples=100, deadline=None)
@given(left=vectors("l"), right=vectors("r", size=5))
def test_many_series_join_one_or_the_query_is_refused(left: Vector, right: Vector) -> None:
    keys = [dict(labels).get("a", "") for labels in right]
    base = store(left, right)
    if left and len(set(keys)) < len(keys):
        with pytest.raises(HarchError, match="many-to-many matching not allowed"):
            at("l * on (a) group_left (b) r", 0, base)
        return
    values = {dict(labels).get("a", ""): (dict(labels).get("b", ""), value) for labels, value in right.items()}
    wanted: dict[str, float] = {}
    for labels, value in left.items():
        pairs = dict(labels)
        if pairs.get("a", "") in values:
            other, factor = values[pairs.get("a", "")]
            key = " ".join(f"{k}={v}" for k, v in sorted({**pairs, "b": other}.items()) if v and k != "__name__")
            if key in wanted:
                with pytest.raises(HarchError, match="grouping labels must ensure unique matches"):
                    at("l * on (a) group_left (b) r", 0, base)
                return
            wanted[key] = value * factor
    assert at("l * on (a) group_left (b) r", 0, base) == {key: pytest.approx(value) for key, value in wanted.items()}


def test_label_values_of_different_dictionaries_are_compared_as_text() -> None:
    """What `label_replace` makes has a dictionary of its own."""
    base = store({(("__name__", "l"), ("a", "x1")): 1.0}, {(("__name__", "r"), ("a", "1")): 10.0})
    assert at('l + label_replace(r, "a", "x$1", "a", "(.*)")', 0, base) == {"a=x1": 11.0}
    assert at('label_replace(r, "a", "y$1", "a", "(.*)") or r', 0, base) == {"r a=y1": 10.0, "r a=1": 10.0}


def test_series_that_become_the_same_are_joined_unless_they_overlap() -> None:
    series = {
        (("__name__", "m"), ("pod", "1")): [(0, 1.0), (10_000, 1.0)],
        (("__name__", "m"), ("pod", "2")): [(400_000, 2.0)],
    }
    query = 'label_replace(m, "pod", "", "", "")'
    assert over(query, 0, 400_000, 400_000, ColumnStore(series)) == {"m": {0: 1.0, 400_000: 2.0}}
    with pytest.raises(HarchError, match="same labelset"):
        over(query, 0, 400_000, 100_000, ColumnStore({**series, (("__name__", "m"), ("pod", "3")): [(0, 9.0)]}))


def test_a_group_key_of_many_labels_does_not_overflow() -> None:
    """Thirty labels of hundreds of values each have more combinations than 64 bits can number."""
    names = [f"label_{place:02}" for place in range(30)]
    series = {
        (("__name__", "m"), *((name, f"v{(row * 7 + place) % 300}") for place, name in enumerate(names))): [(0, 1.0)]
        for row in range(300)
    }
    assert set(at(f"count by ({', '.join(names)}) (m)", 0, ColumnStore(series)).values()) == {1.0}
    assert len(at(f"count by ({', '.join(names)}) (m)", 0, ColumnStore(series))) == 300
