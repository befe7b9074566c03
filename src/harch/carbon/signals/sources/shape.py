"""Does an answer have the shape that its API documents? Converted to a typed value, or refused with the place."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TypeVar

import msgspec

from harch.carbon.signals.source import SourceFailed

YEARS = (1970, 2200)  # beyond them, arithmetic with times may overflow
T = TypeVar("T")


def shaped(source: str, answer: object, shape: type[T]) -> T:
    """The answer as a `shape`. Raises SourceFailed; the message names the field, not its value."""
    try:
        return msgspec.convert(answer, shape)
    except msgspec.ValidationError as error:
        raise SourceFailed(source, f"the answer has another shape: {str(error)[:160]}") from error


def moment_of(source: str, moment: datetime) -> datetime:
    """In UTC. Raises SourceFailed for a time without a zone: guessing one would move it by hours."""
    if moment.tzinfo is None:
        raise SourceFailed(source, "the answer has a time without a time zone")
    if not YEARS[0] <= moment.year <= YEARS[1]:
        raise SourceFailed(source, f"the answer has a time in the year {moment.year}")
    return moment.astimezone(UTC)
