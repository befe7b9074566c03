"""What will be missing in two seconds? Trains a model that tells the battery, and compares it with two rules.

`python examples/pipelines/grid-balancing/train.py` takes well below a minute. Everything is modelled (see grid.py).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

from grid import (  # noqa: E402 (the examples are not a package)
    BATTERY_KW,
    BATTERY_KWH,
    DAMPING,
    DELAY_STEPS,
    ENGINE_DROOP,
    ENGINE_S,
    FEATURES,
    HERTZ,
    INERTIA_S,
    RATED_KW,
    STEP_S,
    WINDOW_S,
    Hour,
    Ride,
    make_hours,
    observed,
)
from mlp import Graph, Mlp, save, squared, train, write_pipeline  # noqa: E402

Array = np.ndarray
Controller = Callable[[Array], tuple[float, float]]  # features to battery and curtailment, in kW
FULL, EMPTY = 0.95, 0.05


def ride(hour: Hour, controller: Controller) -> Ride:
    """Swing equation by the second. Positive battery power feeds the grid."""
    missing, rows = hour.missing_kw, observed(hour)
    deviation = engine = battery = curtailed = 0.0
    charge = 0.5
    waiting = [(0.0, 0.0)] * DELAY_STEPS
    seen = np.zeros((hour.seconds, 3))
    for second in range(hour.seconds):
        if second % STEP_S == 0:
            row = rows[second]
            row[0], row[-1] = HERTZ + deviation, charge
            waiting.append(controller(row))
            battery, curtailed = waiting.pop(0)
            battery = float(np.clip(battery, -BATTERY_KW, BATTERY_KW))
            curtailed = float(np.clip(curtailed, 0, hour.pv_kw[second]))
        if (battery > 0 and charge <= 0) or (battery < 0 and charge >= 1):
            battery = 0.0
        charge -= battery / 3600 / BATTERY_KWH
        surplus = (battery + engine - missing[second] - curtailed) / RATED_KW
        deviation += HERTZ * (surplus - DAMPING * deviation / HERTZ) / (2 * INERTIA_S)
        wanted = -deviation / HERTZ / ENGINE_DROOP * RATED_KW
        engine += (wanted - engine) / ENGINE_S
        seen[second] = deviation, battery, curtailed
    return Ride(*seen.T)


def droop(kw_per_hz: float) -> Controller:
    """The usual rule: the lower the frequency, the more the battery gives. It sees a cloud when it is felt."""
    return lambda row: (-kw_per_hz * (row[0] - HERTZ), 0.0)


def follow(kw_per_hz: float) -> Controller:
    """A better rule, with the same meters as the model: give what is missing now, and droop. It knows no trend."""
    return lambda row: (row[7] - row[1] - row[5] - row[9] - kw_per_hz * (row[0] - HERTZ), 0.0)


def tuned(hours: list[Hour], make: Callable[[float], Controller]) -> float:
    """The droop with the least deviation on training hours; too much of it swings, because of the delay."""
    return min(np.arange(0.0, 2_500.0, 250.0), key=lambda gain: _rms(hours, make(gain)))


def examples(hours: list[Hour]) -> tuple[Array, Array]:
    """Each decision with what was missing, on average, while it was in effect."""
    rows, targets = [], []
    for hour in hours:
        at = np.arange(WINDOW_S, hour.seconds - (DELAY_STEPS + 1) * STEP_S, STEP_S)
        total = np.concatenate(([0.0], np.cumsum(hour.missing_kw)))
        starts = at + DELAY_STEPS * STEP_S
        rows.append(observed(hour)[at])
        targets.append((total[starts + STEP_S] - total[starts]) / STEP_S)
    return np.concatenate(rows), np.concatenate(targets)[:, None]


def fit(hours: int, seed: int, epochs: int, seconds: int = 3600) -> tuple[Mlp, float]:
    """The model, and how much droop to add to it."""
    seen = make_hours(hours, seed, seconds)
    inputs, targets = examples(seen)
    # Frequency and charge do not say what will be missing; without spread in the examples they get no say.
    model = train(inputs, targets, squared, hidden=(32, 16), epochs=epochs, seed=seed)
    return model, tuned(seen[:2], lambda gain: controller_of(model, gain))


def controller_of(model: Mlp, kw_per_hz: float) -> Controller:
    def decide(row: Array) -> tuple[float, float]:
        inputs = row.copy()
        inputs[0], inputs[-1] = HERTZ, 0.5
        wanted = float(model.predict(inputs[None, :])[0, 0]) - kw_per_hz * (row[0] - HERTZ)
        charge = row[-1]
        battery = np.clip(wanted, 0.0 if charge >= FULL else -BATTERY_KW, 0.0 if charge <= EMPTY else BATTERY_KW)
        return float(battery), max(float(battery - wanted), 0.0)  # what the battery cannot take is curtailed

    return decide


def export(model: Mlp, kw_per_hz: float, path: Path) -> str:
    """The whole controller as one graph: forecast, droop, limits of the battery, curtailment of the rest."""
    graph = Graph()
    keep, fixed = np.ones(len(FEATURES)), np.zeros(len(FEATURES))
    keep[0], fixed[0] = 0, HERTZ
    keep[-1], fixed[-1] = 0, 0.5
    inputs = graph.op("Add", graph.op("Mul", "features", graph.constant(keep)), graph.constant(fixed))
    deviation = graph.op("Sub", graph.column("features", 0), graph.constant(HERTZ))
    wanted = graph.op("Sub", graph.mlp(model, inputs), graph.op("Mul", deviation, graph.constant(kw_per_hz)))
    charge = graph.column("features", len(FEATURES) - 1)
    zero, power, negative = graph.constant([[0.0]]), graph.constant([[BATTERY_KW]]), graph.constant([[-BATTERY_KW]])
    lowest = graph.op("Where", graph.op("GreaterOrEqual", charge, graph.constant(FULL)), zero, negative)
    highest = graph.op("Where", graph.op("LessOrEqual", charge, graph.constant(EMPTY)), zero, power)
    battery = graph.op("Max", graph.op("Min", wanted, highest), lowest, name="battery_kw")
    graph.op("Relu", graph.op("Sub", battery, wanted), name="curtail_kw")
    return save(graph, path, inputs=len(FEATURES), outputs=("battery_kw", "curtail_kw"))


def evaluate(model: Mlp, gain: float, hours: int, seed: int, seconds: int = 3600) -> dict[str, list[Ride]]:
    """On hours that nobody has seen; each controller is tuned on the same training hours."""
    seen, unseen = make_hours(2, seed, seconds), make_hours(hours, seed + 1000, seconds)
    controllers: dict[str, Controller] = {
        "no battery": lambda row: (0.0, 0.0),
        "droop, tuned": droop(tuned(seen, droop)),
        "follow, tuned": follow(tuned(seen, follow)),
        "model": controller_of(model, gain),
    }
    return {name: [ride(hour, controller) for hour in unseen] for name, controller in controllers.items()}


def mean(rides: list[Ride], name: str) -> float:
    return float(np.mean([getattr(one, name) for one in rides]))


def _rms(hours: list[Hour], controller: Controller) -> float:
    return float(np.mean([ride(hour, controller).rms_mhz for hour in hours]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, default=HERE / "trained", help="folder for model and pipeline file")
    parser.add_argument("--seed", type=int, default=42)
    chosen = parser.parse_args()
    model, gain = fit(hours=24, seed=chosen.seed, epochs=10)
    print("8 hours that nobody has seen (modelled):")
    rides = evaluate(model, gain, hours=8, seed=chosen.seed)
    for name, found in rides.items():
        print(
            f"  {name:14} {mean(found, 'rms_mhz'):6.1f} mHz RMS deviation, "
            f"{100 * mean(found, 'share_beyond_200_mhz'):5.2f} % of the time beyond 200 mHz, "
            f"{mean(found, 'battery_kwh'):4.0f} kWh through the battery and "
            f"{mean(found, 'curtailed_kwh'):4.1f} kWh curtailed per hour"
        )
    for rule in ("droop, tuned", "follow, tuned"):
        better = 1 - mean(rides["model"], "rms_mhz") / mean(rides[rule], "rms_mhz")
        print(f"deviation below that of `{rule}` by {100 * better:.0f} %")
    digest = export(model, gain, chosen.out / "grid-balancing.onnx")
    print(
        f"wrote {chosen.out / 'grid-balancing.onnx'} and {write_pipeline(HERE / 'pipeline.yaml', chosen.out, digest)}"
    )


if __name__ == "__main__":
    main()
