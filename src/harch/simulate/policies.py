"""Who decides at a simulated hub? The real scheduler, or one of the plain ones that it is compared with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

from harch.fleet.model import Hub
from harch.placement.request import Request
from harch.placement.room import Room, TaskSlot

FleetPolicy = Literal["harch", "blind", "fifo", "binpack", "drf"]
FLEET_POLICIES: tuple[FleetPolicy, ...] = get_args(FleetPolicy)


@dataclass(frozen=True, slots=True)
class Start:
    """A request was given these slots, in rank order."""

    request: Request
    slots: tuple[TaskSlot, ...]


@dataclass(frozen=True, slots=True)
class Decisions:
    """What one round decided: who starts, and who must stop for somebody of a higher class."""

    starts: tuple[Start, ...] = ()
    stops: tuple[str, ...] = ()
    complete: bool = True  # False: the limit was reached, ask again at once


class HubPolicy(Protocol):
    """One hub's decisions. Starts are booked in `room` when they are answered."""

    room: Room

    @property
    def kept(self) -> Mapping[int, str]:
        """Rows of nodes that are kept, and the request that they are kept for."""
        ...

    def submit(self, request: Request, *, now_s: float) -> None: ...

    def withdraw(self, request_id: str) -> None: ...

    def ended(self, request_id: str, *, now_s: float) -> None: ...

    def decide(self, *, now_s: float, starts_max: int) -> Decisions: ...


def new_policy(name: FleetPolicy) -> Callable[[Hub], HubPolicy]:
    """The maker of one policy per hub. Imports what it needs only: plain policies need no compiled kernels."""
    if name in ("harch", "blind"):
        from harch.simulate.harch_policy import BlindPolicy, HarchPolicy

        return HarchPolicy if name == "harch" else BlindPolicy
    from harch.simulate.baselines import BinPack, DominantFair, FirstComeFirstServed

    plain: dict[str, Callable[[Hub], HubPolicy]] = {
        "fifo": FirstComeFirstServed,
        "binpack": BinPack,
        "drf": DominantFair,
    }
    return plain[name]


def open_room(hub: Hub) -> Room:
    """The room of a hub whose nodes are all served."""
    room = Room(hub)
    room.serve((node.id for node in hub.nodes), True)
    return room
