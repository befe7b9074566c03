"""Mathematics of native histograms: examples whose results can be checked by hand."""

from __future__ import annotations

import math

import pytest

from harch.base.errors import HarchError
from harch.sentinel.model.histograms import BucketSpan, NativeHistogram, ResetHint
from harch.sentinel.promql.histograms.arithmetic import (
    IncompatibleHistograms,
    add,
    average_of,
    divided,
    scaled,
    subtract,
    total_of,
)
from harch.sentinel.promql.histograms.buckets import (
    all_buckets,
    at_schema,
    compacted,
    exponential_bound,
    packed,
    same,
    with_zero_threshold,
)
from harch.sentinel.promql.histograms.counters import (
    HistogramWarning,
    counter_increase,
    detect_reset,
    gauge_change,
    last_change,
    with_hint_after,
)
from harch.sentinel.promql.histograms.notation import describe, read_histogram, write_histogram
from harch.sentinel.promql.histograms.statistics import (
    deviation,
    fraction,
    mean,
    quantile,
    trim_above,
    trim_below,
    variance,
)


def h(inside: str) -> NativeHistogram:
    return read_histogram("{{" + inside + "}}").histogram


def test_bounds_are_exact_at_powers_of_two() -> None:
    assert [exponential_bound(index, 0) for index in (-1, 0, 1, 2)] == [0.5, 1, 2, 4]
    assert [exponential_bound(index, -2) for index in (0, 1, 2)] == [1, 16, 256]
    assert exponential_bound(1, 1) == pytest.approx(math.sqrt(2))
    assert exponential_bound(1024, 0) == pytest.approx(1.7976931348623157e308)
    assert exponential_bound(1025, 0) == math.inf
    assert exponential_bound(-5000, 0) == 0.0


def test_buckets_come_in_order_with_the_zero_bucket_between() -> None:
    histogram = h("count:7 z_bucket:2 z_bucket_w:0.6 buckets:[1 2] n_buckets:[1 1]")
    edges = [(bucket.lower, bucket.upper, bucket.count) for bucket in all_buckets(histogram)]
    assert edges == [(-2, -1, 1), (-1, -0.6, 1), (-0.6, 0.6, 2), (0.6, 1, 1), (1, 2, 2)]


def test_neighbours_share_a_span() -> None:
    assert packed({5: 1.0, 3: 2.0, 4: 3.0, 9: 4.0}) == ((BucketSpan(3, 3), BucketSpan(3, 1)), (2.0, 3.0, 1.0, 4.0))
    assert packed({}) == ((), ())


def test_sums_of_other_resolutions_take_the_coarser_one() -> None:
    fine = h("schema:1 count:4 sum:8 buckets:[1 1 1 1] offset:1")
    coarse = h("schema:0 count:2 sum:2 buckets:[2] offset:1")
    assert same(add(fine, coarse).histogram, h("schema:0 count:6 sum:10 offset:1 buckets:[4 2]"))
    assert same(add(coarse, fine).histogram, add(fine, coarse).histogram)


def test_zero_buckets_grow_to_the_end_of_a_populated_bucket() -> None:
    wide = with_zero_threshold(h("count:4 z_bucket:1 z_bucket_w:0.1 buckets:[2 1]"), 0.7)
    assert same(wide, h("count:4 z_bucket:3 z_bucket_w:1 buckets:[1] offset:1"))


def test_custom_buckets_keep_the_bounds_that_both_have() -> None:
    left = h("schema:-53 count:15 sum:55 custom_values:[2 4 6] buckets:[1 2 5 7]")
    right = h("schema:-53 count:45 sum:45 custom_values:[1 2 3 4 5 6 7 8] buckets:[1 2 3 4 5 6 7 8 9]")
    result = add(left, right)
    assert result.bounds_reconciled
    assert same(result.histogram, h("schema:-53 count:60 sum:100 custom_values:[2 4 6] buckets:[4 9 16 31]"))
    assert not add(left, left).bounds_reconciled


def test_exponential_and_custom_buckets_do_not_mix() -> None:
    with pytest.raises(IncompatibleHistograms):
        add(h("buckets:[1]"), h("schema:-53 custom_values:[1] buckets:[1]"))


def test_hints_join_and_collide() -> None:
    reset, went_on, gauge = (h(f"counter_reset_hint:{hint}") for hint in ("reset", "not_reset", "gauge"))
    assert add(reset, went_on).resets_collide
    assert add(reset, went_on).histogram.reset_hint is ResetHint.UNKNOWN
    assert add(gauge, went_on).histogram.reset_hint is ResetHint.GAUGE
    assert not add(gauge, reset).resets_collide
    assert scaled(went_on, -1).reset_hint is ResetHint.GAUGE
    assert total_of([reset, h(""), went_on]).resets_collide


