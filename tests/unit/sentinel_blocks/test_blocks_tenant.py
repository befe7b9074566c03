"""All blocks of a tenant: whatever is written, deleted and rewritten, queries answer as a naive store would."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from blocks_naive import (
    LABEL_SETS,
    MATCHERS,
    Model,
    Sample,
    bits_of,
    chosen,
    erased,
    merged,
    model_of,
    samples,
    selection_of,
)
from faulty_disk import FullDisk, QuickDisk
from hypothesis import given, settings
from hypothesis import strategies as st

from harch.base.errors import HarchError
from harch.sentinel.model.labels import Matcher, MatchKind, labels
from harch.sentinel.store.blocks.merge import merge_selections
from harch.sentinel.store.blocks.planning import DAY_MS, HOUR_MS, BlockPolicy
from harch.sentinel.store.blocks.tenant import TenantBlocks

ALWAYS = (-(2**62), 2**62)
NO_LIMIT = 10**9
TIMES = st.integers(-3, 30).map(lambda hours: hours * HOUR_MS) | st.integers(-3 * HOUR_MS, 30 * HOUR_MS)
WRITES = st.dictionaries(LABEL_SETS, st.dictionaries(TIMES, samples(), min_size=1, max_size=6), max_size=4)
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), WRITES),
        st.tuples(st.just("delete"), st.tuples(MATCHERS, TIMES, st.integers(0, 20 * HOUR_MS))),
        st.tuples(st.sampled_from(["maintain", "reopen", "purge"]), st.none()),
    ),
    max_size=8,
)


def everything(blocks: TenantBlocks) -> Model:
    return model_of(blocks.select([], *ALWAYS, limit=NO_LIMIT))


def counter(start_hour: int, *, hours: int = 2, first: float = 0.0, step_ms: int = 60_000, series: int = 3) -> Model:
    count = hours * HOUR_MS // step_ms
    return {
        labels({"__name__": "requests_total", "path": f"/{place}"}): {
            start_hour * HOUR_MS + step * step_ms: Sample(bits_of(first + step)) for step in range(count)
        }
        for place in range(series)
    }


@settings(deadline=None, max_examples=60)
@given(ACTIONS, MATCHERS, TIMES, st.integers(0, 20 * HOUR_MS))
def test_blocks_answer_as_a_naive_store_whatever_is_done(
    actions: list[tuple[str, object]], matchers: list[Matcher], start: int, length: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        blocks = TenantBlocks.open(Path(folder), disk=QuickDisk())
        expected: Model = {}
        for action, what in actions:
            if action == "write":
                assert isinstance(what, dict)
                blocks.add(selection_of(what))
                expected = merged([expected, what])
            elif action == "delete":
                assert isinstance(what, tuple)
                named, low, span = what
                blocks.delete(named, low, low + span)
                expected = erased(expected, named, low, low + span)
            elif action == "maintain":
                assert blocks.maintain(2**62).put_off == []
            elif action == "purge":
                blocks.purge(0)
            else:
                blocks.close()
                blocks = TenantBlocks.open(Path(folder), disk=QuickDisk())
            assert everything(blocks) == expected
        found = chosen(expected, matchers, start, start + length)
        assert model_of(blocks.select(matchers, start, start + length, limit=NO_LIMIT)) == found
        table = blocks.series(matchers, start, start + length)
        assert sorted(table.labels_of(place) for place in range(table.count)) == sorted(found)
        times = [time for kept in expected.values() for time in kept]
        blocks.purge(0)
        assert blocks.time_range() == ((min(times), max(times)) if times else None)


@settings(deadline=None, max_examples=60)
@given(st.lists(WRITES, max_size=4), st.integers(0, 5))
def test_merged_selections_hold_everything_once_and_later_ones_win(models: list[Model], gap: int) -> None:
    assert model_of(merge_selections([selection_of(model, gap=gap) for model in models])) == merged(models)


def test_small_blocks_become_large_ones_when_their_time_is_over(tmp_path: Path) -> None:
    blocks = TenantBlocks.open(tmp_path)
    models = [counter(hour) for hour in range(0, 32, 2)]
    for model in models:
        blocks.add(selection_of(model))
    blocks.maintain(0)
    spans = sorted((meta.start_ms // HOUR_MS, meta.end_ms // HOUR_MS) for meta in blocks.metas())
    assert spans == [(0, 24), (24, 30), (30, 32)]
    assert everything(blocks) == merged(models)


def test_no_block_spans_more_than_a_tenth_of_the_retention(tmp_path: Path) -> None:
    blocks = TenantBlocks.open(tmp_path, BlockPolicy(keep_ms=3 * DAY_MS))
    for hour in range(0, 32, 2):
        blocks.add(selection_of(counter(hour, step_ms=600_000)))
    blocks.maintain(32 * HOUR_MS)
    assert max(meta.end_ms - meta.start_ms for meta in blocks.metas()) == 6 * HOUR_MS


def test_what_is_older_than_the_retention_goes(tmp_path: Path) -> None:
    blocks = TenantBlocks.open(tmp_path, BlockPolicy(keep_ms=10 * HOUR_MS))
    for hour in range(0, 20, 2):
        blocks.add(selection_of(counter(hour, step_ms=600_000)))
    blocks.maintain(20 * HOUR_MS)
    assert min(meta.start_ms for meta in blocks.metas()) == 10 * HOUR_MS
    assert [path.name for path in tmp_path.iterdir() if not path.name.startswith("block-")] == []


def test_the_oldest_go_when_all_together_are_too_large(tmp_path: Path) -> None:
    blocks = TenantBlocks.open(tmp_path)
    for hour in (0, 100, 200):
        blocks.add(selection_of(counter(hour)))
    sizes = [meta.size_bytes for meta in blocks.metas()]
    blocks.close()
    blocks = TenantBlocks.open(tmp_path, BlockPolicy(size_bytes_max=sum(sizes) - 1))
    blocks.maintain(0)
    assert sorted(meta.start_ms // HOUR_MS for meta in blocks.metas()) == [100, 200]


def test_rewriting_gives_way_when_the_disk_is_nearly_full(tmp_path: Path) -> None:
    disk = FullDisk(room=10**9)
    blocks = TenantBlocks.open(tmp_path, BlockPolicy(free_bytes_min=10**6), disk=disk)
    blocks.add(selection_of(counter(0)))
    blocks.add(selection_of(counter(0, first=5.0)))
    disk.room = 10**6
    report = blocks.maintain(0)
    assert report.done == []
    assert "overlap of block-000000000001, block-000000000002" in report.put_off[0]
    assert len(blocks.metas()) == 2
    disk.room = 10**9
    assert blocks.maintain(0).put_off == []
    assert everything(blocks) == counter(0, first=5.0)


def test_a_disk_that_is_full_while_writing_leaves_no_trace(tmp_path: Path) -> None:
    blocks = TenantBlocks.open(tmp_path, disk=FullDisk(room=6_000))
    kept = counter(0, hours=1, series=1)
    blocks.add(selection_of(kept))
    before = sorted(path.name for path in tmp_path.iterdir())
    for _ in range(2):
        with pytest.raises(OSError, match="No space left"):
            blocks.add(selection_of(counter(0, hours=200, series=3, step_ms=61_007)))
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    assert everything(blocks) == kept


def test_the_limit_counts_over_all_blocks(tmp_path: Path) -> None:
    blocks = TenantBlocks.open(tmp_path)
    for hour in (0, 2):
        blocks.add(selection_of(counter(hour)))
    assert int(blocks.select([], *ALWAYS, limit=720).samples.count.sum()) == 720
    with pytest.raises(HarchError, match="E0603"):
        blocks.select([], *ALWAYS, limit=719)


def test_a_query_goes_on_with_what_it_began_with_while_blocks_are_replaced(tmp_path: Path) -> None:
    blocks = TenantBlocks.open(tmp_path)
    for hour in range(0, 10, 2):
        blocks.add(selection_of(counter(hour)))
    moment = blocks._state.moment()
    blocks.maintain(0)
    old = [block.select([], *ALWAYS, limit=NO_LIMIT) for block in moment.blocks]
    assert model_of(merge_selections(old)) == everything(blocks)


def test_too_many_deletions_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harch.sentinel.store.blocks.deletions.DELETIONS_MAX", 2)
    blocks = TenantBlocks.open(tmp_path)
    blocks.add(selection_of(counter(0)))
    for _ in range(2):
        blocks.delete([Matcher(MatchKind.EQUAL, "path", "/0")], 0, 10)
    with pytest.raises(HarchError, match="E0615"):
        blocks.delete([], 0, 10)
    blocks.maintain(0)
    blocks.delete([], 0, 10)
