"""The cleanest hub wins, PUE counted; a ceiling defers to the first hour that keeps it, or is a plain no."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from harch.hub.carbon.views import Action, Advice, Option, advise, green_windows
from harch.testing.clock import START
from harch.wire.carbon import ForecastHour

HOUR = timedelta(hours=1)


def hours(*values: float) -> tuple[ForecastHour, ...]:
    return tuple(
        ForecastHour(at=START + (number + 1) * HOUR, g_per_kwh=value, low=0, high=0, low_half=0, high_half=0)
        for number, value in enumerate(values)
    )


def option(hub_id: str, g_per_kwh: float, *, pue: float = 1.0, ahead: tuple[ForecastHour, ...] = ()) -> Option:
    return Option(
        hub_id=hub_id,
        name=hub_id.title(),
        country="MA",
        grid_zone="MA",
        g_per_kwh=g_per_kwh,
        pue=pue,
        gpus_free=8,
        ahead=ahead,
    )


def asked(*options: Option, most: float | None = None, defer_ok: bool = True) -> Advice:
    return advise(options, g_per_kwh_max=most, defer_ok=defer_ok, now=START, refused=Action.REJECT)


def test_cooling_counts() -> None:
    advice = asked(option("a", 500, pue=1.5), option("b", 600, pue=1.1))
    assert advice.option is not None
    assert (advice.action, advice.option.hub_id, [one.hub_id for one in advice.others]) == ("schedule_now", "b", ["a"])
    assert "estimated" in advice.reason


def test_above_the_ceiling_it_waits_for_the_first_hour_that_keeps_it_anywhere() -> None:
    advice = asked(option("a", 500, ahead=hours(450, 250, 100)), option("b", 600, ahead=hours(600, 300)), most=300)
    assert advice.option is not None
    assert (advice.action, advice.option.hub_id, advice.start) == ("defer", "a", START + 2 * HOUR)


def test_what_cannot_wait_or_never_comes_below_is_refused_with_the_reason() -> None:
    dirty = option("a", 500, ahead=hours(450, 250))
    for advice in (asked(dirty, most=300, defer_ok=False), asked(dirty, most=200), asked()):
        assert (advice.action, advice.option) == ("reject", None)
        assert advice.reason


@given(st.lists(st.floats(0, 1000), max_size=96), st.floats(0, 1000))
def test_green_windows_hold_exactly_the_hours_below_the_threshold(values: list[float], most: float) -> None:
    windows = green_windows(hours(*values), most)
    inside = [
        hour.g_per_kwh for hour in hours(*values) if any(window.start <= hour.at < window.end for window in windows)
    ]
    assert inside == [value for value in values if value <= most]
    assert all(window.g_per_kwh_min <= window.g_per_kwh_mean + 1e-9 for window in windows)
    assert all(before.end < after.start for before, after in pairwise(windows))
