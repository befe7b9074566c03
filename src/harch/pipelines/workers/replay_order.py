"""What is asked of a replay, and what came of it? Values, in files of one run."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field

EVENTS_PER_S = 50_000.0
SHOWN_MAX = 20  # commands that a report names


class ReplayOrder(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Kept events from `since_ns` to `until_ns`, or a file of rows. `is_dry`: nothing is told to anybody.

    `again`: what was done before is done once more; otherwise the ledger knows it and refuses."""

    run: Annotated[str, Meta(pattern="^[a-z0-9]{1,32}$")]
    result_file: str
    since_ns: Annotated[int, Meta(ge=0)] = 0
    until_ns: Annotated[int, Meta(ge=0)] | None = None
    file: str = ""
    source: str = ""  # whose form the rows of the file have; the first one that has rows, if empty
    is_dry: bool = True
    again: bool = False
    events_per_s: Annotated[float, Meta(gt=0, le=1e8)] = EVENTS_PER_S


class ReplayCounts(Struct, kw_only=True):
    """`windows_cut`: windows that the time asked for, or what is kept, holds only a part of; they are not told."""

    events: int = 0
    events_aside: int = 0
    windows: int = 0
    windows_cut: int = 0
    rows: int = 0
    rows_dropped: int = 0
    commands_new: int = 0
    commands_known: int = 0
    commands_unmade: int = 0
    told: int = 0  # messages to ACT, or to the lane of results


class ShownCommand(Struct, frozen=True, kw_only=True):
    """A command that the ledger does not know yet."""

    cmd_id: str
    action: str
    device: str
    window_end_ms: int
    steps: tuple[dict[str, Any], ...]


class ReplayResult(Struct, kw_only=True):
    state: Literal["running", "done", "stopped", "failed"] = "running"
    counts: ReplayCounts = field(default_factory=ReplayCounts)
    new: list[ShownCommand] = field(default_factory=list)
    trouble: str = ""
