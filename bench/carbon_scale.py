"""What does a large federation ask of the planner? 20 hubs, 5,000 jobs in classes, drawn from a seed."""

from __future__ import annotations

import numpy as np

from harch.carbon.planning.outlook import HubHours, Pool, PowerOutlook
from harch.carbon.planning.work import ClassKey, ExpectedWork, FlexibleWork, WorkDemand

HUBS, HOURS, JOBS = 20, 96, 5000
MODELS = (("h100", 1.275), ("a100", 0.81), ("card", 0.45))
COUNTRIES = 7


def big_problem(seed: int) -> tuple[PowerOutlook, WorkDemand]:
    """Hubs in seven countries; four fifths of the work is pinned to one of them, half of it may wait up to a day."""
    random = np.random.default_rng(seed)
    hours = np.arange(HOURS)
    hubs, pools = [], []
    for number in range(HUBS):
        sun = np.maximum(np.sin((hours + random.integers(24)) * 2 * np.pi / 24), 0.0)
        wind = random.uniform(0, 300) * np.ones(HOURS)
        grid = np.full(HOURS, random.uniform(100, 700))
        name = f"hub-{number:02d}"
        onsite = 600 * sun + wind
        hubs.append(
            HubHours(
                hub=name,
                grid_g_per_kwh=grid,
                onsite_kw=onsite,
                onsite_sd_kw=0.3 * onsite,
                onsite_g_per_kwh=20.0,
                pue=1.2,
            )
        )
        pools += [Pool(name, model, 160, kw) for model, kw in MODELS]
    everywhere = frozenset(hub.hub for hub in hubs)
    countries = [frozenset(hub.hub for hub in hubs[first::COUNTRIES]) for first in range(COUNTRIES)]
    jobs, expected = [], {}
    for number in range(JOBS):
        allowed = everywhere if random.random() < 0.2 else countries[random.integers(COUNTRIES)]
        jobs.append(
            FlexibleWork(
                id=f"job-{number:05d}",
                hubs=allowed,
                model=MODELS[random.integers(len(MODELS))][0],
                gpus=int(random.choice([1, 1, 4, 8, 16])),
                hours_left=float(random.uniform(0.5, 8)),
                wait_h_max=float(random.uniform(0.1, 24)),
                home=min(allowed),
            )
        )
    for allowed in (everywhere, *countries):
        for model, _ in MODELS:
            for deferrable in (False, True):
                key = ClassKey(allowed, model, deferrable)
                expected[key] = ExpectedWork(15.0 * len(allowed), 3.0, 24.0 if deferrable else 0.0)
    return PowerOutlook(tuple(hubs), tuple(pools)), WorkDemand(tuple(jobs), expected)
