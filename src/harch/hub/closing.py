"""What keeps a hub from leaving? The work that it still has, counted; it may retire once there is none."""

from __future__ import annotations

from msgspec import Struct

from harch.base.errors import HarchError
from harch.hub.desk import Closed, Desk


class Remaining(Struct, frozen=True, kw_only=True):
    """Unfinished work that this hub answers for."""

    running: int  # own work on its GPUs
    waiting: int  # own work that waits or is held back
    lent: int  # own work that other hubs run: its owner is here, for life
    guests: int  # of other hubs: running, held for a bid, or ended and not yet on its owner's disk

    @property
    def total(self) -> int:
        return self.running + self.waiting + self.lent + self.guests

    @property
    def sentence(self) -> str:
        counts = ((self.running, "running"), (self.waiting, "waiting"), (self.lent, "at other hubs"))
        parts = [f"{count} {word}" for count, word in (*counts, (self.guests, "of other hubs")) if count]
        return f"work left: {', '.join(parts)}" if parts else "no work left"


class HubClosure(Struct, frozen=True, kw_only=True):
    """Whether a hub takes work: `open`, `cordoned`, `draining` or `retired`; and how far a drain has come."""

    hub_id: str
    state: str
    why: str
    remaining: Remaining
    remaining_total: int


def remaining(desk: Desk) -> Remaining:
    running = waiting = lent = 0
    for workload in desk.registry.workloads.values():
        if workload.guest or workload.state.is_final:
            continue
        if workload.leased:
            lent += 1
        elif workload.is_placed:
            running += 1
        else:
            waiting += 1
    board = desk.spill
    guests = len(board.guests) + len(board.unbooked) + len(board.bids)
    return Remaining(running=running, waiting=waiting, lent=lent, guests=guests)


def check_change(desk: Desk, wanted: Closed) -> None:
    """Raises E0304 for a change that cannot be made."""
    name = desk.hub.name
    if desk.closed is Closed.RETIRED and wanted is not Closed.RETIRED:
        raise HarchError(
            "E0304",
            f"{name} has been retired",
            hint=f"let it join anew: `harch hub invite {desk.hub.id} --again` where the authority is",
        )
    if wanted is not Closed.RETIRED:
        return
    left = remaining(desk)
    if left.total:
        raise HarchError(
            "E0304",
            f"{name} cannot retire: {left.sentence}",
            hint=f"`harch hub drain {desk.hub.id} --wait` waits until nothing is left",
            meta={"remaining": left.total},
        )
