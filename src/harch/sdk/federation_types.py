"""What does a hub answer about the others, and about leaving them? Values that the client returns."""

from __future__ import annotations

from msgspec import Struct

from harch.sdk.types import Pagination, Workload


class SilentHub(Struct, frozen=True, kw_only=True):
    """A hub that did not answer: its work is missing, and was counted so when it was last heard, `age_s` ago."""

    hub_id: str
    why: str = ""
    age_s: float | None = None
    workloads: dict[str, int] = {}


class FederationPage(Struct, frozen=True, kw_only=True):
    """A page of the work of all hubs, without commands and environments. `complete`: nothing is missing."""

    items: list[Workload]
    total: int = 0
    pagination: Pagination = Pagination()
    silent_hubs: list[SilentHub] = []
    complete: bool = True


class Remaining(Struct, frozen=True, kw_only=True):
    """Unfinished work that a hub answers for."""

    running: int = 0
    waiting: int = 0
    lent: int = 0  # own work that other hubs run
    guests: int = 0  # work of other hubs


class HubClosure(Struct, frozen=True, kw_only=True):
    """Whether a hub takes work: `open`, `cordoned`, `draining` or `retired`; and what it still has."""

    hub_id: str
    state: str
    why: str = ""
    remaining: Remaining = Remaining()
    remaining_total: int = 0
