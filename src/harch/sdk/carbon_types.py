"""What does a hub answer about its power? The values that `client.carbon` returns; see `types` on versions."""

from __future__ import annotations

from harch.wire.carbon import (
    CarbonChoice,
    CarbonPlanView,
    Figure,
    ForecastHour,
    GridForecast,
    HubPower,
    HubReport,
    JobCarbon,
    NotUsed,
    Piece,
    PlannedHub,
    PowerList,
    PowerView,
)

__all__ = [
    "CarbonChoice",
    "CarbonPlanView",
    "Figure",
    "ForecastHour",
    "GridForecast",
    "HubPower",
    "HubReport",
    "JobCarbon",
    "NotUsed",
    "Piece",
    "PlannedHub",
    "PowerList",
    "PowerView",
]
