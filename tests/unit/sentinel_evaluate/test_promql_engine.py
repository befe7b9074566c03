"""What does the engine promise whoever asks? Limits, cancellation, order, annotations, and one form of each kernel."""

from __future__ import annotations

import importlib
import pkgutil
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from column_store import ColumnStore, counters
from promql_answers import at, matrix, number, over

import harch.sentinel.promql.evaluate as evaluate
from harch.base.errors import HarchError
from harch.sentinel.promql.evaluate.annotations import open_metrics, shortest_general, shortest_plain, two_digits
from harch.sentinel.promql.evaluate.engine import QueryEngine
from harch.sentinel.promql.evaluate.label_columns import xxhash64
from harch.sentinel.promql.evaluate.values import MatrixResult, SamplesResult
from harch.sentinel.promql.evaluate.warmup import warm

MINUTE = 60_000


@pytest.mark.parametrize("query", ["made_total[1m]", '"text"'])
def test_a_range_query_takes_scalars_and_instant_vectors_only(query: str) -> None:
    with pytest.raises(HarchError, match="must be Scalar or instant Vector"):
        QueryEngine().range(query, 0, MINUTE, MINUTE, counters())


def test_results_of_range_queries_are_sorted_by_labels() -> None:
    names = [
        (("__name__", "m"), ("b", "1")),
        (("__name__", "m"), ("a", "2")),
        (("__name__", "m"), ("a", "10"), ("b", "1")),
        (("__name__", "m"),),
        (("__name__", "m"), ("a", "10")),
    ]
    base = ColumnStore({labels: [(0, 1.0)] for labels in names})
    assert list(over("m", 0, 1000, 1000, base)) == ["m", "m a=10", "m a=10 b=1", "m a=2", "m b=1"]


def test_a_range_vector_itself_is_answered_with_its_samples() -> None:
    value = QueryEngine().instant('made_total{site=~"s[12]"}[31s]', MINUTE, counters()).value
    assert isinstance(value, SamplesResult)
    assert value.samples.count.tolist() == [3, 3]
    assert value.samples.timestamps.tolist() == [30_000, 45_000, 60_000] * 2


def test_annotations_name_line_and_column_in_bytes() -> None:
    base = ColumnStore({(("__name__", "m"), ("ort", "Fès")): [(0, 1.0), (10_000, 2.0)]})
    query = '1 +\n  rate(m{ort="Fès"}[1m])\n  + quantile_over_time(2, m[1m])'
    result = QueryEngine().instant(query, 10_000, base)
    assert result.infos == (
        'PromQL info: metric might not be a counter, name does not end in _total/_sum/_count/_bucket: "m" (2:8)',
    )
    assert result.warnings == ("PromQL warning: quantile value should be between 0 and 1, got 2 (3:24)",)


def test_mended_buckets_are_reported_with_their_extent() -> None:
    def bucket(bound: str, values: list[float]) -> tuple[tuple[tuple[str, str], ...], list[tuple[int, float]]]:
        labels = (("__name__", "took_bucket"), ("le", bound))
        return labels, [(MINUTE * place, value) for place, value in enumerate(values)]

    base = ColumnStore(dict([bucket("1", [4, 4]), bucket("2", [3, 4]), bucket("+Inf", [5, 5])]))
    result = QueryEngine().range("histogram_quantile(0.5, took_bucket)", 0, MINUTE, MINUTE, base)
    assert len(result.infos) == 1
    assert result.infos[0].startswith("PromQL info: input to histogram_quantile needed to be fixed for monotonicity")
    assert result.infos[0].endswith(
        'for metric name "took_bucket", from buckets 2 to 2, with a max diff of 1, over 1 samples '
        "from 1970-01-01T00:00:00Z to 1970-01-01T00:00:00Z (1:25)"
    )


def test_absent_asks_once_and_touches_no_dictionary() -> None:
    base = counters()
    before = {name: list(values) for name, values in base.dictionaries.items()}
    assert at('absent(nothing{site="new", job=~"x.*"})', MINUTE, base) == {"site=new": 1.0}
    assert at('absent(made_total{site="s1"})', MINUTE, base) == {}
    assert base.reads == 2
    assert base.dictionaries == before


def test_what_does_not_depend_on_time_is_read_and_computed_once() -> None:
    base = counters()
    answer = over("sum(rate(made_total[1m] @ 120))", 0, 5 * MINUTE, MINUTE, base)
    assert len(set(answer[""].values())) == 1
    assert len(answer[""]) == 6


def test_a_subquery_before_1970_is_aligned_as_after_it() -> None:
    base = ColumnStore({(("__name__", "m"),): [(-40_000 + 10_000 * n, float(n)) for n in range(9)]})
    assert at("sum_over_time(m[30s:20s] @ -5)", 0, base) == {"": 0.0 + 2.0}
    assert at("count_over_time(m[1m:10s] @ 25)", 0, base) == {"": 6.0}


def test_scalars_and_time() -> None:
    base = counters()
    assert number("time()", 1_500, base) == 1.5
    assert number('scalar(made_total{site="s2"})', MINUTE, base) == 8.0
    assert np.isnan(number("scalar(made_total)", MINUTE, base))
    assert matrix(QueryEngine().range("end() - start() + step()", 0, 60_000, 20_000, base)) == {
        "": dict.fromkeys((0, 20_000, 40_000, 60_000), 80.0)
    }


