"""Does a carbon replay bill what happens, keep every promise, and compare like with like?"""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from msgspec import structs

from harch.base.errors import HarchError
from harch.cli.main import root
from harch.fleet.model import Fleet
from harch.simulate.carbon import POLICIES, periods_of, replay_period, simulate_carbon
from harch.simulate.carbon_routers import forecast_wind
from harch.simulate.carbon_scenario import Scenario, draw_jobs, load_scenario, shipped_scenario_names
from harch.simulate.carbon_weather import HISTORY_DAYS, STEPS_PER_DAY, Plants, PowerMeter, weather_of


def plants(onsite_kw: float, grid: float = 500.0) -> Plants:
    steps = (HISTORY_DAYS + 2) * STEPS_PER_DAY
    return Plants(np.full(steps, onsite_kw), np.zeros(steps), np.full(steps, grid), 20.0, 1.5)


def test_the_shipped_scenarios_are_what_the_goal_says() -> None:
    assert shipped_scenario_names() == ("full-house-94", "grid-only", "onsite-124")
    onsite = load_scenario("onsite-124")
    assert [(case.utilisation, case.pv_times, case.wind_times) for case in onsite.cases] == [(0.5, 3, 2), (0.7, 4, 3)]
    assert onsite.pinned == {"MA": 0.6, "SN": 0.1, "CI": 0.1}
    assert onsite.deferrable_share == pytest.approx(0.5)
    assert {kind.slack_h for kind in onsite.work} == {0.0, 24.0}
    assert len({week.month for week in onsite.weeks}) == 4
    assert all(case.pv_times == case.wind_times == 0 for case in load_scenario("grid-only").cases)
    assert all(case.utilisation == 0.94 for case in load_scenario("full-house-94").cases)


def test_a_meter_takes_own_power_first_and_the_rest_from_the_grid() -> None:
    meter = PowerMeter(plants(onsite_kw=9.0))
    meter.change(0.0, 10.0)  # 15 kW at the meter
    meter.change(7200.0, -10.0)
    meter.advance(9999.0)
    assert (meter.onsite_kwh, meter.grid_kwh, meter.it_kwh) == pytest.approx((18.0, 12.0, 20.0))
    assert meter.grams == pytest.approx(18 * 20 + 12 * 500)


def test_jobs_hold_the_shares_of_the_scenario(fleet: Fleet, scenario: Scenario) -> None:
    jobs = draw_jobs(fleet, structs.replace(scenario, days=30), 0.5, seed=1)
    hours = {job.request.id: job.duration_s * job.kind.gpus / 3600 for job in jobs}
    asked = sum(hours.values())
    assert asked / (fleet.gpu_count * 30 * 24) == pytest.approx(0.5, rel=0.03)
    pinned = sum(hours[job.request.id] for job in jobs if job.hubs == {"north"})
    assert pinned / asked == pytest.approx(0.3, abs=0.03)
    assert sum(hours[job.request.id] for job in jobs if job.deferrable) / asked == pytest.approx(0.5, abs=0.03)
    assert jobs == draw_jobs(fleet, structs.replace(scenario, days=30), 0.5, seed=1)


def test_modelled_wind_has_the_assumed_capacity_factor_in_the_long_run(fleet: Fleet, scenario: Scenario) -> None:
    weather = weather_of(fleet, scenario.weather, datetime(2024, 1, 1, tzinfo=UTC), 300, seed=1)
    for hub in weather.hubs.values():
        assert hub.wind_share.mean() == pytest.approx(0.25, abs=0.06)
        assert 0 <= hub.pv_share.min() <= hub.pv_share.max() <= 1
        assert hub.pv_share[:8].max() == 0  # midnight


