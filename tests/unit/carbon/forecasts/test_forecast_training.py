"""A zone from its first hour to its second year: what it is told, how sure, and when it learns again."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import numpy as np
import pytest

from harch.carbon.forecasts.forecast import QUANTILES, CarbonForecast, guessed_spread, spread_of_errors
from harch.carbon.forecasts.history import HORIZON_H, HOUR, Fuel, NothingKnown, SeriesHistory
from harch.carbon.forecasts.training import due, forecast, train, train_and_forecast
from unit.carbon.forecasts.zones import START, zone


def check_sane(said: CarbonForecast) -> None:
    """What holds for every forecast, from whatever history."""
    low, lower, upper, high = (said.quantiles[level] for level in QUANTILES)
    for values in (said.mean, low, lower, upper, high):
        assert values.shape == (HORIZON_H,)
        assert np.isfinite(values).all()
        assert values.min() >= 0.0
    assert (low <= lower).all()
    assert (lower <= upper).all()
    assert (upper <= high).all()
    for day in range(4):
        assert sum(weight[day] for weight in said.weights.values()) == pytest.approx(1.0)


def width(said: CarbonForecast) -> float:
    return float(np.mean((said.quantiles[0.95] - said.quantiles[0.05]) / said.mean))


def test_a_year_of_history_beats_yesterday_with_and_without_the_mix() -> None:
    history = zone(420, seed=8, mix=True)
    days = range(400, 416)
    hits = {}
    for name, known in (("mix", history), ("values", replace(history, mix=()))):
        trained = train(known.until(START + timedelta(days=400)))
        said = [forecast(trained, known.until(START + timedelta(days=day))).mean[:24] for day in days]
        actual = [history.values[day * 24 : day * 24 + 24] for day in days]
        hits[name] = np.abs(np.array(said) - actual).mean()
    yesterday = np.mean([np.abs(np.diff(history.values.reshape(-1, 24), axis=0)[day - 1]).mean() for day in days])
    assert hits["values"] < 0.9 * yesterday
    assert hits["mix"] < 0.9 * yesterday


def test_a_forecast_says_who_made_it_from_what_and_how_wrong_it_was() -> None:
    history = zone(250, seed=2)
    said = train_and_forecast(history)
    check_sane(said)
    assert said.start == history.end
    assert said.step == HOUR
    assert "ridge" in said.model
    assert said.trained_on.hours_observed == 250 * 24
    assert said.error.days == 60
    assert said.error.ratio_to_persistence < 1.0
    assert said.notes == ()


def test_hours_of_a_forecast_are_found_by_their_moment() -> None:
    said = train_and_forecast(zone(60))
    moment = said.start + timedelta(hours=5, minutes=20)
    assert said.at(moment) == said.mean[5]
    assert said.between(moment) == (said.quantiles[0.05][5], said.quantiles[0.95][5])
    for outside in (said.start - timedelta(seconds=1), said.start + 96 * HOUR):
        with pytest.raises(LookupError):
            said.at(outside)


def test_naive_models_win_where_they_are_right() -> None:
    shape = 300 + 100 * np.sin(np.arange(24) / 24 * 2 * np.pi)
    rng = np.random.default_rng(4)
    steps = np.repeat(np.cumsum(rng.choice([-30.0, 30.0], 100)) + 2000, 24)  # every day is a new level: a random walk
    said = train_and_forecast(SeriesHistory(START, np.tile(shape, 100) + steps))
    assert said.weights["persistence"][0] > 5 * said.weights.get("climatology", (0.0,))[0]


@pytest.mark.parametrize("days", [1 / 24, 0.5, 1, 1.5, 2, 3, 5, 7, 8, 14, 20, 31, 47, 48, 49, 60])
def test_a_short_history_still_gives_a_forecast_and_says_that_it_is_short(days: float) -> None:
    said = train_and_forecast(zone(days, seed=5))
    check_sane(said)
    assert any("history" in note for note in said.notes) == (days < 60)


def test_the_less_is_known_the_wider_the_intervals() -> None:
    history = zone(400, seed=6)
    known = {days: SeriesHistory(history.end - days * 24 * HOUR, history.values[-24 * days :]) for days in (1, 3, 400)}
    one, three, many = (width(train_and_forecast(past)) for past in known.values())
    assert one > three > many


def test_the_forecast_of_a_day_old_zone_is_yesterday() -> None:
    history = zone(1)
    said = train_and_forecast(history)
    assert said.model == "persistence"
    assert (said.mean == np.tile(history.values, 4)).all()
    assert np.isnan(said.error.by_day_pct).all()


def test_less_than_a_day_gives_one_level() -> None:
    history = zone(5 / 24)
    said = train_and_forecast(history)
    assert said.model == "level"
    assert said.mean == pytest.approx(np.full(96, history.values.mean()))


def test_nothing_known_gives_nothing() -> None:
    with pytest.raises(NothingKnown):
        train_and_forecast(SeriesHistory(START, np.full(500, np.nan)))


@pytest.mark.parametrize("level", [0.0, 1e-6, 24.0, 1e6])
def test_a_constant_stays_constant(level: float) -> None:
    said = train_and_forecast(SeriesHistory(START, np.full(100 * 24, level)))
    check_sane(said)
    assert said.mean == pytest.approx(np.full(96, level), rel=1e-6)


def test_gaps_everywhere_are_survived_and_told() -> None:
    rng = np.random.default_rng(9)
    history = zone(150, mix=True)
    values = np.where(rng.random(150 * 24) < 0.2, np.nan, history.values)
    values[2000:2600] = np.nan
    values[-5:] = -1.0
    mix = tuple(replace(fuel, mw=np.where(rng.random(150 * 24) < 0.2, np.nan, fuel.mw)) for fuel in history.mix)
    said = train_and_forecast(SeriesHistory(START, values, mix))
    check_sane(said)
    assert "of the last 24 hours" in said.notes[1]
    assert np.abs(said.mean / history.values.mean() - 1).max() < 1.0


@pytest.mark.parametrize("every_h", [2, 3, 24, 200])
def test_a_feed_that_speaks_rarely_is_survived(every_h: int) -> None:
    values = zone(80).values
    values = np.where(np.arange(len(values)) % every_h == 0, values, np.nan)
    said = train_and_forecast(SeriesHistory(START, values))
    check_sane(said)
    assert 100 < said.mean.mean() < 600


@pytest.mark.parametrize("silent_h", [1, 6, 30, 200])
def test_a_feed_that_fell_silent_makes_the_intervals_wider(silent_h: int) -> None:
    history = zone(120, seed=3)
    trained = train(history)
    values = history.values.copy()
    values[-silent_h:] = np.nan
    said, fresh = forecast(trained, SeriesHistory(START, values)), forecast(trained, history)
    check_sane(said)
    assert width(said) > width(fresh)
    assert any("of the last 24 hours are missing" in note for note in said.notes)


def test_hours_without_any_emissions_are_no_trouble() -> None:
    values = np.where(np.arange(120 * 24) % 24 < 8, 0.0, zone(120).values)
    said = train_and_forecast(SeriesHistory(START, values))
    check_sane(said)
    assert said.mean[:6].max() < 0.1 * said.mean.max()


def test_a_mix_that_names_other_fuels_is_not_used() -> None:
    history = zone(100, mix=True)
    trained = train(history)
    renamed = replace(history, mix=tuple(Fuel(fuel.name + "?", fuel.mw, fuel.g_per_kwh) for fuel in history.mix))
    said = forecast(trained, renamed)
    check_sane(said)
    assert any("mix" in note for note in said.notes)
    assert not any("fuels" in name or "mix" in name for name in said.weights)


def test_a_mix_without_energy_is_no_trouble() -> None:
    history = zone(100, mix=True)
    check_sane(train_and_forecast(replace(history, mix=tuple(replace(f, mw=np.zeros(2400)) for f in history.mix))))


def test_two_trainings_on_one_history_say_the_same() -> None:
    one, two = train_and_forecast(zone(80)), train_and_forecast(zone(80))
    assert (one.mean == two.mean).all()
    assert one.model == two.model


def test_a_zone_is_trained_weekly_and_daily_while_it_is_young() -> None:
    old, young = train(zone(70)), train(zone(20))
    assert due(None, old.end) == "never trained"
    assert due(old, old.end) is None
    assert due(old, old.end + timedelta(days=6)) is None
    assert due(old, old.end + timedelta(days=7)) == "trained 7 days ago"
    assert due(young, young.end + timedelta(days=1)) == "trained 1 days ago"
    assert due(old, old.end - timedelta(days=1)) == "trained on later hours"


def test_a_training_holds_for_one_hour_of_the_day() -> None:
    trained = train(zone(50))
    later = zone(50 + 1 / 24)
    assert due(trained, later.end) == "trained for forecasts from 00:00, not from 01:00 UTC"
    with pytest.raises(ValueError, match="not from 01:00"):
        forecast(trained, later)


def test_a_history_that_lost_its_past_falls_back_to_the_naive_models() -> None:
    trained = train(zone(100))
    whole = zone(100)
    said = forecast(trained, SeriesHistory(whole.end - 5 * 24 * HOUR, whole.values[-5 * 24 :]))
    check_sane(said)
    assert set(said.weights) <= {"persistence", "climatology"}


def test_nine_in_ten_hours_fall_into_the_interval() -> None:
    inside_50, inside_90 = [], []
    for seed in range(4):
        history = zone(290, seed=100 + seed)
        trained = train(history.until(START + timedelta(days=260)))
        for day in range(260, 286):
            said = forecast(trained, history.until(START + timedelta(days=day)))
            actual = history.values[day * 24 : day * 24 + 96]
            inside_90.append(((said.quantiles[0.05] <= actual) & (actual <= said.quantiles[0.95])).mean())
            inside_50.append(((said.quantiles[0.25] <= actual) & (actual <= said.quantiles[0.75])).mean())
    assert 0.80 < np.mean(inside_90) < 0.97
    assert 0.38 < np.mean(inside_50) < 0.62


def test_days_that_were_never_seen_borrow_the_last_one_that_was() -> None:
    predicted = np.full((30, 96), 100.0)
    actual = np.full((30, 96), np.nan)
    actual[:, :24] = np.random.default_rng(1).uniform(80, 125, (30, 24))
    spread = spread_of_errors(predicted, actual, 100.0)
    assert spread.log_ratio[0.95][72:] == pytest.approx(1.075 * spread.log_ratio[0.95][:24])


def test_few_errors_do_not_make_a_zone_sure() -> None:
    predicted = np.full((3, 96), 100.0)
    few = spread_of_errors(predicted, predicted, 100.0)
    assert few.log_ratio[0.95][0] > 0.7 * guessed_spread(100.0).log_ratio[0.95][0]