def test_many_threads_get_the_same_answers() -> None:
    warm()
    base = counters(count=600, samples=40)
    engine = QueryEngine()
    queries = ["sum by (site) (rate(made_total[2m]))", "topk(3, made_total)", "avg_over_time(made_total[1m])"]
    wanted = [matrix(engine.range(query, 0, 600_000, 1_000, base)) for query in queries]
    start = threading.Barrier(6)

    def ask(place: int) -> bool:
        start.wait(timeout=60)
        which = place % len(queries)
        return matrix(engine.range(queries[which], 0, 600_000, 1_000, base)) == wanted[which]

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(ask, range(6)))


def test_no_kernel_is_compiled_for_a_second_form_of_its_arguments() -> None:
    """A form more is seconds of waiting at a query that nobody expects to be slow."""
    warm()
    base = counters()
    for query in (
        "sum by (site) (rate(made_total[1m] offset 1m))",
        "topk(scalar(made_total{site='s1'}), made_total @ 60)",
        "quantile(time() / 1000, made_total) + on () group_right made_total",
        "predict_linear(made_total[2m:15s], 60) or timestamp(made_total)",
        "limitk(2, made_total smoothed) and changes(made_total[1m] anchored)",
        "histogram_quantile(0.5, label_replace(made_total, 'le', '$1', 'site', 's(.)'))",
        "count_values('v', made_total) unless -made_total",
    ):
        QueryEngine().range(query, 0, 4 * MINUTE, MINUTE, base)
        QueryEngine().instant(query, MINUTE, base)
    forms = {}
    for module in pkgutil.walk_packages(evaluate.__path__, f"{evaluate.__name__}."):
        if "kernels" in module.name:
            for name, found in vars(importlib.import_module(module.name)).items():
                is_entry = hasattr(found, "signatures") and not found.targetoptions.get("no_cpython_wrapper")
                if is_entry and found.py_func.__module__ == module.name:
                    forms[f"{module.name}.{name}"] = len(found.signatures)
    assert len(forms) > 10
    assert {name: count for name, count in forms.items() if count != 1} == {}


def test_numbers_are_written_as_go_writes_them() -> None:
    assert [shortest_plain(value) for value in (1e21, 0.1, -3.0, 1e-7, float("-inf"))] == [
        "1000000000000000000000",
        "0.1",
        "-3",
        "0.0000001",
        "-Inf",
    ]
    assert [shortest_general(value) for value in (1e6, 123456.0, 1.5e-5, 0.0001, 2.5)] == [
        "1e+06",
        "123456",
        "1.5e-05",
        "0.0001",
        "2.5",
    ]
    assert [open_metrics(value) for value in (1.0, 0.25, float("nan"))] == ["1.0", "0.25", "NaN"]
    assert two_digits(0.0123) == "0.012"


def test_the_hash_behind_limit_ratio_is_xxhash64() -> None:
    assert xxhash64(b"") == 0xEF46DB3751D8E999
    assert xxhash64(b"a") == 0xD24EC4F1A98C6E5B
    assert xxhash64(b"Nobody inspects the spammish repetition") == 0xFBCEA83C8A378BF1


def test_a_ratio_and_its_complement_share_the_series_out() -> None:
    base = counters(count=200)
    whole = set(at("made_total", MINUTE, base))
    part, rest = (
        set(at("limit_ratio(0.3, made_total)", MINUTE, base)),
        set(at("limit_ratio(-0.7, made_total)", MINUTE, base)),
    )
    assert part | rest == whole
    assert not part & rest
    assert 30 < len(part) < 90


def test_a_matrix_result_has_no_series_without_samples() -> None:
    base = ColumnStore({(("__name__", "m"), ("a", "1")): [(0, 1.0)], (("__name__", "m"), ("a", "2")): []})
    value = QueryEngine().range("m", 0, MINUTE, MINUTE, base).value
    assert isinstance(value, MatrixResult)
    assert value.series.count == 1


@pytest.mark.parametrize(
    ("mode", "wanted"),
    [
        ("", [(20_000, 3.0), (30_000, 4.0)]),
        (" anchored", [(15_000, 2.0), (20_000, 3.0), (30_000, 4.0), (35_000, 4.0)]),
        (" smoothed", [(15_000, 2.5), (20_000, 3.0), (30_000, 4.0), (35_000, 4.5)]),
    ],
)
def test_the_ends_of_a_range_are_samples_if_it_is_anchored_or_smoothed(
    mode: str, wanted: list[tuple[int, float]]
) -> None:
    base = ColumnStore({(("__name__", "m"),): [(10_000 * n, 1.0 + n) for n in range(5)]})
    value = QueryEngine().instant(f"m[20s]{mode}", 35_000, base).value
    assert isinstance(value, SamplesResult)
    assert list(zip(value.samples.timestamps.tolist(), value.samples.values.tolist(), strict=True)) == wanted


def test_sorting_a_range_is_pointless_and_said_to_be() -> None:
    result = QueryEngine().range("sort(made_total)", 0, MINUTE, MINUTE, counters())
    assert [warning.split(" (")[0] for warning in result.warnings] == [
        "PromQL warning: sort is ineffective for range queries since results are always ordered by labels"
    ]
    assert QueryEngine().instant("sort(made_total)", MINUTE, counters()).warnings == ()
