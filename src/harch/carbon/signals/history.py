"""What has a source said about a signal before? The last samples, one per moment, and what is typical of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

SAMPLES_MAX = 600  # two days of values every 5 minutes, or five hours of a meter read every 30 s

DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Sample:
    """One plausible number. Doubted ones are kept as well, else a lasting change would be doubted for ever."""

    at: datetime
    number: float
    doubted: bool = False


@dataclass(frozen=True, slots=True)
class History:
    """Samples of one source, one place and one signal, in the order of their moments."""

    samples: tuple[Sample, ...] = ()

    @property
    def last(self) -> Sample | None:
        return self.samples[-1] if self.samples else None

    def with_sample(self, sample: Sample) -> History:
        """A later value for the same moment is a correction and takes its place; an earlier moment is not taken."""
        last = self.last
        if last is None or sample.at > last.at:
            return History((*self.samples[-(SAMPLES_MAX - 1) :], sample))
        return History((*self.samples[:-1], sample)) if sample.at == last.at else self

    def numbers(self) -> list[float]:
        return [sample.number for sample in self.samples]

    def trusted(self, *, since: datetime | None = None) -> list[float]:
        """The values that nobody doubted when they came."""
        kept = (sample for sample in self.samples if not sample.doubted)
        return [sample.number for sample in kept if since is None or sample.at >= since]

    def settled(self, now: datetime) -> list[float]:
        """The values of more than a day ago: a lie of today is no evidence for itself."""
        return [sample.number for sample in self.samples if now - sample.at > DAY]

    def same_since(self, number: float) -> datetime | None:
        """Since when the value has been exactly this one, or None if it is another now."""
        since = None
        for sample in reversed(self.samples):
            if sample.number != number:
                break
            since = sample.at
        return since


NO_HISTORY = History()


def quantile(numbers: Sequence[float], share: float) -> float:
    """The value that this share of at least one number does not exceed."""
    ordered = sorted(numbers)
    return ordered[round(share * (len(ordered) - 1))]


def median(numbers: Sequence[float]) -> float:
    """The middle of at least one number. (`statistics` would bring `random` into modules that must not know it.)"""
    ordered = sorted(numbers)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def spread(numbers: Sequence[float]) -> float:
    """The median distance from the median, scaled to a standard deviation: a few wild values do not move it."""
    centre = median(numbers)
    return 1.4826 * median([abs(number - centre) for number in numbers])
