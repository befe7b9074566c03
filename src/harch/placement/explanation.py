"""Which verdicts does placement give? The words behind the explanations of `harch.wire.explanations`."""

# harch: pure

from __future__ import annotations

from enum import StrEnum

from harch.wire import explanations


class Verdict(StrEnum):
    PLACED = "placed"
    FITS_NOW = "fits_now"
    MUST_WAIT = "must_wait"
    NEVER_FITS = "never_fits"
    FINISHED = "finished"


class Explanation(explanations.Explanation, frozen=True, kw_only=True):
    """What goes over the wire, with a verdict that is one of ours."""

    verdict: Verdict
