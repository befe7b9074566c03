"""How many minutes should each valve be open today? Trains a model, compares it with a rule, and writes it as ONNX.

`python examples/pipelines/irrigation/train.py` takes about half a minute. Everything is modelled (see season.py).
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

from mlp import Graph, Mlp, quantile, save, train, write_pipeline  # noqa: E402 (the examples are not a package)
from season import FEATURES, MINUTES_MAX, Season, features, live_a_day, make_season, need_mm  # noqa: E402

Array = np.ndarray
Policy = Callable[[Season, int, Array], Array]  # season, day and features to minutes
STRESS_HOURS_MAX = 0.01  # of all hours; what a grower accepts, and what the rule is tuned to


@dataclass
class Outcome:
    water_mm: float  # per field and season
    stress_share: float
    drained_mm: float


def play(season: Season, policy: Policy) -> Outcome:
    """A whole season under one policy."""
    water = 0.7 * season.capacity_mm
    given = stressed = drained = 0.0
    for day in range(season.days):
        minutes = np.clip(policy(season, day, features(season, day, water)), 0, MINUTES_MAX)
        given += float((minutes * season.valve_mm_per_min).mean())
        water, hours, lost = live_a_day(season, day, water, minutes)
        stressed += float(hours.mean())
        drained += float(lost.mean())
    return Outcome(given, stressed / (24 * season.days), drained)


def refill_rule(below: float, up_to: float) -> Policy:
    """What a good timer with a moisture sensor does: below one level, fill up to another. It knows no weather."""

    def minutes(season: Season, day: int, rows: Array) -> Array:
        fullness = rows[:, 0] / 100
        lacking = np.maximum(up_to - fullness, 0) * season.capacity_mm
        return np.where(fullness < below, lacking / season.valve_mm_per_min, 0)

    return minutes


def tune_rule(season: Season) -> tuple[float, float]:
    """The levels that need least water on the training season without too much stress: the best this rule can do."""
    tried = [
        (play(season, refill_rule(below, below + more)), (below, below + more))
        for below in np.arange(0.54, 0.72, 0.015)
        for more in (0.01, 0.03, 0.08)
    ]
    good = [(outcome.water_mm, levels) for outcome, levels in tried if outcome.stress_share <= STRESS_HOURS_MAX]
    return min(good)[1] if good else min(tried, key=lambda pair: pair[0].stress_share)[1]


def examples(season: Season, rng: np.random.Generator) -> tuple[Array, Array]:
    """Mornings with the need that turned out to be; fields are as full as chance has it, so that all cases occur."""
    rows, needs = [], []
    for day in range(season.days):
        water = rng.uniform(0.35, 1.0, season.fields) * season.capacity_mm
        rows.append(features(season, day, water))
        needs.append(need_mm(season, day, water))
    return np.concatenate(rows), np.concatenate(needs)[:, None]


def fit(days: int, fields: int, seed: int, epochs: int, share: float = 0.97) -> tuple[Mlp, float]:
    """The need that is rarely exceeded, and a margin on top or off: too little harms more than too much."""
    rng = np.random.default_rng(seed)
    seasons = [make_season(days, fields, seed + number) for number in range(4)]
    made = [examples(season, rng) for season in seasons]
    inputs, targets = (np.concatenate([pair[side] for pair in made]) for side in (0, 1))
    model = train(inputs, targets, quantile(share), hidden=(32, 16), epochs=epochs, seed=seed)
    return model, tune_margin(model, seasons[0])


def policy_of(model: Mlp, margin_mm: float) -> Policy:
    return lambda season, day, rows: np.maximum(model.predict(rows)[:, 0] + margin_mm, 0) / season.valve_mm_per_min


def tune_margin(model: Mlp, season: Season) -> float:
    """The least extra water that keeps stress as low as is asked of the rule, on the same season."""
    low, high = -8.0, 8.0
    for _ in range(7):
        middle = (low + high) / 2
        enough = play(season, policy_of(model, middle)).stress_share <= STRESS_HOURS_MAX
        low, high = (low, middle) if enough else (middle, high)
    return high


def export(model: Mlp, margin_mm: float, path: Path) -> str:
    """Features in, minutes and millimetres out: the file holds all that stands between sensor and valve."""
    graph = Graph()
    wanted = graph.op("Add", graph.mlp(model, "features"), graph.constant(margin_mm))
    need = graph.op("Relu", wanted, name="need_mm")
    rate = graph.column("features", FEATURES.index("valve_mm_per_min"))
    graph.op(
        "Clip", graph.op("Div", need, rate), graph.constant(0.0), graph.constant(MINUTES_MAX), name="valve_minutes"
    )
    return save(graph, path, inputs=len(FEATURES), outputs=("valve_minutes", "need_mm"))


def foresight(season: Season) -> Outcome:
    """What nobody can do: water with the weather of the coming day known. The least that could be needed."""
    water = 0.7 * season.capacity_mm
    given = stressed = drained = 0.0
    for day in range(season.days):
        minutes = np.minimum(need_mm(season, day, water) / season.valve_mm_per_min, MINUTES_MAX)
        given += float((minutes * season.valve_mm_per_min).mean())
        water, hours, lost = live_a_day(season, day, water, minutes)
        stressed += float(hours.mean())
        drained += float(lost.mean())
    return Outcome(given, stressed / (24 * season.days), drained)


def evaluate(model: Mlp, margin_mm: float, days: int, fields: int, seed: int, seasons: int = 3) -> dict[str, Outcome]:
    """Means over seasons that neither the model nor the rule has seen; the rule is tuned on a training season."""
    rule = refill_rule(*tune_rule(make_season(days, fields, seed)))
    unseen = [make_season(days, fields, seed + 1000 + number) for number in range(seasons)]
    return {
        "fixed timer, 25 minutes a day": _mean([play(one, lambda *_: np.full(fields, 25.0)) for one in unseen]),
        "refill rule, tuned": _mean([play(one, rule) for one in unseen]),
        "model": _mean([play(one, policy_of(model, margin_mm)) for one in unseen]),
        "perfect foresight": _mean([foresight(one) for one in unseen]),
    }


def _mean(found: list[Outcome]) -> Outcome:
    columns = np.array([(one.water_mm, one.stress_share, one.drained_mm) for one in found])
    return Outcome(*columns.mean(axis=0).tolist())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, default=HERE / "trained", help="folder for model and pipeline file")
    parser.add_argument("--seed", type=int, default=42)
    chosen = parser.parse_args()
    model, margin_mm = fit(days=180, fields=60, seed=chosen.seed, epochs=12)
    print("means of 3 seasons of 180 days on 60 fields that nobody has seen (modelled):")
    outcomes = evaluate(model, margin_mm, days=180, fields=60, seed=chosen.seed)
    for name, outcome in outcomes.items():
        print(
            f"  {name:30} {outcome.water_mm:6.0f} mm of water, {100 * outcome.stress_share:5.2f} % of hours in stress, "
            f"{outcome.drained_mm:5.0f} mm drained away"
        )
    saved = 1 - outcomes["model"].water_mm / outcomes["refill rule, tuned"].water_mm
    print(f"water saved against the tuned rule: {100 * saved:.1f} %")
    digest = export(model, margin_mm, chosen.out / "irrigation.onnx")
    for template in ("pipeline.yaml", "quickstart.yaml"):
        print(f"wrote {chosen.out / 'irrigation.onnx'} and {write_pipeline(HERE / template, chosen.out, digest)}")
    shutil.copy(HERE / "fields.csv", chosen.out)  # what SENSE joins by field


if __name__ == "__main__":
    main()
