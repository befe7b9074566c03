"""What will panels and turbines on site give next, by their own meters? The usual day, moved by the present."""

from __future__ import annotations

import numpy as np

from harch.carbon.forecasts.history import FADE_H, HORIZON_H, HOURS_PER_DAY, Floats, usable_hours

_USUAL_DAYS = 7


def onsite_nowcast(measured: Floats, hours: int = HORIZON_H) -> Floats:
    """The next hours: 7-day same-hour mean + (now - its mean) * exp(-h / 12), never below 0.

    `measured` is hourly and ends now; NaN and negative readings are ignored, a same hour never seen counts as 0. The
    present is the last usable reading; the older it is, the less it moves the usual day.
    """
    if hours < 1:
        return np.zeros(0)
    recent = measured[-_USUAL_DAYS * HOURS_PER_DAY :]
    recent = np.where(usable_hours(recent), recent, np.nan)
    padded = np.full(_USUAL_DAYS * HOURS_PER_DAY, np.nan)
    if len(recent):
        padded[-len(recent) :] = recent
    by_day = padded.reshape(_USUAL_DAYS, HOURS_PER_DAY)  # column 0 is the next hour of the clock
    readings = np.isfinite(by_day).sum(axis=0)
    usual = np.nansum(by_day, axis=0) / np.maximum(readings, 1)
    ahead = np.tile(usual, -(-hours // HOURS_PER_DAY))[:hours]
    known = np.flatnonzero(np.isfinite(padded))
    if len(known) == 0:
        return ahead
    last = int(known[-1])
    age_h = len(padded) - 1 - last
    offset = padded[last] - usual[last % HOURS_PER_DAY]
    fade = np.exp(-(age_h + np.arange(1, hours + 1)) / FADE_H)
    moved: Floats = np.maximum(ahead + offset * fade, 0.0)
    return moved
