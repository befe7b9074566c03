"""What does a hub tell about its pipelines, and which replays can be requested?

Values for the API, without the packages of pipelines; all of them are plain data.
"""

from __future__ import annotations

from datetime import datetime

from msgspec import Struct


class FileView(Struct, frozen=True, kw_only=True):
    path: str
    sha256: str
    bytes: int


class InferenceStats(Struct, frozen=True, kw_only=True):
    """Counts since the workers started. `within` are cumulative, by upper bound in seconds; empty if not measured."""

    pipeline: str
    model: str
    rows: int
    failed: int
    within: tuple[tuple[str, int], ...] = ()


# What does somebody ask of a replay? A value that the API knows without the packages of pipelines.


class ReplayRequest(Struct, frozen=True, kw_only=True):
    """What somebody asks for. Without a `file`, of what was kept."""

    since: datetime | None = None
    until: datetime | None = None
    file: str = ""
    source: str = ""
    is_dry: bool = True
    again: bool = False
    events_per_s: float = 50_000.0