def test_division_by_zero_leaves_no_buckets() -> None:
    over = divided(h("count:4 sum:-5 buckets:[4]"), 0.0)
    assert (over.count, over.sum, over.positive_counts) == (math.inf, -math.inf, ())
    assert math.isnan(over.zero_count)


@pytest.mark.parametrize(
    ("current", "previous", "is_reset"),
    [
        ("count:5 buckets:[2 3]", "count:4 buckets:[2 2]", False),
        ("count:5 buckets:[1 4]", "count:4 buckets:[2 2]", True),
        ("count:3 buckets:[3]", "count:4 buckets:[2 2]", True),
        ("count:9 buckets:[9]", "count:4 buckets:[2 2]", True),
        ("schema:1 count:9 buckets:[9]", "schema:0 count:1 buckets:[1]", True),
        ("schema:-1 count:4 offset:1 buckets:[4]", "schema:0 count:4 offset:1 buckets:[2 2]", False),
        ("count:4 z_bucket:4 z_bucket_w:2", "count:4 buckets:[2 2]", False),
        ("count:9 z_bucket:9 z_bucket_w:1.5", "count:4 buckets:[2 2]", True),
        ("count:5 counter_reset_hint:not_reset", "count:9", False),
        ("count:9 counter_reset_hint:reset", "count:5", True),
        (
            "schema:-53 count:9 custom_values:[1 2] buckets:[9]",
            "schema:-53 count:9 custom_values:[2] buckets:[9]",
            False,
        ),
        (
            "schema:-53 count:9 custom_values:[1 2] buckets:[0 0 9]",
            "schema:-53 count:9 custom_values:[2] buckets:[9]",
            True,
        ),
    ],
)
def test_a_count_that_fell_is_a_reset(current: str, previous: str, is_reset: bool) -> None:
    assert detect_reset(h(current), h(previous)) is is_reset


def test_stores_remember_that_a_counter_went_on() -> None:
    first, second, third = h("count:1 buckets:[1]"), h("count:2 buckets:[2]"), h("count:1 buckets:[1]")
    assert with_hint_after(first, None).reset_hint is ResetHint.UNKNOWN
    assert with_hint_after(second, first).reset_hint is ResetHint.NOT_RESET
    assert with_hint_after(third, second).reset_hint is ResetHint.UNKNOWN
    assert with_hint_after(h("counter_reset_hint:gauge"), first).reset_hint is ResetHint.GAUGE


def test_quantiles_interpolate_on_the_scale_of_the_buckets() -> None:
    assert quantile(0.5, h("sum:5 count:4 buckets:[1 2 1]")).value == pytest.approx(math.sqrt(2))
    assert quantile(0.5, h("sum:-5 count:4 n_buckets:[1 2 1]")).value == pytest.approx(-math.sqrt(2))
    assert quantile(0.5, h("schema:-53 sum:5 count:4 custom_values:[5 10] buckets:[1 2 1]")).value == 7.5
    assert quantile(1, h("schema:-53 sum:5 count:4 custom_values:[5 10] buckets:[1 2 1]")).value == 10
    assert quantile(0.5, h("count:1 sum:0.2 z_bucket:1 z_bucket_w:0.5")).value == 0
    assert quantile(0.5, h("count:4 sum:1 z_bucket:4 z_bucket_w:0.5 buckets:[0]")).value == 0.25
    assert quantile(-1, h("count:1")).value == -math.inf
    assert quantile(2, h("count:1")).value == math.inf
    assert math.isnan(quantile(0.5, h("")).value)


def test_observations_of_nan_skew_quantiles_and_miss_in_fractions() -> None:
    some = h("count:15 sum:NaN buckets:[12]")
    assert quantile(0.4, some).value == pytest.approx(math.sqrt(0.5))
    assert quantile(0.4, some).is_skewed
    assert quantile(0.81, some).is_nan_result
    assert fraction(-math.inf, math.inf, some).value == 0.8
    assert fraction(-math.inf, math.inf, h("count:3 sum:NaN")).value == 0


def test_fractions_are_the_inverse_of_quantiles() -> None:
    histogram = h("count:12 sum:20 z_bucket:2 z_bucket_w:0.001 buckets:[2 3 0 1] n_buckets:[1 3]")
    for rank in (0.1, 0.3, 0.5, 0.9):
        assert fraction(-math.inf, quantile(rank, histogram).value, histogram).value == pytest.approx(rank)
    assert fraction(3, 3, histogram).value == 0
    assert math.isnan(fraction(math.nan, 1, histogram).value)


def test_mean_and_deviation_are_estimated() -> None:
    histogram = h("schema:2 count:4 sum:10 buckets:[1 0 0 0 1 0 0 1 1]")
    assert mean(histogram) == 2.5
    assert variance(histogram) == pytest.approx(1.163807968526718)
    assert deviation(histogram) == pytest.approx(1.0787993180043811)
    assert math.isnan(mean(h("")))


