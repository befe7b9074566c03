"""How do questions of other hubs and to other hubs come together in one SENTINEL? Only beside a hub there are any."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from harch.api.telemetry.federated_answers import FederatedAnswers
from harch.api.telemetry.federated_metrics import FederatedMetrics
from harch.api.telemetry.federated_owner import HubOwner
from harch.api.telemetry.federated_settings import FederatedSettings
from harch.api.telemetry.hubs import HubCarrier
from harch.api.telemetry.over_hubs import OverHubs
from harch.api.telemetry.routing import Route
from harch.base.clock import Clock
from harch.sentinel.federated.owning.answering import Readers
from harch.sentinel.promql.evaluate.engine import Engine

MEMORY_FILE = "told_abroad"


class Federated:
    """`metrics` and its like answer requests that name other hubs; `routes` are for the own hub."""

    def __init__(
        self,
        hub_url: str,
        token: str,
        settings: FederatedSettings,
        readers: Callable[[str], Readers],
        engine: Engine,
        data: Path,
        clock: Clock,
    ) -> None:
        self._owner = HubOwner(settings, readers, engine, data / MEMORY_FILE)
        self._over = OverHubs(HubCarrier(hub_url, token), self._owner, clock)
        self.metrics = FederatedMetrics(self._over, engine)

    def routes(self) -> list[Route]:
        return FederatedAnswers(self._owner).routes()

    async def close(self) -> None:
        await self._over.close()
        self._owner.close()
