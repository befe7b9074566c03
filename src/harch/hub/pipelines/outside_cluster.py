"""Does somebody else run the message engine? A cluster by URL, looked at before it is used; users are signed here."""

from __future__ import annotations

from pathlib import Path

from harch.base.clock import Clock
from harch.base.errors import HarchError
from harch.pipelines.client.aio import AioClient
from harch.pipelines.client.errors import NatsError
from harch.pipelines.engine.external import PROBE, Cluster, check_cluster
from harch.pipelines.engine.keys import KeyFolder
from harch.pipelines.engine.layout import Layout, Limits, Server
from harch.pipelines.engine.settings import SYNCED, EngineSettings, ExternalSettings
from harch.pipelines.engine.user_tokens import LIFE, user_token
from harch.pipelines.engine.users import CONTROLLER, EngineUser, StageGrant, controller_user, stage_user
from harch.pipelines.spec.assembly import controller_name
from harch.pipelines.workers.config import EngineAccess

PAYLOAD_BYTES_MAX = 8 << 20


class OutsideCluster:
    """An EnginePlace at the addresses that `engine.toml` names. Nothing is started or configured from here."""

    access_life_s: float | None = LIFE.total_seconds()

    def __init__(
        self, country: str, *, settings: EngineSettings, external: ExternalSettings, keys: KeyFolder, clock: Clock
    ) -> None:
        """Raises E0745 without the key that signs users."""
        self.limits = Limits(file_bytes_max=external.file_bytes_max, payload_bytes_max=PAYLOAD_BYTES_MAX)
        self.replicas, self.servers = settings.replicas, len(external.server_names)
        self._country, self._external, self._keys, self._clock = country, external, keys, clock
        self.where = f"the account {external.account}"
        self._account = external.account_key()
        self._checked: set[str] = set()

    def check(self, domain: str) -> None:
        """Raises E0747 if a pipeline wants the engine that syncs, and none is named."""
        self._cluster(domain)

    def servers_of(self, domain: str) -> tuple[Server, ...]:
        return ()

    async def ready(self, layout: Layout) -> None:
        """Looks at each cluster once in the life of this process. Raises E0701 if it is not there, E0746 if it is not
        as it has to be."""
        for domain in layout.domains:
            await self.look(domain.name)

    async def look(self, domain: str) -> None:
        if domain in self._checked:
            return
        cluster = self._cluster(domain)
        grant = StageGrant(country=self._country, pipeline="harch", stage="probe")
        probe = stage_user(grant, self._keys.public_key(grant.user_name))
        controller = AioClient(self.controller(domain).options(CONTROLLER), clock=self._clock)
        worker = AioClient(self.access(domain, probe).options(PROBE), clock=self._clock)
        try:
            for client in (controller, worker):
                await self._connect(client, domain)
            found = await check_cluster(
                cluster, controller, worker, country=self._country, replicas=self.replicas, clock=self._clock
            )
        finally:
            await controller.close()
            await worker.close()
        if found:
            reasons = "; ".join(f"{one.rule}: {one.detail}" for one in found)
            raise HarchError(
                "E0746",
                f"the message engine `{domain}` at {', '.join(cluster.servers)} may not carry streams: {reasons}",
                hint=found[0].nearest_fix or "docs/pipelines/engine-settings.md tells what it has to be",
                meta={"rules": [one.rule for one in found]},
            )
        self._checked.add(domain)

    def doubt(self, domain: str) -> None:
        self._checked.discard(domain)

    def access(self, domain: str, user: EngineUser) -> EngineAccess:
        return self._access(domain, user.name, user.name, user_token(self._account, user, now=self._clock.now()))

    def controller(self, domain: str) -> EngineAccess:
        """Its token stays in memory, so it need not run out."""
        name = controller_name(self._country)
        user = controller_user(self._country, self._keys.public_key(name))
        return self._access(domain, CONTROLLER, name, user_token(self._account, user, now=self._clock.now(), life=None))

    def keepers(self, domain: str) -> frozenset[str]:
        return frozenset(self._cluster(domain).server_names)

    def stores(self, domain: str) -> tuple[Path, ...]:
        return ()

    async def stop(self) -> None:
        self._checked.clear()

    def _access(self, domain: str, user: str, key: str, token: str) -> EngineAccess:
        cluster = self._cluster(domain)
        return EngineAccess(servers=cluster.servers, user=user, seed=self._keys.seed(key), token=token, tls=cluster.tls)

    def _cluster(self, domain: str) -> Cluster:
        found = self._external.cluster(self._country, synced=domain.endswith(f"-{SYNCED}"))
        if found is None:
            raise HarchError(
                "E0747",
                "the pipeline wants `durability.act: synced`, and engine.toml names no engine that syncs every write",
                hint="name one in [external.synced], or write `durability: {act: stored}` with three copies",
            )
        return found

    async def _connect(self, client: AioClient, domain: str) -> None:
        try:
            await client.connect()
        except NatsError as error:
            raise HarchError(
                "E0701",
                f"the message engine `{domain}` at {', '.join(client.options.servers)} is not reachable: {error}",
                hint="does it run, and does it know the account of engine.toml?",
            ) from error
