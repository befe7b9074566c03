"""Models one by one: what they say, and that none of them knows the future."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from harch.carbon.forecasts.history import HourPanel, panel
from harch.carbon.forecasts.models import Climatology, ForecastModel, Persistence, fit_ridge, fit_robust_ridge
from harch.carbon.forecasts.training import ALWAYS, FROM_MIX, FROM_VALUES, back_test, back_test_days, weights_by_error
from unit.carbon.forecasts.zones import zone

EVERY_MODEL = ALWAYS + FROM_VALUES + FROM_MIX
each_model = pytest.mark.parametrize("model", EVERY_MODEL, ids=lambda model: model.name)


def with_another_future(known: HourPanel, row: int) -> HourPanel:
    """The same past; everything from this row on is different."""
    day, fuel_mw, observed = known.day.copy(), known.fuel_mw.copy(), known.observed.copy()
    day[row:] = 7.0 * day[row:] + 13.0
    fuel_mw[:, row:] = 3.0 * fuel_mw[:, row:] + 100.0
    observed[row:] = ~observed[row:]
    return replace(known, day=day, fuel_mw=fuel_mw, observed=observed)


@each_model
def test_changing_the_future_does_not_change_a_forecast(model: ForecastModel) -> None:
    known = panel(zone(120, mix=True))
    changed = with_another_future(known, 90)
    row = slice(90, 91)
    assert (model.fit(known, 90).predict(known, row) == model.fit(changed, 90).predict(changed, row)).all()


def test_changing_the_future_does_not_change_the_past_of_a_back_test() -> None:
    known = panel(zone(150, mix=True))
    first = known.days - back_test_days(known.days)
    changed = with_another_future(known, first + 21)
    before, after = back_test(known, EVERY_MODEL), back_test(changed, EVERY_MODEL)
    assert before.names == after.names == tuple(model.name for model in EVERY_MODEL)
    assert (before.predicted[:, :22] == after.predicted[:, :22]).all()


@pytest.mark.parametrize("days", [3, 30, 80])
def test_the_naive_models_are_always_among_the_candidates(days: int) -> None:
    tested = back_test(panel(zone(days, mix=True)), EVERY_MODEL)
    assert {"persistence", "climatology"} <= set(tested.names)


@each_model
def test_no_model_says_less_than_nothing(model: ForecastModel) -> None:
    known = panel(zone(80, mix=True))
    falling = replace(known, day=np.maximum(known.day - np.linspace(0, 420, 80)[:, None], 0.0))
    said = model.fit(falling, 80).predict(falling, slice(70, 81))
    assert said.shape == (11, 96)
    assert np.isfinite(said).all()
    assert said.min() >= 0.0


def test_persistence_says_yesterday_and_climatology_the_week() -> None:
    known = panel(zone(20))
    row = slice(20, 21)
    assert (Persistence().fit(known, 20).predict(known, row)[0] == np.tile(known.day[-1], 4)).all()
    weekly = np.tile(known.day[-7:].mean(axis=0), 4)
    assert Climatology().fit(known, 20).predict(known, row)[0] == pytest.approx(weekly)


def test_climatology_of_a_young_zone_is_the_mean_of_the_days_it_has() -> None:
    known = panel(zone(3))
    said = Climatology().fit(known, 3).predict(known, slice(3, 4))[0]
    assert said == pytest.approx(np.tile(known.day.mean(axis=0), 4))


def test_the_intercept_is_not_penalised() -> None:
    rng = np.random.default_rng(3)
    inputs, targets = rng.normal(5, 1, (50, 4)), rng.normal(600, 10, (50, 2))
    fitted = fit_ridge(inputs, targets, np.ones(50), 1e12)
    assert fitted(inputs[:1])[0] == pytest.approx(targets.mean(axis=0), rel=1e-6)


def test_both_forms_of_ridge_agree() -> None:
    rng = np.random.default_rng(4)
    inputs, targets, weights = rng.normal(0, 1, (30, 29)), rng.normal(0, 1, (30, 3)), rng.uniform(0.5, 1, 30)
    narrow = fit_ridge(inputs, targets, weights, 2.0)
    idle = np.hstack([inputs, np.zeros((30, 40))])  # more columns than rows: the dual form
    assert fit_ridge(idle, targets, weights, 2.0)(idle) == pytest.approx(narrow(inputs))


def test_one_wild_day_moves_the_robust_fit_less() -> None:
    rng = np.random.default_rng(5)
    inputs = rng.normal(0, 1, (60, 1))
    targets = inputs + 0.01 * rng.normal(0, 1, (60, 1))
    targets[7] += 50.0
    plain, robust = (fit(inputs, targets, np.ones(60), 0.1) for fit in (fit_ridge, fit_robust_ridge))
    probe = np.array([[0.0]])
    assert abs(robust(probe)[0, 0]) < 0.2 * abs(plain(probe)[0, 0])


def test_a_model_that_is_ten_percent_worse_has_about_a_fifth_of_the_weight() -> None:
    weights = weights_by_error(np.array([[0.10, 0.2, 0.3, 0.4], [0.11, 0.2, np.nan, 0.4]]), 60)
    assert weights.sum(axis=0) == pytest.approx(np.ones(4))
    assert weights[1, 0] / weights[0, 0] == pytest.approx(0.217, abs=0.01)
    assert weights[:, 2].tolist() == weights[:, 1].tolist()


def test_few_tested_days_hardly_prefer_a_model() -> None:
    few, many = (weights_by_error(np.array([[0.1] * 4, [0.2] * 4]), days)[1, 0] for days in (1, 60))
    assert few > 0.35
    assert many < 0.001


def test_a_model_without_error_does_not_divide_by_zero() -> None:
    assert weights_by_error(np.array([[0.0] * 4, [0.1] * 4]), 60)[:, 0] == pytest.approx([1.0, 0.0])
