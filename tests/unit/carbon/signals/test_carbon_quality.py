"""Which readings must no decision rest on? Each rule, and that what is honest passes."""

from __future__ import annotations

import math
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harch.carbon.signals.quality import (
    DEFAULT_LIMITS,
    SAMPLES_MAX,
    SampleHistory,
    SignalSample,
    arrival_rejections,
    forecast_rejections,
    remembered,
    staleness,
    stuckness,
)
from harch.carbon.values import Evidence, Signal
from harch.testing.clock import START
from unit.carbon.signals.carbon_readings import GRID, hourly, reading, seen

HOUR = timedelta(hours=1)


def rules(number: float, **circumstances: object) -> list[str]:
    return [no.rule for no in arrival_rejections(reading(number), seen(**circumstances))]  # type: ignore[arg-type]


@given(st.sampled_from(list(Signal)), st.floats(allow_nan=True, allow_infinity=True))
def test_only_numbers_within_physical_limits_pass_and_every_no_has_its_reason(signal: Signal, number: float) -> None:
    limits = DEFAULT_LIMITS[signal]
    found = arrival_rejections(reading(number, signal=signal), seen(signal=signal))
    if math.isfinite(number) and limits.low <= number <= limits.high and abs(number) <= limits.high:
        assert found == ()
    else:
        assert [no.rule for no in found] == ["limits" if math.isfinite(number) else "number"]
        assert found[0].subject == "api"
        assert found[0].detail


def test_a_value_in_pounds_of_a_coal_grid_is_over_the_limit_and_the_fix_says_so() -> None:
    (no,) = arrival_rejections(reading(630 / 0.45359237), seen())
    assert no.rule == "limits"
    assert "as lbs/MWh it would be 630 g/kWh" in no.nearest_fix


def test_a_value_in_kilograms_per_kwh_is_under_the_limit_and_the_fix_says_so() -> None:
    (no,) = arrival_rejections(reading(0.63), seen())
    assert no.rule == "limits"
    assert "as kg/kWh it would be 630 g/kWh" in no.nearest_fix


@given(st.floats(20, 500), st.integers(0, 40))
def test_a_source_that_changes_to_pounds_is_found_out_by_the_factor(number: float, hours: int) -> None:
    past = hourly([number * (1 + 0.002 * (hour % 3)) for hour in range(hours)] + [number])
    assert "unit" in rules(number / 0.45359237, history=past)


def test_plants_do_not_give_more_than_their_plate() -> None:
    assert rules_of_pv(1300.0) == ["limits"]
    assert rules_of_pv(1200.0) == []


def rules_of_pv(kw: float) -> list[str]:
    circumstances = seen(signal=Signal.PV_POWER, number_max=1250.0)
    return [no.rule for no in arrival_rejections(reading(kw, signal=Signal.PV_POWER), circumstances)]


@given(st.floats(-1e5, 1e5))
def test_a_reading_from_the_future_is_no_reading_unless_it_is_a_forecast(ahead_s: float) -> None:
    moment = START + timedelta(seconds=ahead_s)
    found = [no.rule for no in arrival_rejections(reading(600.0, at=moment), seen())]
    assert found == (["future"] if ahead_s > 90 else [])
    assert forecast_rejections(reading(600.0, at=moment, ahead=True), seen()) == ()


@given(st.floats(1, 1e6))
def test_time_that_goes_backwards_is_refused_and_does_not_change_the_past(back_s: float) -> None:
    past = hourly([600.0] * 3)
    late = reading(500.0, at=past.samples[-1].at - timedelta(seconds=back_s))
    assert [no.rule for no in arrival_rejections(late, seen(past))] == ["backwards"]
    assert remembered(late, seen(past)) == past


def test_a_correction_for_the_same_moment_replaces_the_value() -> None:
    past = hourly([600.0, 610.0])
    mended = reading(605.0, at=past.samples[-1].at)
    assert arrival_rejections(mended, seen(past)) == ()
    assert remembered(mended, seen(past)).numbers() == [600.0, 605.0]


@given(st.lists(st.floats(60, 240), min_size=12, max_size=100))
def test_a_tenth_of_what_a_zone_has_shown_is_an_outlier_because_it_would_draw_work_there(numbers: list[float]) -> None:
    assert "outlier" in rules(min(numbers) / 10, history=hourly(numbers))


@given(st.floats(30, 100), st.lists(st.floats(0.8, 1.25), min_size=12, max_size=100))
def test_ten_times_what_a_steady_zone_has_shown_is_an_outlier(usual: float, hours: list[float]) -> None:
    assert "outlier" in rules(10 * usual, history=hourly([usual * hour for hour in hours]))


