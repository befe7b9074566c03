"""How far may a query go, and what may be chosen for it? Limits, deadlines, cancellation, options."""

from __future__ import annotations

import pytest
from column_store import ColumnStore, counters

from harch.base.errors import HarchError
from harch.sentinel.model.histograms import NativeHistogram
from harch.sentinel.model.labels import labels
from harch.sentinel.promql.evaluate.context import EngineOptions, QueryLimits, QueryOptions
from harch.sentinel.promql.evaluate.engine import QueryEngine
from harch.sentinel.promql.evaluate.values import VectorResult
from harch.sentinel.promql.memory_store import MemoryStore
from harch.sentinel.promql.syntax.cursor import ParserOptions
from harch.testing.clock import SimClock

MINUTE = 60_000


def test_a_query_that_reads_too_much_is_refused() -> None:
    engine = QueryEngine(EngineOptions(limits=QueryLimits(samples_max=50)))
    with pytest.raises(HarchError) as refused:
        engine.instant("sum(made_total)", MINUTE, counters())
    assert refused.value.code == "E0603"


def test_samples_of_all_selectors_count() -> None:
    engine = QueryEngine(EngineOptions(limits=QueryLimits(samples_max=100)))
    engine.instant("sum(made_total)", MINUTE, counters())
    with pytest.raises(HarchError, match="120 read, 100 allowed"):
        engine.instant("sum(made_total) + sum(made_total)", MINUTE, counters())


def test_a_matrix_beyond_its_limit_is_refused_before_it_is_made() -> None:
    engine = QueryEngine(EngineOptions(limits=QueryLimits(points_max=30)))
    with pytest.raises(HarchError) as refused:
        engine.range("made_total", 0, 10 * MINUTE, MINUTE, counters())
    assert refused.value.code == "E0661"
    assert "33 points, 30 allowed" in refused.value.message


def test_a_join_is_counted_before_it_is_made() -> None:
    engine = QueryEngine(EngineOptions(limits=QueryLimits(points_max=30)))
    with pytest.raises(HarchError) as refused:
        engine.instant("made_total * on () group_left vector(1) * on () group_right made_total", 0, counters(31))
    assert refused.value.code == "E0661"


@pytest.mark.parametrize("query", ["vector(1)", "sum_over_time(vector(1)[1d:1s])"])
def test_a_grid_beyond_its_limit_is_refused(query: str) -> None:
    engine = QueryEngine(EngineOptions(limits=QueryLimits(steps_max=1000)))
    with pytest.raises(HarchError) as refused:
        engine.range(query, 0, 2_000 * 1000, 1000, counters())
    assert refused.value.code == "E0662"


def test_a_query_stops_when_its_time_is_up() -> None:
    base = ColumnStore({(("__name__", "m"),): [(0, 1.0)]})

    class Reading(SimClock):
        """Every read of the store takes three seconds."""

        def monotonic_s(self) -> float:
            return 3.0 * base.reads

    engine = QueryEngine(clock=Reading())
    assert engine.instant("m", 0, base, QueryOptions(timeout_s=4.0)).value
    with pytest.raises(HarchError) as late:
        engine.instant("m + m", 0, base, QueryOptions(timeout_s=4.0))
    assert late.value.code == "E0604"


def test_a_cancelled_query_stops_between_the_chunks_of_a_kernel() -> None:
    """The matrix is large enough for several chunks; whoever asked goes away during the first."""
    asked = 0

    def is_cancelled() -> bool:
        nonlocal asked
        asked += 1
        return asked > 4

    base = counters(count=900, samples=4)
    with pytest.raises(HarchError) as stopped:
        QueryEngine().range("rate(made_total[1m])", 0, 999_000, 1000, base, QueryOptions(is_cancelled=is_cancelled))
    assert stopped.value.code == "E0663"
    assert asked > 4


