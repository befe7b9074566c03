"""What does the API need of the other hubs? Their work, their alerts, and what they tell of their telemetry."""

from __future__ import annotations

from typing import Protocol

from harch.hub.federation.alert_post import AlertExchange
from harch.hub.federation.work import FederationWork


class FederationPort(Protocol):
    """The other hubs, asked now."""

    async def work(self, *, tenant: str | None) -> FederationWork:
        """The unfinished work of all hubs that answer within two seconds; those that do not are named."""
        ...

    def exchange_alerts(self, records: bytes) -> AlertExchange:
        """What this hub's SENTINEL has to tell, against what it has to know."""
        ...

    async def ask_telemetry(self, hub_id: str, question: bytes, *, within_s: float) -> bytes:
        """Another hub's answer about its telemetry, as it came."""
        ...