def test_a_lie_that_was_doubted_does_not_make_the_next_one_credible() -> None:
    past = hourly([100.0 + hour % 5 for hour in range(20)])
    for hour in range(12):
        lie = reading(225.0, at=START + hour * HOUR)
        circumstances = seen(past, now=START + hour * HOUR)
        assert "unit" in [no.rule for no in arrival_rejections(lie, circumstances)]
        past = remembered(lie, circumstances)


def test_marginal_intensity_may_honestly_fall_to_nothing() -> None:
    signal = Signal.GRID_MARGINAL_DIRECT
    assert arrival_rejections(reading(0.0, signal=signal), seen(hourly([450.0] * 60), signal=signal)) == ()


@given(st.lists(st.floats(60, 400), min_size=24, max_size=100), st.data())
def test_a_value_that_the_zone_has_shown_before_is_never_an_outlier_in_a_zone_that_swings(
    numbers: list[float], data: st.DataObject
) -> None:
    swinging = numbers + [60.0, 400.0] * len(numbers)  # the duck curve: every day touches both ends
    again = data.draw(st.sampled_from(numbers))
    assert "outlier" not in rules(again, history=hourly(swinging))


def test_a_lasting_change_is_believed_once_it_is_the_usual() -> None:
    past = hourly([40.0] * 24)
    verdicts = []
    for hour in range(48):
        late = reading(400.0, at=START + hour * HOUR)
        circumstances = seen(past, now=START + hour * HOUR)
        verdicts.append([no.rule for no in arrival_rejections(late, circumstances)])
        past = remembered(late, circumstances)
    assert verdicts[:24] == [["outlier"]] * 24, "a lie of a day does not vouch for itself"
    assert verdicts[-1] == []


def test_prices_and_pv_may_jump() -> None:
    past = hourly([50.0] * 48)
    for signal in (Signal.PRICE, Signal.PV_POWER):
        found = arrival_rejections(reading(3000.0, signal=signal), seen(past, signal=signal))
        assert found == ()


@given(st.sampled_from(list(Signal)), st.floats(0, 1e6))
def test_a_reading_is_stale_exactly_when_it_is_older_than_its_limit(signal: Signal, age_s: float) -> None:
    now = START + timedelta(seconds=age_s)
    found = staleness(reading(1.0, signal=signal), now=now, limits=DEFAULT_LIMITS[signal])
    assert (found is not None) == ((now - START).total_seconds() > DEFAULT_LIMITS[signal].stale_after_s)


def test_a_source_that_says_how_long_a_value_holds_is_believed() -> None:
    tariff = reading(90.0, signal=Signal.PRICE, valid_until=START + 6 * HOUR)
    limits = DEFAULT_LIMITS[Signal.PRICE]
    assert staleness(tariff, now=START + 5 * HOUR, limits=limits) is None
    stale = staleness(tariff, now=START + 6 * HOUR, limits=limits)
    assert stale is not None
    assert stale.rule == "stale"


@pytest.mark.parametrize(
    ("number", "evidence", "minutes", "is_stuck"),
    [
        (412.5, Evidence.MEASURED, 31, True),
        (412.5, Evidence.MEASURED, 20, False),
        (0.0, Evidence.MEASURED, 600, False),  # night
        (412.5, Evidence.ESTIMATED, 600, False),  # a model may well say the same all day
    ],
)
def test_a_meter_that_never_moves_is_stuck(number: float, evidence: Evidence, minutes: int, is_stuck: bool) -> None:
    samples = tuple(SignalSample(START + timedelta(minutes=minute), number) for minute in range(minutes + 1))
    last = reading(number, signal=Signal.PV_POWER, at=samples[-1].at, evidence=evidence)
    found = stuckness(last, history=SampleHistory(samples), limits=DEFAULT_LIMITS[Signal.PV_POWER])
    assert (found is not None) == is_stuck


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=30))
def test_nonsense_never_becomes_part_of_the_past(numbers: list[float]) -> None:
    past = SampleHistory()
    for hour, number in enumerate(numbers):
        past = remembered(reading(number, at=START + hour * HOUR), seen(past, now=START + hour * HOUR))
    limits = DEFAULT_LIMITS[GRID]
    assert all(limits.low <= number <= limits.high for number in past.numbers())


def test_the_past_is_bounded() -> None:
    past = hourly([500.0] * SAMPLES_MAX)
    assert len(past.with_sample(SignalSample(START, 501.0)).samples) == SAMPLES_MAX