def test_the_lookback_may_be_chosen_for_a_query() -> None:
    base = ColumnStore({(("__name__", "m"),): [(0, 1.0)]})
    engine = QueryEngine()
    for lookback_ms, is_there in ((None, True), (60_000, False), (60_001, True)):
        value = engine.instant("m", 60_000, base, QueryOptions(lookback_ms=lookback_ms)).value
        assert isinstance(value, VectorResult)
        assert (value.series.count == 1) is is_there


def test_a_loop_over_histograms_stops_when_the_asker_goes() -> None:
    asked = 0

    def is_cancelled() -> bool:
        nonlocal asked
        asked += 1
        return asked > 6

    store = MemoryStore()
    for row in range(30):
        store.append(labels({"__name__": "took", "row": str(row)}), 0, NativeHistogram(1.0, 1.0))
    options = QueryOptions(is_cancelled=is_cancelled)
    with pytest.raises(HarchError) as stopped:
        QueryEngine().range("histogram_count(took * 2)", 0, 60_000, 500, store, options)
    assert stopped.value.code == "E0663"


def test_what_is_alive_at_once_counts_and_what_is_done_with_does_not() -> None:
    """Each selector is 3 series by 101 steps, 2,727 bytes by estimate: three of them fit, five held at once do not."""
    engine = QueryEngine(EngineOptions(limits=QueryLimits(memory_bytes_max=9_000)))
    one_by_one = " + ".join(["sum(made_total)"] * 12)
    assert engine.range(one_by_one, 0, 100_000, 1_000, counters()).value
    nested = "made_total + (made_total + (made_total + (made_total + made_total)))"
    with pytest.raises(HarchError) as refused:
        engine.range(nested, 0, 100_000, 1_000, counters())
    assert refused.value.code == "E0661"


def test_a_pinned_value_is_counted_before_it_is_repeated() -> None:
    engine = QueryEngine(EngineOptions(limits=QueryLimits(points_max=100)))
    with pytest.raises(HarchError) as refused:
        engine.range("made_total @ 60", 0, 100_000, 1_000, counters())
    assert refused.value.code == "E0661"


def test_types_may_be_trusted_instead_of_names() -> None:
    base = ColumnStore(
        {
            (("__name__", "speed"), ("__type__", "counter")): [(0, 1.0), (10_000, 2.0)],
            (("__name__", "heat_total"), ("__type__", "gauge")): [(0, 1.0), (10_000, 2.0)],
        }
    )
    query = 'sum(rate({__name__=~"speed|heat_total"}[1m]))'
    by_name = QueryEngine().instant(query, 10_000, base).infos
    by_type = QueryEngine(EngineOptions(type_and_unit_labels=True)).instant(query, 10_000, base).infos
    assert [info.split(": ", 2)[2] for info in by_name] == ['"speed" (1:10)']
    assert by_type == (
        'PromQL info: metric might not be a counter, __type__ label is not set to "counter" or "histogram", '
        'got "gauge": "heat_total" (1:10)',
    )


def test_start_times_can_be_left_out_of_account() -> None:
    store = MemoryStore()
    for time, start in ((60_000, 30_000), (120_000, 90_000)):
        store.append(labels({"__name__": "made_total"}), time, 6.0, start)
    told, untold = QueryEngine(), QueryEngine(EngineOptions(start_timestamps=False))
    with_starts = told.instant("increase(made_total[2m])", 120_000, store).value
    without = untold.instant("increase(made_total[2m])", 120_000, store).value
    assert isinstance(with_starts, VectorResult)
    assert isinstance(without, VectorResult)
    assert with_starts.values.tolist() == [12.0]
    assert without.values.tolist() == [0.0]


def test_experimental_parts_can_be_switched_off() -> None:
    plain = QueryEngine(EngineOptions(parser=ParserOptions(features=frozenset())))
    assert plain.instant("sum(made_total)", MINUTE, counters()).value
    with pytest.raises(HarchError) as refused:
        plain.instant("limitk(1, made_total)", MINUTE, counters())
    assert refused.value.code == "E0622"