def test_trims_cut_buckets_and_estimate_the_sum() -> None:
    histogram = h("schema:-53 sum:172.5 count:15 custom_values:[5 10 15 20] buckets:[1 6 4 3 1]")
    below = trim_above(histogram, 13)
    assert (below.count, below.sum) == (pytest.approx(9.4), pytest.approx(75.1))
    above = trim_below(histogram, 13)
    assert (above.count, above.sum) == (pytest.approx(5.6), pytest.approx(94.9))
    assert trim_above(histogram, math.inf) is histogram
    assert trim_below(histogram, 0) is histogram
    assert compacted(trim_above(histogram, -math.inf)).positive_counts == ()


def test_trims_at_the_edges() -> None:
    zeros = h("count:3 sum:2 z_bucket:2 buckets:[1]")  # a zero bucket without width holds zeros
    assert trim_above(zeros, 0).count == 2
    assert trim_below(zeros, 0) is zeros
    for histogram in (zeros, h("schema:-53 count:3 sum:2 custom_values:[1] buckets:[2 1]")):
        assert trim_above(histogram, math.nan).count == 0
        assert trim_below(histogram, math.nan).count == 0


def test_increases_make_resets_good() -> None:
    samples = [
        h("count:4 sum:5 buckets:[1 2 1]"),
        h("count:5 sum:6 buckets:[1 1 3]"),
        h("count:6 sum:7 buckets:[1 2 3]"),
    ]
    change = counter_increase(samples)
    assert change.histogram is not None
    # The second sample has lost observations of a bucket: it counts from zero, and the first is not part of it.
    assert same(change.histogram, h("count:6 sum:7 buckets:[1 2 3]"))
    assert change.histogram.reset_hint is ResetHint.GAUGE
    assert change.findings == frozenset()
    restarted = counter_increase(samples[1:], [False, True])
    assert restarted.histogram is not None
    assert restarted.histogram.count == 6


def test_what_is_odd_about_a_window_is_told() -> None:
    gauge = h("count:1 counter_reset_hint:gauge")
    counter = h("count:2")
    custom = h("schema:-53 count:3 custom_values:[1]")
    assert counter_increase([gauge, gauge]).findings == {HistogramWarning.NOT_A_COUNTER}
    assert gauge_change([counter, counter]).findings == {HistogramWarning.NOT_A_GAUGE}
    assert counter_increase([counter, custom, h("count:4")]).histogram is None
    assert last_change(
        h("schema:-53 custom_values:[1]"), h("schema:-53 custom_values:[2]"), is_counter=False
    ).findings == {
        HistogramWarning.NOT_A_GAUGE,
        HistogramWarning.RECONCILED_IN_SUBTRACTION,
    }


def test_averages_survive_an_overflow_of_their_sum() -> None:
    huge = h("count:1e308 sum:1e308 buckets:[1e308]")
    assert average_of([huge, huge, huge]).histogram.count == pytest.approx(1e308)
    small = [h("count:1 sum:1e100 buckets:[1]"), h("count:1 sum:1 buckets:[1]"), h("count:1 sum:-1e100 buckets:[1]")]
    assert total_of(small).histogram.sum == 1


@pytest.mark.parametrize(
    "text",
    [
        "{{}}",
        "{{schema:-53 count:4 sum:5 custom_values:[5 10] buckets:[1 2 1]}}",
        "{{count:4 sum:-2.5 z_bucket:1 z_bucket_w:0.001 counter_reset_hint:gauge offset:-2 buckets:[1 0 2]}}",
        "{{count:1 n_offset:3 n_buckets:[1]}}",
        "{{schema:3 count:+Inf sum:NaN}}",
    ],
)
def test_histograms_are_written_as_they_are_read(text: str) -> None:
    assert write_histogram(read_histogram(text).histogram) == text


def test_people_see_bounds() -> None:
    histogram = h("count:20 sum:10 z_bucket:2 z_bucket_w:0.001 buckets:[1 2] n_buckets:[1 2]")
    assert describe(histogram) == "{count:20, sum:10, [-2,-1):2, [-1,-0.5):1, [-0.001,0.001]:2, (0.5,1]:1, (1,2]:2}"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{{",
        "{{sum}}",
        "{{sum:x}}",
        "{{sum:1 sum:2}}",
        "{{buckets:1}}",
        "{{schema:99}}",
        "{{other:1}}",
        "{{sum:[1]}}",
    ],
)
def test_texts_that_are_no_histogram_are_refused(text: str) -> None:
    with pytest.raises(HarchError) as caught:
        read_histogram(text)
    assert caught.value.code == "E0623"


def test_a_histogram_with_buckets_far_apart_is_written_in_little_space() -> None:
    apart = NativeHistogram(2, 2, positive_spans=(BucketSpan(0, 1), BucketSpan(1 << 30, 1)), positive_counts=(1.0, 1.0))
    assert len(write_histogram(apart)) < 200
    assert same(at_schema(apart, 0), apart)
    assert subtract(apart, apart).histogram.count == 0
