"""What does somebody ask of a replay? A value that the API knows without the packages of pipelines."""

from __future__ import annotations

from datetime import datetime

from msgspec import Struct


class ReplayWish(Struct, frozen=True, kw_only=True):
    """What somebody asks for. Without a `file`, of what was kept."""

    since: datetime | None = None
    until: datetime | None = None
    file: str = ""
    source: str = ""
    is_dry: bool = True
    again: bool = False
    events_per_s: float = 50_000.0
