"""What do payments look like? Ten minutes of each account, honest or fraudulent, seeded: modelled, not measured.

Honest people travel, make large purchases and pay several times in a row. Three kinds of fraud hide among them: small
payments in quick succession to try a stolen card, a takeover that pays much from far away, and mules that pass on
middling sums to risky merchants. Some frauds are never reported, so their labels are wrong in training.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

Array = np.ndarray
FRAUD_SHARE = 0.004
UNREPORTED = 0.15

FEATURES = (
    "amount.count",
    "amount.sum",
    "amount.max",
    "distance-km.max",
    "merchant-risk.max",
    "merchant-risk.mean",
    "hour.last",
    "usual_amount",
    "usual_count",
)


@dataclass
class Windows:
    """One row per account and window with at least one payment. `reported` is what a bank would know."""

    rows: Array
    fraud: Array
    reported: Array


def make_windows(count: int, seed: int, accounts: int = 5_000) -> Windows:
    rng = np.random.default_rng(seed)
    usual_amount = rng.lognormal(3.4, 0.7, accounts)
    usual_count = rng.gamma(2.0, 0.35, accounts) + 1
    roams = rng.random(accounts) < 0.1
    who = rng.integers(0, accounts, count)
    amount, often = usual_amount[who], usual_count[who]

    payments = 1 + rng.poisson(np.maximum(often - 1, 0))
    payments = payments + (rng.random(count) < 0.01) * rng.poisson(4, count)  # market days
    size = amount * rng.lognormal(-0.3, 0.7, count) * np.where(rng.random(count) < 0.012, rng.uniform(4, 15, count), 1)
    distance = rng.gamma(1.2, 6.0, count) + np.where(
        roams[who] & (rng.random(count) < 0.3), rng.uniform(100, 3000, count), 0
    )
    distance = distance + (rng.random(count) < 0.006) * rng.uniform(200, 5000, count)  # holidays
    risk = rng.beta(1.3, 9.0, count)
    hour = np.clip(rng.normal(14.5, 4.0, count), 0, 23.9)

    fraud = rng.random(count) < FRAUD_SHARE
    kind = rng.choice(3, count, p=[0.35, 0.35, 0.3])
    trying, takeover, mule = (fraud & (kind == which) for which in range(3))
    payments = np.where(trying, payments + 4 + rng.poisson(5, count), payments)
    size = np.where(trying, np.minimum(size, rng.uniform(1, 8, count)), size)
    size = np.where(takeover, amount * rng.lognormal(1.2, 0.6, count), size)
    distance = np.where(takeover, rng.uniform(50, 6000, count), distance)
    hour = np.where(takeover | trying, rng.uniform(0, 24, count), hour)
    size = np.where(mule, amount * rng.lognormal(0.8, 0.4, count), size)
    payments = np.where(mule, payments + rng.poisson(1.0, count), payments)
    risk = np.where(mule, rng.beta(4, 4, count), np.where(takeover, rng.beta(2, 6, count), risk))

    total = size * (1 + (payments - 1) * rng.uniform(0.3, 0.8, count))
    mean_risk = risk * rng.uniform(0.6, 1.0, count)
    rows = np.column_stack((payments, total, size, distance, risk, mean_risk, hour, amount, often))
    return Windows(rows, fraud, fraud & (rng.random(count) > UNREPORTED))
