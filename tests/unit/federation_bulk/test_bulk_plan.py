"""How is the work of one transfer shared, and what becomes of what was cut?"""

from __future__ import annotations

import pytest

from harch.base.errors import HarchError
from harch.content.frames import Codec
from harch.content.model import CHUNK_BYTES_MAX, ChunkRef
from harch.federation.bulk.plan import WINDOW_CHUNKS, FetchPlan
from harch.federation.bulk.protocol import ChunkRequest, PartialChunk

KIB, MIB = 1024, 1024 * 1024


def refs(count: int, size: int = 512 * KIB) -> list[ChunkRef]:
    return [ChunkRef(number.to_bytes(32, "big"), size) for number in range(count)]


def partial_of(ref: ChunkRef, count: int) -> PartialChunk:
    return PartialChunk(ref.id, ref.size, Codec.RAW, ref.size, bytes(count))


def take(plan: FetchPlan, connection: int) -> list[bytes]:
    return [request.id for request in plan.assign(connection)[0]]


def test_a_connection_has_a_window_requested_and_no_more() -> None:
    plan = FetchPlan(refs(1000), connections=2, window_bytes=8 * MIB)
    names = take(plan, 0)
    assert len(names) == 16
    assert take(plan, 0) == []
    for name in names[:3]:
        plan.arrived(0, name)
    assert take(plan, 0) == []  # a few large requests, not one for every chunk that has arrived
    for name in names[3:6]:
        plan.arrived(0, name)
    assert len(take(plan, 0)) == 6


def test_towards_the_end_less_is_requested_so_that_all_end_together() -> None:
    plan = FetchPlan(refs(64), connections=4, window_bytes=16 * MIB)
    assert len(take(plan, 0)) == 8  # an eighth of all: half of a fair share


def test_tiny_chunks_are_limited_by_their_number() -> None:
    plan = FetchPlan(refs(10_000, size=100), connections=1)
    assert len(take(plan, 0)) == WINDOW_CHUNKS


def test_a_chunk_is_wanted_once_however_often_it_is_named() -> None:
    plan = FetchPlan([*refs(3), *refs(3)], connections=1)
    assert plan.chunks_total == 3
    assert plan.bytes_total == 3 * 512 * KIB


def test_nothing_wanted_is_done_at_once() -> None:
    assert FetchPlan([], connections=4).is_done


def test_what_a_cut_connection_had_requested_comes_next_and_in_order() -> None:
    plan = FetchPlan(refs(100), connections=4, window_bytes=4 * MIB)
    first = take(plan, 0)
    assert take(plan, 1)
    plan.arrived(0, first[0])
    plan.lost(0)
    assert take(plan, 2) == [*first[1:], refs(100)[16].id]


def test_the_beginning_of_a_cut_chunk_is_kept_and_only_its_rest_requested() -> None:
    chunks = refs(1)
    plan = FetchPlan(chunks, connections=1)
    take(plan, 0)
    plan.lost(0, [partial_of(chunks[0], 300 * KIB)])
    assert plan.bytes_held == 300 * KIB
    requests, held = plan.assign(1)
    assert requests == [ChunkRequest(chunks[0].id, 512 * KIB, 300 * KIB, 512 * KIB)]
    assert held == [partial_of(chunks[0], 300 * KIB)]
    assert plan.bytes_held == 0
    plan.arrived(1, chunks[0].id)
    assert plan.is_done


def test_beginnings_of_chunks_that_a_connection_never_had_are_not_believed() -> None:
    chunks = refs(50)
    plan = FetchPlan(chunks, connections=1, window_bytes=2 * MIB)
    take(plan, 0)
    plan.lost(0, [partial_of(chunks[40], 100)])
    assert plan.bytes_held == 0


def test_a_damaged_chunk_is_fetched_once_more_and_then_given_up() -> None:
    chunks = refs(1)
    plan = FetchPlan(chunks, connections=1)
    plan.damaged(0, take(plan, 0)[0])
    assert take(plan, 0) == [chunks[0].id]
    with pytest.raises(HarchError, match="arrived damaged 2 times") as caught:
        plan.damaged(0, chunks[0].id)
    assert caught.value.code == "E1101"


def test_progress_counts_raw_bytes_that_have_arrived() -> None:
    plan = FetchPlan(refs(4), connections=1)
    names = take(plan, 0)
    plan.arrived(0, names[0])
    assert (plan.chunks_done, plan.bytes_done, plan.is_done) == (1, 512 * KIB, False)


@pytest.mark.parametrize("chunk", [ChunkRef(b"short", 1), ChunkRef(bytes(32), 0), ChunkRef(bytes(32), 3 * MIB)])
def test_what_cannot_be_a_chunk_is_refused(chunk: ChunkRef) -> None:
    with pytest.raises(HarchError) as caught:
        FetchPlan([chunk], connections=1)
    assert caught.value.code == "E1105"


def test_a_chunk_larger_than_the_window_is_still_requested() -> None:
    plan = FetchPlan(refs(3, size=CHUNK_BYTES_MAX), connections=8, window_bytes=1)
    assert len(take(plan, 0)) == 1
    assert take(plan, 0) == []
