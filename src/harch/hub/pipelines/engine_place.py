"""What does a hub need of whoever runs its message engine? The same few things of its own servers and of a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from harch.pipelines.engine.layout import Layout, Limits, Server
from harch.pipelines.engine.users import EngineUser
from harch.pipelines.workers.config import EngineAccess


class EnginePlace(Protocol):
    """Domains are called after the country: `ma`, and `ma-act` for the one that syncs every write."""

    access_life_s: float | None  # after which what `access` gives is good no longer; None: never

    @property
    def where(self) -> str:
        """Which engine it is: streams of one are not in another."""

    @property
    def limits(self) -> Limits: ...

    @property
    def replicas(self) -> int:
        """Copies of every stream."""

    @property
    def servers(self) -> int:
        """How many there are to keep them, in each domain."""

    def check(self, domain: str) -> None:
        """Raises E0747 if there is no such engine here."""

    def servers_of(self, domain: str) -> tuple[Server, ...]:
        """Those that are configured by us; none of a cluster that others run."""

    async def ready(self, layout: Layout) -> None:
        """Returns when every domain of the layout runs and knows its users. Raises E0701 to E0704, E0746."""

    def doubt(self, domain: str) -> None:
        """It has refused the controller: the next `ready` looks at it anew."""

    def access(self, domain: str, user: EngineUser) -> EngineAccess:
        """How this user reaches the engine; good for a worker's file."""

    def controller(self, domain: str) -> EngineAccess:
        """How HarchOS itself does; never written anywhere."""

    def keepers(self, domain: str) -> frozenset[str]:
        """Names of the servers that may keep streams: they stand in the country."""

    def stores(self, domain: str) -> tuple[Path, ...]:
        """Folders of their disks, where those can be looked at."""

    async def stop(self) -> None: ...
