"""What need no longer be kept at this hub? A plan from what is held, what the catalog says, and what work reads."""

# harch: pure

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta

from msgspec import Struct

from harch.hub.store.records import CatalogEntry

DATA_HOLDER = "data:"  # how the name of a hold begins that stands for a data object
UNKNOWN_KEPT = timedelta(minutes=30)  # a result is held a moment before it is registered


class ContentHold(Struct, frozen=True):
    """One reason why a tree is kept. `idle_since`: from when on no unfinished work is known to have read it."""

    tenant: str
    holder: str
    digest: str
    idle_since: datetime


class RetentionPlan(Struct, frozen=True, kw_only=True):
    """`expired`: data objects whose time is over. `released`: holds that nothing stands behind any more.

    `departed`: ids of data of which this hub has no copy any more.
    """

    expired: tuple[str, ...] = ()
    released: tuple[ContentHold, ...] = ()
    departed: tuple[str, ...] = ()


def data_holder(data_id: str) -> str:
    return f"{DATA_HOLDER}{data_id}"


def plan_retention(
    *,
    entries: Mapping[str, CatalogEntry],
    holds: Iterable[ContentHold],
    has_readers: Callable[[str], bool],
    may_rest: Callable[[CatalogEntry], bool],
    borrowed_kept: timedelta,
    now: datetime,
) -> RetentionPlan:
    """Nothing that unfinished work reads is touched, whatever its age: that work ends first."""
    expired = tuple(
        data_id
        for data_id, entry in entries.items()
        if entry.content
        and not entry.home
        and entry.expires_at is not None
        and entry.expires_at <= now
        and not has_readers(data_id)
    )
    gone = set(expired)
    released: list[ContentHold] = []
    departed: list[str] = []
    for hold in holds:
        if not hold.holder.startswith(DATA_HOLDER):
            continue
        data_id = hold.holder.removeprefix(DATA_HOLDER)
        entry = entries.get(data_id)
        if data_id in gone or (entry is None and hold.idle_since + UNKNOWN_KEPT <= now):
            released.append(hold)
        elif entry is not None and not has_readers(data_id) and _is_over(entry, hold, may_rest, borrowed_kept, now):
            released.append(hold)
            departed.append(data_id)
    return RetentionPlan(expired=expired, released=tuple(released), departed=tuple(departed))


def _is_over(
    entry: CatalogEntry,
    hold: ContentHold,
    may_rest: Callable[[CatalogEntry], bool],
    borrowed_kept: timedelta,
    now: datetime,
) -> bool:
    """What its tag does not let rest here goes at once. Of other hubs' data, results stay until their own time ends,
    and what came for work that has ended stays for a while, because more work of the same kind often follows."""
    if not may_rest(entry):
        return True
    if not entry.home:
        return False
    if entry.expires_at is not None:
        return entry.expires_at <= now
    return hold.idle_since + borrowed_kept <= now
