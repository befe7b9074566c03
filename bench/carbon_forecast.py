"""How good are the carbon forecasts, against yesterday's value and against the forecasts that CarbonCast shipped?

Replays service: every day at 00:00 UTC a forecast of 96 h from the past alone, retrained every week. The series are not
part of HarchOS: name their folder with `--data` or HARCH_CARBON_DATA.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np

from carbon_data import (
    MIX_FILE,
    PUBLISHED_FILE,
    UNSEEN_FILE,
    published_errors_pct,
    zones_unseen,
    zones_with_mix,
)
from harch.carbon.forecasts.history import HORIZON_H, HOUR, Floats, SeriesHistory
from harch.carbon.forecasts.training import Trained, due, forecast, train
from verdict import Verdict, conditions

DAY = timedelta(days=1)
PARTS = ("mix", "values", "unseen", "unseen-shares", "short")
# Half years of 2021. The first chose the constants of the models; the second is the one with goals.
PERIODS = {
    "h1": (datetime(2021, 1, 1, tzinfo=UTC), datetime(2021, 6, 27, tzinfo=UTC)),
    "h2": (datetime(2021, 7, 1, tzinfo=UTC), datetime(2021, 12, 29, tzinfo=UTC)),
}
UNSEEN_FROM, UNSEEN_TO = datetime(2022, 1, 1, tzinfo=UTC), datetime(2023, 12, 28, tzinfo=UTC)
SHORT_DAYS = (0.5, 1, 2, 3, 5, 7, 14, 21, 28, 35, 42, 49, 60, 90)
Say = Callable[[str], None]


@dataclass(frozen=True)
class Replay:
    """One zone: relative errors per day ahead in %, and how often the truth fell inside the intervals."""

    days: int
    ours_pct: Floats  # [4]
    persistence_pct: Floats
    climatology_pct: Floats
    shown_pct: Floats  # the error that the forecasts themselves announced
    inside_50_pct: float
    inside_90_pct: float
    inside_90_by_day_pct: Floats
    train_s: float
    forecast_ms: float

    @property
    def ratio(self) -> float:
        return float(self.ours_pct[0] / self.persistence_pct[0])


def replay(history: SeriesHistory, start: datetime, stop: datetime, every: timedelta = DAY) -> Replay:
    """A forecast from `start` until before `stop`, every so often, each from the history up to its first hour."""
    trained: Trained | None = None
    errors: list[Floats] = []
    inside: list[tuple[Floats, Floats]] = []
    train_s, forecast_s, trainings, shown = 0.0, 0.0, 0, []
    origins = [start + step * every for step in range((stop - start) // every)]
    for origin in origins:
        past = history.until(origin)
        if due(trained, origin):
            began = time.process_time()
            trained = train(past)
            train_s, trainings = train_s + time.process_time() - began, trainings + 1
        if trained is None:
            raise RuntimeError("a zone that was never trained is due")
        began = time.process_time()
        said = forecast(trained, past)
        forecast_s += time.process_time() - began
        hour = (origin - history.start) // HOUR
        actual = history.values[hour : hour + HORIZON_H]
        week = history.values[hour - 168 : hour].reshape(7, 24).mean(axis=0)
        rivals = (said.mean, np.tile(history.values[hour - 24 : hour], 4), np.tile(week, 4))
        errors.append(np.array([100 * np.abs(rival - actual) / actual for rival in rivals]))
        low, lower, upper, high = (said.quantiles[level] for level in (0.05, 0.25, 0.75, 0.95))
        inside.append(((lower <= actual) & (actual <= upper), (low <= actual) & (actual <= high)))
        shown.append(said.error.by_day_pct)
    by_day = np.array(errors).reshape(len(origins), 3, 4, 24).mean(axis=(0, 3))
    half, most = np.array(inside).transpose(1, 0, 2)
    return Replay(
        days=len(origins),
        ours_pct=by_day[0],
        persistence_pct=by_day[1],
        climatology_pct=by_day[2],
        shown_pct=np.mean(shown, axis=0),
        inside_50_pct=100 * float(half.mean()),
        inside_90_pct=100 * float(most.mean()),
        inside_90_by_day_pct=100 * most.reshape(-1, 4, 24).mean(axis=(0, 2)),
        train_s=train_s / trainings,
        forecast_ms=1000 * forecast_s / len(origins),
    )


def table(say: Say, title: str, found: dict[str, Replay], published: dict[str, Floats] | None = None) -> None:
    say(f"### {title}\n")
    say("|zone|yesterday|7-day mean|HarchOS|ratio|announced|96 h|CarbonCast day 1|its 96 h|in 50 %|in 90 %|")
    say("|---" * 11 + "|")
    for zone, got in found.items():
        theirs = published[zone] if published else None
        day, four = (f"{theirs[0]:.2f}", f"{theirs.mean():.2f}") if theirs is not None else ("", "")
        say(
            f"|{zone}|{got.persistence_pct[0]:.2f}|{got.climatology_pct[0]:.2f}|**{got.ours_pct[0]:.2f}**|"
            f"{got.ratio:.3f}|{got.shown_pct[0]:.2f}|**{got.ours_pct.mean():.2f}**|{day}|{four}|"
            f"{got.inside_50_pct:.1f}|{got.inside_90_pct:.1f}|"
        )
    mean = {name: np.mean([getattr(got, name) for got in found.values()], axis=0) for name in ("ours_pct", "ratio")}
    by_day = " / ".join(f"{value:.2f}" for value in mean["ours_pct"])
    persistence = np.mean([got.persistence_pct for got in found.values()], axis=0)
    covered = np.mean([got.inside_90_by_day_pct for got in found.values()], axis=0)
    say(f"\nMeans: days 1 to 4 {by_day} (yesterday {' / '.join(f'{value:.2f}' for value in persistence)});")
    say(f"ratio {mean['ratio']:.3f}, worst {max(got.ratio for got in found.values()):.3f};")
    say(f"in the 90 % interval by day {' / '.join(f'{value:.1f}' for value in covered)};")
    slowest = max(got.train_s for got in found.values()), max(got.forecast_ms for got in found.values())
    say(f"slowest zone: training {slowest[0]:.2f} s, one forecast {slowest[1]:.1f} ms of CPU.\n")


def with_goals(data: Path, verdict: Verdict, say: Say, period: str = "h2", mix: bool = True) -> None:
    """The 13 zones of the goal, with or without their generation mix."""
    start, stop = PERIODS[period]
    zones = zones_with_mix(data)
    found = {zone: replay(history if mix else replace(history, mix=()), start, stop) for zone, history in zones.items()}
    published = published_errors_pct(data) if period == "h2" else None
    inputs = "intensity and mix" if mix else "intensity alone"
    table(say, f"{start:%B} to {stop:%B %Y}, {inputs}", found, published)
    ratios = [got.ratio for got in found.values()]
    verdict.goal(f"day-ahead MAPE over persistence, worst zone, {inputs}", "<= 0.95", max(ratios))
    verdict.goal(f"day-ahead MAPE over persistence, mean of 13 zones, {inputs}", "<= 0.70", float(np.mean(ratios)))
    covered = float(np.mean([got.inside_90_pct for got in found.values()]))
    verdict.goal(f"truth inside the 90 % interval, {inputs}", ">= 87", covered, "%")
    verdict.goal(f"truth inside the 90 % interval, not too wide, {inputs}", "<= 93", covered, "%")
    if published:
        below = sum(bool(got.ours_pct.mean() < published[zone].mean()) for zone, got in found.items())
        ours = float(np.mean([got.ours_pct.mean() for got in found.values()]))
        theirs = float(np.mean([published[zone].mean() for zone in found]))
        verdict.goal(f"96-h MAPE against CarbonCast, mean of 13 zones, {inputs}", f"<= {theirs:.4f}", ours, "%")
        verdict.goal(f"zones below CarbonCast over 96 h, {inputs}", ">= 7", below, "of 13")


def unseen(data: Path, verdict: Verdict, say: Say, shares: bool = False) -> None:
    """Zones and years that no constant was chosen on."""
    zones = zones_unseen(data, shares)
    found = {zone: replay(history, UNSEEN_FROM, UNSEEN_TO) for zone, history in zones.items()}
    inputs = "intensity and shares" if shares else "intensity alone"
    table(say, f"Unseen: 2022 and 2023, {inputs}", found)
    worst = max(got.ratio for got in found.values())
    verdict.goal(f"unseen zones: day-ahead MAPE over persistence, worst zone, {inputs}", "<= 0.95", worst)


def short(data: Path, verdict: Verdict, say: Say, period: str = "h2") -> None:
    """What a new zone gets: the same forecasts from the last few days only."""
    say("### Short histories: ratio to yesterday's value, truth inside the 90 % interval\n")
    say("|days known|mean ratio|worst ratio|in 90 %|\n|---|---|---|---|")
    start, stop = PERIODS[period]
    zones = [replace(history, mix=()) for history in zones_with_mix(data).values()]
    for days in SHORT_DAYS:
        ratios, inside = [], []
        for history in zones:
            ours, theirs = [], []
            for origin in (start + step * 10 * DAY for step in range((stop - start) // (10 * DAY))):
                hour = (origin - history.start) // HOUR
                known = int(24 * days)
                past = SeriesHistory(origin - known * HOUR, history.values[hour - known : hour])
                said, actual = forecast(train(past), past), history.values[hour : hour + HORIZON_H]
                ours.append((np.abs(said.mean - actual) / actual)[:24].mean())
                theirs.append((np.abs(history.values[hour - 24 : hour] - actual[:24]) / actual[:24]).mean())
                inside.append(((said.quantiles[0.05] <= actual) & (actual <= said.quantiles[0.95])).mean())
            ratios.append(np.mean(ours) / np.mean(theirs))
        say(f"|{days:g}|{np.mean(ratios):.3f}|{max(ratios):.3f}|{100 * np.mean(inside):.1f}|")
        if days >= 1:
            verdict.goal(f"{days:g} days known: MAPE over persistence, mean", "<= 1.02", float(np.mean(ratios)))
    say("")


def measure(part: str, data: Path, verdict: Verdict, say: Say, period: str = "h2") -> None:
    """One of `PARTS`: prints its tables and adds its goals."""
    if part in ("mix", "values"):
        with_goals(data, verdict, say, period, mix=part == "mix")
    elif part in ("unseen", "unseen-shares"):
        unseen(data, verdict, say, shares=part == "unseen-shares")
    else:
        short(data, verdict, say, period)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    default = os.environ.get("HARCH_CARBON_DATA", str(Path(__file__).parents[2] / "shared/data/carbon"))
    options.add_argument("--data", type=Path, default=Path(default), help="folder of the public series")
    options.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="what to measure")
    options.add_argument("--period", choices=PERIODS, default="h2", help="half year of 2021; goals are for h2")
    chosen = options.parse_args()
    missing = [name for name in (MIX_FILE, PUBLISHED_FILE, UNSEEN_FILE) if not (chosen.data / name).is_file()]
    if missing:
        print(f"error: no {', '.join(missing)} in {chosen.data}", file=sys.stderr)
        print("\nhint: python bench/carbon_forecast.py --data FOLDER, or set HARCH_CARBON_DATA", file=sys.stderr)
        sys.exit(2)
    verdict = Verdict("carbon-forecast")

    def say(line: str) -> None:
        print(line, flush=True)

    say(f"{conditions()}, NumPy {np.__version__}\n")
    for part in chosen.parts:
        measure(part, chosen.data, verdict, say, chosen.period)
    verdict.print()


if __name__ == "__main__":
    main()
