"""Do hubs that saw the same records agree? Whatever the order, however often."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from harch.sentinel.alerts.shared_state import (
    AlertAck,
    Match,
    Notified,
    Record,
    SharedState,
    Silence,
    decode_records,
    encode_record,
    encode_records,
    kind_of,
)
from harch.sentinel.model.labels import labels

NOW = 1_000_000
times = st.integers(NOW - 5, NOW + 5)
names = st.sampled_from("ab")

silences = st.builds(
    Silence,
    id=names,
    matches=st.just((Match("alertname", "x"),)),
    starts_at_ms=times,
    ends_at_ms=st.integers(NOW - 20 * 86_400_000, NOW + 10),
    updated_at_ms=times,
    created_by=names,
    comment=names,
)
acks = st.builds(
    AlertAck,
    fingerprint=names,
    labels=st.just(labels({"a": "b"})),
    at_ms=times,
    updated_at_ms=times,
    by=names,
    why=names,
    is_withdrawn=st.booleans(),
)
entries = st.builds(
    Notified,
    receiver=names,
    group_key=names,
    firing=st.tuples(names),
    resolved=st.just(()),
    updated_at_ms=times,
    expires_at_ms=st.integers(NOW - 2, NOW + 2),
)
records = st.lists(st.one_of(silences, acks, entries), max_size=12)


def content(state: SharedState) -> dict[tuple[str, str], bytes]:
    found, _ = state.export_changes()
    return {(kind_of(record), record.key): encode_record(record) for record in found}


def merged(*batches: list[Record]) -> dict[tuple[str, str], bytes]:
    state = SharedState()
    for batch in batches:
        state.merge(batch, now_ms=NOW)
    return content(state)


@settings(max_examples=50)
@given(records, records)
def test_merging_commutes(left: list[Record], right: list[Record]):
    assert merged(left, right) == merged(right, left)


@settings(max_examples=50)
@given(records, records, records)
def test_merging_in_any_grouping_is_the_same(a: list[Record], b: list[Record], c: list[Record]):
    assert merged(a + b, c) == merged(a, b + c) == merged(c, b, a)


@settings(max_examples=50)
@given(records)
def test_merging_twice_changes_nothing(batch: list[Record]):
    state = SharedState()
    state.merge(batch, now_ms=NOW)
    before = content(state)
    assert state.merge(batch, now_ms=NOW) == []
    assert content(state) == before


@settings(max_examples=50)
@given(records)
def test_records_survive_the_wire(batch: list[Record]):
    assert decode_records(encode_records(batch)) == batch


@settings(max_examples=50)
@given(records, records)
def test_hubs_that_exchange_changes_hold_the_same_and_then_have_nothing_to_tell(a: list[Record], b: list[Record]):
    left, right = SharedState(), SharedState()
    left.merge(a, now_ms=NOW)
    right.merge(b, now_ms=NOW)
    told, cursor = left.export_changes()
    right.merge(told, now_ms=NOW)
    back, _ = right.export_changes()
    left.merge(back, now_ms=NOW)
    assert content(left) == content(right)
    news, _ = left.export_changes(cursor)
    assert right.merge(news, now_ms=NOW) == []


@settings(max_examples=50)
@given(records, st.integers(1, 3))
def test_changes_can_be_fetched_in_pieces(batch: list[Record], limit: int):
    state, other = SharedState(), SharedState()
    state.merge(batch, now_ms=NOW)
    cursor = 0
    while True:
        piece, cursor = state.export_changes(cursor, limit=limit)
        assert len(piece) <= limit
        if not piece:
            break
        other.merge(piece, now_ms=NOW)
    assert content(other) == content(state)


@given(silences, silences)
def test_a_change_of_our_own_wins_everywhere_even_against_a_clock_ahead(foreign: Silence, own: Silence):
    foreign = replace(foreign, id="a", ends_at_ms=NOW + 5, updated_at_ms=foreign.updated_at_ms + 3_600_000)
    own = replace(own, id="a", ends_at_ms=NOW + 10)
    here, there = SharedState(), SharedState()
    for state in (here, there):
        state.merge([foreign], now_ms=NOW)
    here.put(own, now_ms=NOW)
    there.merge(here.export_changes()[0], now_ms=NOW)
    for state in (here, there):
        kept = state.silence("a")
        assert kept is not None
        assert (kept.comment, kept.ends_at_ms) == (own.comment, own.ends_at_ms)
