"""Partitions go to workers evenly, and as few as possible move."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from harch.pipelines.workers.scaling import UNASSIGNED, assign, reassigned

_WORKERS = st.sets(st.sampled_from([f"sense-{number}" for number in range(12)]), max_size=12)


@given(partitions=st.integers(1, 64), first=_WORKERS, second=_WORKERS)
def test_every_partition_has_one_worker_and_shares_differ_by_at_most_one(
    partitions: int, first: set[str], second: set[str]
) -> None:
    after = assign(partitions, second, assign(partitions, first, {}))
    if not second:
        assert after == {}
        return
    held = [partition for shares in after.values() for partition in shares]
    assert sorted(held) == list(range(partitions))
    sizes = [len(shares) for shares in after.values()]
    assert max(sizes) - min(sizes) <= 1
    assert set(after) == second


@given(partitions=st.integers(1, 64), first=_WORKERS, second=_WORKERS)
def test_no_more_partitions_move_than_must(partitions: int, first: set[str], second: set[str]) -> None:
    before = assign(partitions, first, {})
    after = assign(partitions, second, before)
    stayed = sum(len(set(before.get(name, ())) & set(after[name])) for name in after)
    # Whoever stays can keep at most the larger share, and only so many workers may have the larger one.
    if not second:
        return
    least, larger = divmod(partitions, len(second))
    kept = sorted((len(before[name]) for name in first & second), reverse=True)
    best = sum(min(size, least + (place < larger)) for place, size in enumerate(kept))
    assert stayed == best


@given(partitions=st.integers(1, 64), workers=_WORKERS)
def test_nothing_changes_while_nobody_comes_or_goes(partitions: int, workers: set[str]) -> None:
    first = reassigned(UNASSIGNED, partitions, workers)
    assert reassigned(first, partitions, workers) is first


def test_a_new_worker_gets_its_share_from_those_who_have_most() -> None:
    before = {"a": (0, 1, 2, 3), "b": (4, 5)}
    assert assign(6, ["a", "b", "c"], before) == {"a": (0, 1), "b": (4, 5), "c": (2, 3)}


def test_versions_grow_and_strangers_have_nothing() -> None:
    first = reassigned(UNASSIGNED, 2, ["a"])
    second = reassigned(first, 2, ["a", "b"])
    assert (first.version, second.version) == (1, 2)
    assert second.of("nobody") == ()
