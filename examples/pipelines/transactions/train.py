"""Which payments should wait, and which should a person look at? Trains a model, compares it with rules, writes ONNX.

`python examples/pipelines/transactions/train.py` takes about half a minute. Everything is modelled (see payments.py).
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

from mlp import Graph, Mlp, logistic, save, train, write_pipeline  # noqa: E402 (the examples are not a package)
from payments import FEATURES, make_windows  # noqa: E402

Array = np.ndarray
ALERT_SHARE = 0.005  # of all windows: what the people who look at alerts can look at
HOLD_SHARE = 0.001  # held until somebody has looked, so it must be rare
LOGGED = tuple(FEATURES.index(name) for name in ("amount.sum", "amount.max", "distance-km.max", "usual_amount"))


def prepared(rows: Array) -> Array:
    """Money and distance on a logarithmic scale; the graph does the same."""
    made = rows.copy()
    made[:, LOGGED] = np.log1p(made[:, LOGGED])
    return made


def amount_rule(rows: Array) -> Array:
    """The rule that most systems start with: how much larger than usual is the largest payment?"""
    return rows[:, 2] / rows[:, 7]


def worst_of_rules(rows: Array) -> Array:
    """A careful rule: the most unusual of amount, number of payments, distance and merchant, each as a rank."""
    signs = (rows[:, 2] / rows[:, 7], rows[:, 0] / rows[:, 8], rows[:, 3], rows[:, 4])
    ranks = [np.argsort(np.argsort(sign)) / len(sign) for sign in signs]
    return np.max(ranks, axis=0) + 1e-3 * np.mean(ranks, axis=0)


def fit(count: int, seed: int, epochs: int) -> tuple[Mlp, float, float]:
    """The model, and the log-odds above which to alert and to hold: calibrated on windows it was not trained on."""
    seen = make_windows(count, seed)
    weight = np.where(seen.reported, 30.0, 1.0)
    model = train(
        prepared(seen.rows),
        seen.reported[:, None].astype(float),
        logistic,
        hidden=(32, 16),
        epochs=epochs,
        rows=512,
        seed=seed,
        weights_of_rows=weight,
    )
    fresh = make_windows(count, seed + 500)
    odds = model.predict(prepared(fresh.rows))[:, 0]
    return model, float(np.quantile(odds, 1 - ALERT_SHARE)), float(np.quantile(odds, 1 - HOLD_SHARE))


def at_alert_rate(scores: Array, fraud: Array, share: float = ALERT_SHARE) -> tuple[float, float]:
    """Precision and recall if exactly this share is looked at."""
    chosen = np.argsort(-scores, kind="stable")[: max(1, round(share * len(scores)))]
    hits = int(fraud[chosen].sum())
    return hits / len(chosen), hits / max(1, int(fraud.sum()))


def evaluate(model: Mlp, count: int, seed: int) -> dict[str, tuple[float, float]]:
    """On other accounts, with the truth instead of the reports."""
    unseen = make_windows(count, seed + 1000)
    scores = {
        "amount against usual": amount_rule(unseen.rows),
        "worst of four rules": worst_of_rules(unseen.rows),
        "model": model.predict(prepared(unseen.rows))[:, 0],
    }
    return {name: at_alert_rate(score, unseen.fraud) for name, score in scores.items()}


def export(model: Mlp, alert_odds: float, hold_odds: float, path: Path) -> str:
    """Risk from 0 to 1, and two decisions with their thresholds inside: who changes them makes a new version."""
    graph = Graph()
    logged = np.isin(np.arange(len(FEATURES)), LOGGED).astype(np.float32)
    logarithm = graph.op("Log", graph.op("Add", graph.op("Relu", "features"), graph.constant(1.0)))
    plain = graph.op("Mul", "features", graph.constant(1 - logged))
    odds = graph.mlp(model, graph.op("Add", plain, graph.op("Mul", logarithm, graph.constant(logged))))
    graph.op("Sigmoid", odds, name="risk")
    for name, threshold in (("alert", alert_odds), ("hold", hold_odds)):
        above = graph.op("GreaterOrEqual", odds, graph.constant(threshold))
        graph.op("Cast", above, name=name, to=1)
    return save(graph, path, inputs=len(FEATURES), outputs=("risk", "alert", "hold"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, default=HERE / "trained", help="folder for model and pipeline file")
    parser.add_argument("--seed", type=int, default=42)
    chosen = parser.parse_args()
    model, alert_odds, hold_odds = fit(count=120_000, seed=chosen.seed, epochs=10)
    print(f"200,000 windows of other accounts (modelled), {100 * ALERT_SHARE:g} % of them looked at:")
    for name, (precision, recall) in evaluate(model, 200_000, chosen.seed).items():
        print(f"  {name:22} precision {precision:.3f}, recall {recall:.3f}")
    digest = export(model, alert_odds, hold_odds, chosen.out / "transactions.onnx")
    print(f"wrote {chosen.out / 'transactions.onnx'} and {write_pipeline(HERE / 'pipeline.yaml', chosen.out, digest)}")


if __name__ == "__main__":
    main()