def test_wind_is_forecast_from_where_it_is_back_to_its_mean() -> None:
    random = np.random.default_rng(1)
    wind = [50.0]
    for _ in range(600):
        wind.append(50 + 0.95 * (wind[-1] - 50) + random.normal(0, 3))
    mean, variance = forecast_wind(np.array([*wind, 90.0]))
    assert mean[0] == pytest.approx(90.0)
    assert (np.diff(mean) < 0).all()
    assert (np.diff(variance) >= 0).all()


def test_three_policies_do_the_same_work_and_planning_emits_less(fleet: Fleet, scenario: Scenario) -> None:
    outcome = simulate_carbon(fleet, scenario)
    case: Any = outcome.report["cases"]
    (case,) = case
    assert set(case["policies"]) == set(POLICIES)
    assert len({found["gpu_hours_done"] for found in case["policies"].values()}) == 1
    for found in case["policies"].values():
        assert found["violations"] == found["deadline_misses"] == found["promises_broken"] == 0
        assert found["jobs_not_ended"] == 0
    assert case["policies"]["harch"]["g_per_kwh"] < case["policies"]["naive"]["g_per_kwh"]
    assert outcome.report["evidence"] == "estimated"


def test_the_naive_policy_starts_everything_at_once_where_it_came_in(fleet: Fleet, scenario: Scenario) -> None:
    (period,) = periods_of(fleet, scenario, structs.replace(scenario.cases[0], utilisation=0.1))
    replay = replay_period(fleet, scenario, period, "naive")
    assert max(replay.counts.waits_s.values()) == 0
    assert replay.counts.moves == replay.counts.suspensions == 0


def test_the_forecast_never_sees_what_will_be(fleet: Fleet, scenario: Scenario) -> None:
    """Two futures with the same past give the same first decisions."""
    (period,) = periods_of(fleet, scenario, scenario.cases[0])
    now = HISTORY_DAYS * STEPS_PER_DAY
    other = {}
    for hub, own in period.plants.items():
        pv_kw, wind_kw = own.pv_kw.copy(), own.wind_kw.copy()
        pv_kw[now + 8 :], wind_kw[now + 8 :] = 0.0, 0.0
        other[hub] = Plants(pv_kw, wind_kw, own.grid_g_per_kwh, own.onsite_g_per_kwh, own.pue)
    first, second = (
        replay_period(fleet, scenario, replace(period, plants=plants), "harch").counts.waits_s
        for plants in (period.plants, other)
    )
    early = [job.request.id for job in period.jobs if job.request.submitted_s + first[job.request.id] < 2 * 3600 - 1]
    assert early
    assert all(first[job_id] == second[job_id] for job_id in early)


