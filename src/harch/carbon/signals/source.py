"""What must a source of signals offer? One small protocol; whoever implements it is a plug-in."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, Protocol

from harch.base.clock import Clock
from harch.base.errors import HarchError
from harch.carbon.signals.sites import SignalSite
from harch.carbon.values import Quantity, Reading, Signal


class SignalSource(Protocol):
    """Gives readings for a site. It raises `SourceFailed` when it cannot, and never waits without end.

    It need not judge what it reads: numbers that are odd, old or impossible are rejected for it, and shown.
    """

    @property
    def name(self) -> str:
        """As the carbon file calls it; shown with every reading."""
        ...

    @property
    def provides(self) -> frozenset[Signal]: ...

    @property
    def by_zone(self) -> bool:
        """True when its answer is the same for all hubs of a grid zone, so that it is asked once for all of them."""
        ...

    async def fetch(self, site: SignalSite, clock: Clock) -> list[Reading[Quantity]]: ...


class SourceFailed(HarchError):
    """A source gave no reading, or not all. `retry_after_s` is how long it asked to be left alone."""

    def __init__(
        self,
        source: str,
        reason: str,
        *,
        retry_after_s: int | None = None,
        hint: str = "",
        readings: Sequence[Reading[Quantity]] = (),
    ) -> None:
        super().__init__("E0820", f"{source}: {reason}", hint=hint, retry_after_s=retry_after_s)
        self.source = source
        self.reason = reason
        self.readings = tuple(readings)  # of the questions that were answered


class AccessRefused(SourceFailed):
    """The source does not know the key, or the key is not good for this question."""


async def all_of(
    source: str, questions: Sequence[Coroutine[Any, Any, list[Reading[Quantity]]]]
) -> list[Reading[Quantity]]:
    """The answers to several questions to one source, asked at once: one that fails does not cost the others."""
    answers = await asyncio.gather(*questions, return_exceptions=True)
    readings = [reading for answer in answers if isinstance(answer, list) for reading in answer]
    for answer in answers:
        if isinstance(answer, BaseException) and not isinstance(answer, SourceFailed):
            raise answer
    failures = [answer for answer in answers if isinstance(answer, SourceFailed)]
    if failures:
        waits = [failure.retry_after_s for failure in failures if failure.retry_after_s is not None]
        raise SourceFailed(
            source,
            "; ".join(dict.fromkeys(failure.reason for failure in failures)),
            retry_after_s=max(waits, default=None),
            hint=failures[0].hint,
            readings=readings,
        )
    return readings
