"""Which message engines does this hub run? One for features and state with the first pipeline, a second one that syncs
every write with the first durable ACT; users, streams and their audit follow from all deployments together."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec
from msgspec import Struct

from harch.base.clock import Clock
from harch.base.errors import HarchError
from harch.pipelines.client.aio import AioClient
from harch.pipelines.client.errors import NatsError, as_harch_error
from harch.pipelines.client.options import ClientOptions, Credentials
from harch.pipelines.engine.audit import DomainPolicy
from harch.pipelines.engine.auditor import StreamAuditor
from harch.pipelines.engine.binary import find_nats_server
from harch.pipelines.engine.config import server_config
from harch.pipelines.engine.jetstream_api import JetStreamAdmin
from harch.pipelines.engine.keys import KeyFolder, write_secret
from harch.pipelines.engine.layout import Domain, Layout, Limits, Server
from harch.pipelines.engine.log_lines import EngineEvent
from harch.pipelines.engine.server import EngineServer, user_names
from harch.pipelines.engine.streams import Wanted, check_streams, plan_streams
from harch.pipelines.engine.users import CONTROLLER, StageGrant, inbox_of, juris_root
from harch.pipelines.spec.assembly import assemble_domain, controller_name
from harch.pipelines.spec.deployment import Deployment
from harch.pipelines.workers.config import EngineAccess
from harch.pipelines.workers.local_engine import connect
from harch.pipelines.workers.names import PipelineNames
from harch.sovereignty.gates import Violation

CONNECT_TIMEOUT_S = 30.0
APPLY_TIMEOUT_S = 10.0
_FOREVER = 1_000_000_000

log = logging.getLogger("harch.hub")


class _Ports(Struct, frozen=True):
    """Kept in a file, so that workers find the engine again after the hub was started anew."""

    client: int
    monitor: int


class _Running(Struct):
    """One server, the controller's connection to it, and who looks after its streams."""

    server: EngineServer
    client: AioClient
    auditor: StreamAuditor
    watching: asyncio.Task[None] | None = None