def test_other_weather_can_be_given_as_a_file(fleet: Fleet, scenario: Scenario, tmp_path: Path) -> None:
    path = tmp_path / "weather.csv"
    rows = ["time,hub,pv_share,wind_share,grid_g_per_kwh", "2024-05-05T00:00Z,north,0,0.5,100"]
    path.write_text("\n".join([*rows, "2024-05-05T00:00Z,south,0,0.25,", "2024-05-06T00:00Z,north,0.1,0,200"]))
    weather = structs.replace(scenario.weather, csv=str(path))
    found = weather_of(fleet, weather, datetime(2024, 6, 3, tzinfo=UTC), 1, seed=1).hubs
    assert found["north"].wind_share[[0, 95, 96]].tolist() == [0.5, 0.5, 0.0]
    assert found["north"].grid_g_per_kwh[-1] == 200
    assert found["south"].grid_g_per_kwh[0] == pytest.approx(393.9)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("2024-05-05T00:00Z,north,1.2,0,", "shares must be 0 to 1"),
        ("yesterday,north,1,0,", "line 2"),
        ("2024-05-05T00:00Z,north,nan,0,", "shares must be 0 to 1"),
        ("2024-06-05T00:00Z,north,0,0,", "does not cover"),
    ],
)
def test_weather_that_cannot_be_is_refused(
    fleet: Fleet, scenario: Scenario, tmp_path: Path, row: str, said: str
) -> None:
    path = tmp_path / "weather.csv"
    path.write_text(f"time,hub,pv_share,wind_share,grid_g_per_kwh\n{row}")
    with pytest.raises(HarchError, match=said):
        weather_of(fleet, structs.replace(scenario.weather, csv=str(path)), datetime(2024, 6, 3, tzinfo=UTC), 1, seed=1)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name = ", "not TOML"),
        ('extends = "onsite-124"\ncolour = 1', "colour"),
        ('extends = "onsite-124"\n[pinned]\nMA = 0.9\nSN = 0.2', "more than 1"),
        ('extends = "nowhere"', "onsite-124"),
    ],
)
def test_a_scenario_that_cannot_be_is_refused_with_a_hint(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(HarchError) as caught:
        load_scenario(str(path))
    assert said in f"{caught.value}\n{caught.value.hint}"


def test_the_verb_prints_one_document_with_its_conditions(scenario_path: Path, fleet_text: str, tmp_path: Path) -> None:
    (tmp_path / "fleet.toml").write_text(fleet_text)
    text = scenario_path.read_text().replace("name = ", f'fleet = "{tmp_path / "fleet.toml"}"\nname = ', 1)
    scenario_path.write_text(text)
    done = CliRunner().invoke(root, ["simulate", "carbon", str(scenario_path), "--json"])
    assert done.exit_code == 0, done.output
    printed = json.loads(done.stdout)
    for name in ("evidence", "accounting", "deferrable_share", "pinned_share", "seed", "weather"):
        assert printed[name] not in (None, "")
    assert printed["cases"][0]["utilisation_asked"] == 0.5


@pytest.mark.parametrize("name", shipped_scenario_names())
def test_every_shipped_scenario_can_be_replayed_from_the_command_line(name: str, tmp_path: Path) -> None:
    """An hour or two of work on one day: the shipped fleet, kinds of work, pins, weather and plants."""
    shipped = load_scenario(name).cases[0]
    lines = [f'extends = "{name}"', 'weeks = ["2024-06-03"]', "[[cases]]", "utilisation = 0.01"]
    lines += [f"pv_times = {shipped.pv_times}", f"wind_times = {shipped.wind_times}"]
    (tmp_path / "short.toml").write_text("\n".join(lines))
    picture = tmp_path / "out.png"
    arguments = ["simulate", "carbon", str(tmp_path / "short.toml"), "--days", "1", "--json"]
    done = CliRunner().invoke(root, [*arguments, "--plot", str(picture)])
    assert done.exit_code == 0, done.output
    printed = json.loads(done.stdout)
    assert printed["scenario"] == name
    (case,) = printed["cases"]
    for found in case["policies"].values():
        assert found["violations"] == found["deadline_misses"] == found["jobs_not_ended"] == 0
        assert found["gpu_hours_done"] > 0
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_the_first_week_is_drawn_in_the_terminal_on_its_own_days(
    scenario_path: Path, fleet_text: str, tmp_path: Path
) -> None:
    (tmp_path / "fleet.toml").write_text(fleet_text)
    text = scenario_path.read_text().replace("name = ", f'fleet = "{tmp_path / "fleet.toml"}"\nname = ', 1)
    scenario_path.write_text(text)
    done = CliRunner().invoke(root, ["simulate", "carbon", str(scenario_path), "--plot"])
    assert done.exit_code == 0, done.output
    for policy in POLICIES:
        assert f"{policy}, 50 % requested" in done.stdout
    assert "● on site" in done.stdout
    assert "3 Jun UTC" in done.stdout
    assert "modelled, estimated" in done.stdout


def test_the_progress_of_a_replay_never_goes_back(fleet: Fleet, scenario: Scenario) -> None:
    shares: list[float] = []
    simulate_carbon(fleet, scenario, progress=lambda done, of: shares.append(done / of))
    assert shares == sorted(shares)
    assert 0 < shares[-1] <= 1
