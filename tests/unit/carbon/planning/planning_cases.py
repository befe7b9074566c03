"""Hubs and jobs small enough to know the best plan by hand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from harch.carbon.planning.outlook import Aims, HubHours, Pool, PowerOutlook
from harch.carbon.planning.work import FlexibleWork

HOURS = 8


def hub(name: str, grid: float, onsite_kw: Sequence[float] = (), **more: object) -> HubHours:
    onsite = np.zeros(HOURS)
    onsite[: len(onsite_kw)] = onsite_kw
    return HubHours(
        hub=name,
        grid_g_per_kwh=np.full(HOURS, grid),
        onsite_kw=onsite,
        onsite_g_per_kwh=20.0,
        **more,  # type: ignore[arg-type]
    )


def outlook(*hubs: HubHours, gpus: int = 16, aims: Aims | None = None, kept: int = 0) -> PowerOutlook:
    """One pool of GPUs of one kW at each hub."""
    return PowerOutlook(tuple(hubs), tuple(Pool(one.hub, "gpu", gpus, 1.0, kept) for one in hubs), aims or Aims())


def job(name: str, hubs: Sequence[str], gpus: int = 4, hours: float = 2.0, **more: object) -> FlexibleWork:
    return FlexibleWork(
        id=name,
        hubs=frozenset(hubs),
        model="gpu",
        gpus=gpus,
        hours_left=hours,
        home=hubs[0],
        **more,  # type: ignore[arg-type]
    )