class HubEngine:
    """The engines of one hub. `ensure` makes them what the deployments need; `stop` ends them."""

    def __init__(
        self,
        hub_id: str,
        country: str,
        folder: Path,
        *,
        clock: Clock,
        on_event: Callable[[EngineEvent], None],
        on_violation: Callable[[Violation], None],
        on_alert: Callable[[bytes], None],
        limits: Limits | None = None,
    ) -> None:
        self._hub_id, self._country, self._folder, self._clock = hub_id, country, folder, clock
        self._on_event, self._on_violation, self._on_alert = on_event, on_violation, on_alert
        self._limits = limits or Limits()
        self._keys = KeyFolder(folder / "keys")
        self._running: dict[str, _Running] = {}

    @property
    def main(self) -> str:
        """The domain that every pipeline uses."""
        return self._country.lower()

    def act_domain(self, deployment: Deployment) -> str:
        """Where outputs and the ledger of this pipeline are."""
        return next((share.domain for share in deployment.domains if share.synced), self.main)

    def admin(self, domain: str) -> JetStreamAdmin:
        """Raises E0701 while that engine does not run."""
        running = self._running.get(domain)
        if running is None:
            raise HarchError("E0701", f"the message engine `{domain}` does not run yet", hint="try again in a moment")
        return JetStreamAdmin(running.client)

    def access(self, deployment: Deployment, stage: str) -> tuple[EngineAccess, EngineAccess]:
        """How the workers of a stage reach the main engine, and the one of outputs."""
        user = StageGrant(country=self._country, pipeline=deployment.pipeline, stage=stage).user_name
        seed = self._keys.seed(user)
        return (
            EngineAccess(servers=(self._url(self.main),), user=user, seed=seed),
            EngineAccess(servers=(self._url(self.act_domain(deployment)),), user=user, seed=seed),
        )

    def controller_access(self, domain: str) -> EngineAccess:
        """For whoever approves: HarchOS itself."""
        seed = self._keys.seed(controller_name(self._country))
        return EngineAccess(servers=(self._url(domain),), user=CONTROLLER, seed=seed)

    def check(self, deployments: Iterable[Deployment]) -> None:
        """Would the engines take all of them? Raises E0705."""
        found = list(deployments)
        for name in _domain_names(found):
            _, wanted = self._assemble(name, found)
            if refused := check_streams(wanted, self._limits, servers=1):
                first = refused[0]
                raise HarchError("E0705", f"{first.subject}: {first.detail}", hint=first.nearest_fix)

    async def ensure(self, deployments: Iterable[Deployment], *, remove: Iterable[Deployment] = ()) -> None:
        """Servers, users and streams as these deployments need them; the streams of `remove` are deleted."""
        found, gone = list(deployments), list(remove)
        assembled = {name: self._assemble(name, found) for name in _domain_names([*found, *gone])}
        layout = Layout(domains=tuple(domain for domain, _ in assembled.values()), limits=self._limits)
        for name, (domain, wanted) in assembled.items():
            text, users = server_config(layout, domain.servers[0].name), user_names(layout)
            policy = DomainPolicy(
                country=self._country,
                domain=name,
                account=domain.account,
                servers=frozenset(server.name for server in domain.servers),
                wanted=wanted,
            )
            if name not in self._running:
                self._running[name] = await self._start(domain.servers[0], text, users, policy)
            running = self._running[name]
            running.server.reconfigure(text, users)
            await _ended(running.watching)  # what is being made now is neither missing nor unknown
            running.auditor.policy = policy
            await self._apply(JetStreamAdmin(running.client), wanted, _streams_of(name, gone))
            self._look_after(name, running)
        for deployment in gone:
            for share in deployment.domains:
                for grant in share.grants:
                    self._keys.forget(grant.user_name)

    async def renew_lanes(self, deployment: Deployment, names: PipelineNames) -> None:
        """Deletes the lanes into THINK and ACT and makes them again; nothing may be in them. Raises NatsError."""
        lanes = (names.features_stream, names.outputs_stream)
        for share in deployment.domains:
            admin, running = self.admin(share.domain), self._running[share.domain]
            await _ended(running.watching)  # what is being made now is neither missing nor unknown
            there = (await admin.found()).streams
            for stream in share.wanted.streams:
                if stream.name in lanes and stream.name in there:
                    await admin.call(f"STREAM.DELETE.{stream.name}")
            await admin.apply(plan_streams(share.wanted, await admin.found()))
            self._look_after(share.domain, running)

    async def stop(self) -> None:
        running, self._running = self._running, {}
        for one in running.values():
            await _ended(one.watching)
            await one.client.close()
        await asyncio.gather(*(one.server.stop() for one in running.values()))

    def pids(self) -> dict[str, int | None]:
        return {name: running.server.pid for name, running in self._running.items()}

    def _url(self, domain: str) -> str:
        return f"nats://127.0.0.1:{self._ports(domain).client}"

    def _assemble(self, name: str, deployments: list[Deployment]) -> tuple[Domain, Wanted]:
        return assemble_domain(name, self._country, (self._server(name),), deployments, self._keys.public_key)

    def _server(self, domain: str) -> Server:
        ports = self._ports(domain)
        return Server(
            name=f"{domain}-{self._hub_id}",
            hub=self._hub_id,
            client_port=ports.client,
            monitor_port=ports.monitor,
            store=str(self._folder / domain / "store"),
            log_file=str(self._folder / domain / "nats.log"),
        )

    async def _start(self, server: Server, text: str, users: dict[str, str], policy: DomainPolicy) -> _Running:
        folder = self._folder / policy.domain
        engine = EngineServer(
            server, text, folder, find_nats_server(), users=users, on_event=self._on_event, clock=self._clock
        )
        await engine.start()
        seed = self._keys.seed(controller_name(self._country))
        options = ClientOptions(
            servers=(engine.url,),
            name=CONTROLLER,
            credentials=Credentials(seed=seed),
            inbox_prefix=inbox_of(CONTROLLER),
            reconnect_attempts_max=_FOREVER,
            backoff_s_max=1.0,
        )
        client = AioClient(options, clock=self._clock)
        try:
            await connect(client, self._clock, CONNECT_TIMEOUT_S)
        except BaseException:
            await engine.stop()
            raise
        client.subscribe(
            f"{juris_root(self._country)}.*.alerts", lambda message: self._on_alert(bytes(message.payload))
        )
        store = Path(server.store)
        auditor = StreamAuditor(JetStreamAdmin(client), policy, self._on_violation, store=store, clock=self._clock)
        return _Running(engine, client, auditor)

    def _look_after(self, domain: str, running: _Running) -> None:
        running.watching = asyncio.create_task(self._watch(running.auditor), name=f"audit-{domain}")

    async def _watch(self, auditor: StreamAuditor) -> None:
        """An auditor that fails is a fault of ours, and no reason to stop looking."""
        while True:
            try:
                await auditor.run()
            except Exception:
                log.exception("the audit of streams of %s failed", auditor.policy.domain)
            await self._clock.sleep(5.0)

    async def _apply(self, admin: JetStreamAdmin, wanted: Wanted, remove: list[str]) -> None:
        until_s = self._clock.monotonic_s() + APPLY_TIMEOUT_S
        while True:
            try:
                found = await admin.found()
                break
            except NatsError as error:  # while it reads its configuration, JetStream does not answer for a moment
                if self._clock.monotonic_s() > until_s:
                    raise as_harch_error(error, "looking at the streams of pipelines") from error
            await self._clock.sleep(0.2)
        await admin.apply(plan_streams(wanted, found, remove=remove))

    def _ports(self, domain: str) -> _Ports:
        path = self._folder / domain / "ports.json"
        with contextlib.suppress(FileNotFoundError, msgspec.MsgspecError):
            return msgspec.json.decode(path.read_bytes(), type=_Ports)
        with socket.socket() as one, socket.socket() as other:
            for each in (one, other):
                each.bind(("127.0.0.1", 0))
            ports = _Ports(one.getsockname()[1], other.getsockname()[1])
        write_secret(path, msgspec.json.encode(ports).decode())
        return ports


async def _ended(task: asyncio.Task[None] | None) -> None:
    if task is not None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _domain_names(deployments: Iterable[Deployment]) -> list[str]:
    return list(dict.fromkeys(share.domain for deployment in deployments for share in deployment.domains))


def _streams_of(domain: str, deployments: Iterable[Deployment]) -> list[str]:
    return [
        stream.name
        for deployment in deployments
        for share in deployment.domains
        if share.domain == domain
        for stream in share.wanted.streams
    ]
