"""In which order does the tour go, and what if a station fails? The walk; what it touches is handed in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from harch.base.errors import HarchError
from harch.cli.tour.stations import Station, TourCommand


class TourKey(StrEnum):
    NEXT = "next"
    SKIP = "skip"
    QUIT = "quit"


class StationOutcome(StrEnum):
    DONE = "done"
    SKIPPED = "skipped"
    NOT_HERE = "not here"
    NOT_READY = "not ready"
    FAILED = "failed"


# What the next `harch tour` need not show again. What failed, or was not ready yet, may work then.
PASSED = frozenset({StationOutcome.DONE, StationOutcome.SKIPPED, StationOutcome.NOT_HERE})


@dataclass(frozen=True, slots=True)
class StationResult:
    name: str
    outcome: StationOutcome
    detail: str = ""


class TourEdge(Protocol):
    """Terminal, processes, federation and disk."""

    def show(self, station: Station, number: int, total: int) -> None: ...

    def prompt(self, command: TourCommand | None) -> TourKey:
        """What whoever takes the tour wants: before a command, which is shown, or (None) before the next station."""

    def run(self, command: TourCommand) -> int:
        """Its exit code. Raises HarchError if it does not end in time, or cannot be started."""

    def sentinel_gap(self) -> str:
        """Why SENTINEL cannot be asked now; empty where it answers."""

    def clean_up(self) -> None:
        """Stops what the tour has started. Raises HarchError where something is left."""

    def say(self, result: StationResult, notice: str) -> None: ...

    def remember(self, result: StationResult) -> None: ...


def walk(stations: Sequence[Station], todo: Sequence[str], edge: TourEdge) -> list[StationResult]:
    """Shows the stations named in `todo`, and cleans up after each, whatever happens in it.

    Ends early with those so far if asked to quit. What failed is said, and the walk goes on.
    """
    results: list[StationResult] = []
    for number, station in enumerate(stations, start=1):
        if station.name not in todo:
            continue
        edge.show(station, number, len(stations))
        try:
            result = _visit(station, edge)
        finally:  # also if it was interrupted; then what is left is at least said
            left = _clean_up(station, edge)
            if left is not None:
                edge.say(left, "")
        if result is None:
            return results
        if left is None:
            edge.say(result, station.notice if result.outcome is StationOutcome.DONE else "")
        results.append(left or result)
        edge.remember(left or result)
    return results


def _visit(station: Station, edge: TourEdge) -> StationResult | None:
    """None: whoever takes the tour wants to leave."""
    if station.not_here:
        return StationResult(station.name, StationOutcome.NOT_HERE, station.not_here)
    if station.needs_sentinel and (gap := edge.sentinel_gap()):
        return StationResult(station.name, StationOutcome.NOT_READY, gap)
    for command in station.commands or (None,):
        key = edge.prompt(command)
        if key is TourKey.QUIT:
            return None
        if key is TourKey.SKIP:
            return StationResult(station.name, StationOutcome.SKIPPED)
        if command is None:
            continue
        try:
            code = edge.run(command)
        except HarchError as error:
            return StationResult(station.name, StationOutcome.FAILED, f"{error.code}: {error.message}")
        if code != command.exit_code:
            ended = f"`{command}` ended with exit code {code}, not {command.exit_code}"
            return StationResult(station.name, StationOutcome.FAILED, ended)
    return StationResult(station.name, StationOutcome.DONE)


def _clean_up(station: Station, edge: TourEdge) -> StationResult | None:
    """None if nothing is left."""
    if not station.work:
        return None
    try:
        edge.clean_up()
    except HarchError as error:
        return StationResult(station.name, StationOutcome.FAILED, f"{error.code}: {error.message}")
    return None
