"""What is in the message engines of this hub? One engine for features and state with the first pipeline, a second one
that syncs every write with the first durable ACT; users, streams and their audit follow from all deployments together.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from msgspec import Struct, structs

from harch.base.clock import Clock
from harch.base.errors import HarchError
from harch.base.state_files import read_sealed
from harch.hub.pipelines.engine_backends import EnginePlace
from harch.pipelines.client.aio import AioClient
from harch.pipelines.client.errors import AuthorizationFailed, NatsError, as_harch_error
from harch.pipelines.client.protocol import Message
from harch.pipelines.engine.audit import DomainPolicy
from harch.pipelines.engine.jetstream_admin import JetStreamAdmin, StreamAuditor
from harch.pipelines.engine.keys import KeyFolder, write_state
from harch.pipelines.engine.layout import CONTROLLER, Domain, EngineLayout, StageGrant, juris_root, stage_user
from harch.pipelines.engine.streams import DesiredStreams, check_streams, plan_streams
from harch.pipelines.spec.deployment import Deployment, assemble_domain
from harch.pipelines.workers.config import EngineAccess
from harch.pipelines.workers.local_engine import connect
from harch.pipelines.workers.names import PipelineNames
from harch.sovereignty.gates import Violation

CONNECT_TIMEOUT_S = 30.0
APPLY_TIMEOUT_S = 10.0

log = logging.getLogger("harch.hub")


class _Running(Struct):
    """The controller's connection to one engine, and who looks after its streams."""

    client: AioClient
    auditor: StreamAuditor
    watching: asyncio.Task[None] | None = None


class HubEngine:
    """The engines of one hub, wherever they run. `ensure` makes them what the deployments need; `stop` ends them."""

    def __init__(
        self,
        country: str,
        place: EnginePlace,
        keys: KeyFolder,
        where_file: Path,
        *,
        clock: Clock,
        on_violation: Callable[[Violation], None],
        on_alert: Callable[[bytes], None],
        on_spans: Callable[[bytes], None] = lambda payload: None,
    ) -> None:
        """`where_file` remembers which engine the pipelines are in."""
        self.place = place
        self._where_file = where_file
        self._country, self._keys, self._clock = country, keys, clock
        self._on_violation, self._on_alert, self._on_spans = on_violation, on_alert, on_spans
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
            raise HarchError("E0701", f"the message engine `{domain}` is not running yet", hint="try again in a moment")
        return JetStreamAdmin(running.client)

    @property
    def is_whole(self) -> bool:
        """False once an engine has refused the controller's key: then no connection comes back by itself."""
        return not any(
            isinstance(error, AuthorizationFailed) for one in self._running.values() for error in one.client.refusals
        )

    def access(self, deployment: Deployment, stage: str) -> tuple[EngineAccess, EngineAccess]:
        """How the workers of a stage reach the main engine, and the one of outputs."""

        def at(domain: str) -> EngineAccess:
            nothing = StageGrant(country=self._country, pipeline=deployment.pipeline, stage=stage)
            grants = [grant for share in deployment.domains if share.domain == domain for grant in share.grants]
            grant = next((one for one in grants if one.stage == stage), nothing)
            return self.place.access(domain, stage_user(grant, self._keys.public_key(grant.user_name)))

        return at(self.main), at(self.act_domain(deployment))

    def controller_access(self, domain: str) -> EngineAccess:
        """For whoever approves: HarchOS itself."""
        return self.place.controller(domain)

    def check(self, deployments: Iterable[Deployment]) -> None:
        """Would the engines take all of them? Raises E0705, E0747."""
        found = list(deployments)
        self._check_where()
        copies = self.place.replicas
        for deployment in found:
            if _copies_wanted(deployment) > copies:
                raise HarchError(
                    "E0747",
                    f"`{deployment.pipeline}` needs {_copies_wanted(deployment)} copies, but this hub keeps {copies}",
                    hint="set `replicas = 3` in engine.toml (docs/pipelines/engine-settings.md), or apply it elsewhere",
                )
        for name in _domain_names(found):
            self.place.check(name)
            domain, wanted = self._assemble(name, found)
            if refused := check_streams(wanted, self.place.limits, servers=self.place.servers, synced=domain.synced):
                first = refused[0]
                raise HarchError("E0705", f"{first.subject}: {first.detail}", hint=first.nearest_fix)

    async def ensure(self, deployments: Iterable[Deployment], *, remove: Iterable[Deployment] = ()) -> None:
        """Servers, users and streams as these deployments need them; the streams of `remove` are deleted."""
        found, gone = list(deployments), list(remove)
        self._check_where()
        assembled = {name: self._assemble(name, found) for name in _domain_names([*found, *gone])}
        await self._forget_refused()
        layout = EngineLayout(domains=tuple(domain for domain, _ in assembled.values()), limits=self.place.limits)
        await self.place.ready(layout)
        for name, (domain, wanted) in assembled.items():
            policy = DomainPolicy(
                country=self._country,
                domain=name,
                account=domain.account,
                servers=self.place.storage_servers(name),
                wanted=wanted,
            )
            if name not in self._running:
                self._running[name] = await self._open(policy)
            running = self._running[name]
            await _ended(running.watching)  # what is being made now is neither missing nor unknown
            running.auditor.policy = policy
            await self._apply(JetStreamAdmin(running.client), wanted, _streams_of(name, gone))
            self._look_after(name, running)
        for deployment in gone:
            for share in deployment.domains:
                for grant in share.grants:
                    self._keys.forget(grant.user_name)
        if found:
            write_state(self._where_file, self.place.where.encode())
        else:
            self._where_file.unlink(missing_ok=True)

    def _check_where(self) -> None:
        """Raises E0747 where engine.toml was changed under pipelines: nobody carries streams from engine to engine."""
        before = read_sealed(self._where_file).decode() if self._where_file.exists() else self.place.where
        if before != self.place.where:
            raise HarchError(
                "E0747",
                f"the pipelines of this hub are in {before}, but engine.toml now names {self.place.where}",
                hint="restore engine.toml, remove them with `harch pipeline rm`, and apply them again after the change",
            )

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
            await admin.apply(plan_streams(self._copied(share.wanted), await admin.found()))
            self._look_after(share.domain, running)

    async def stop(self) -> None:
        running, self._running = self._running, {}
        for one in running.values():
            await _ended(one.watching)
            await one.client.close()
        await self.place.stop()

    def _assemble(self, name: str, deployments: list[Deployment]) -> tuple[Domain, DesiredStreams]:
        servers = self.place.servers_of(name)
        domain, wanted = assemble_domain(name, self._country, servers, deployments, self._keys.public_key)
        return domain, self._copied(wanted)

    def _copied(self, wanted: DesiredStreams) -> DesiredStreams:
        """Every stream has as many copies as the hub's settings say, whatever it is for."""
        copies = self.place.replicas
        return structs.replace(
            wanted, streams=tuple(structs.replace(stream, replicas=copies) for stream in wanted.streams)
        )

    async def _open(self, policy: DomainPolicy) -> _Running:
        client = AioClient(self.place.controller(policy.domain).options(CONTROLLER), clock=self._clock)
        await connect(client, self._clock, CONNECT_TIMEOUT_S)
        for subject, hear in (("alerts", self._on_alert), ("spans", self._on_spans)):
            client.subscribe(f"{juris_root(self._country)}.*.{subject}", partial(_deliver, hear))
        stores = self.place.stores(policy.domain)
        auditor = StreamAuditor(JetStreamAdmin(client), policy, self._on_violation, stores=stores, clock=self._clock)
        return _Running(client, auditor)

    async def _forget_refused(self) -> None:
        """Connections whose key was refused are made anew, after whoever runs the engine had the chance to mend it."""
        for name, one in list(self._running.items()):
            if any(isinstance(error, AuthorizationFailed) for error in one.client.refusals):
                del self._running[name]
                self.place.doubt(name)
                await _ended(one.watching)
                await one.client.close()

    def _look_after(self, domain: str, running: _Running) -> None:
        running.watching = asyncio.create_task(self._watch(running.auditor), name=f"audit-{domain}")

    async def _watch(self, auditor: StreamAuditor) -> None:
        """An auditor that fails is a fault of ours, and no reason to stop looking."""
        while True:
            try:
                await auditor.run()
            except Exception:
                log.exception("stream audit of %s failed", auditor.policy.domain)
            await self._clock.sleep(5.0)

    async def _apply(self, admin: JetStreamAdmin, wanted: DesiredStreams, remove: list[str]) -> None:
        """A young cluster has no leader for a moment, and answers with an error or not at all."""
        until_s = self._clock.monotonic_s() + APPLY_TIMEOUT_S
        while True:
            try:
                await admin.apply(plan_streams(wanted, await admin.found(), remove=remove))
                return
            except NatsError as error:
                if self._clock.monotonic_s() > until_s:
                    raise as_harch_error(error, "inspecting pipeline streams") from error
            except HarchError as error:
                if (
                    error.code not in ("E0701", "E0705")
                    or self._clock.monotonic_s() > until_s
                    or self.place.servers == 1
                ):
                    raise
            await self._clock.sleep(0.2)


def _deliver(hear: Callable[[bytes], None], message: Message) -> None:
    hear(bytes(message.payload))


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


def _copies_wanted(deployment: Deployment) -> int:
    """What the pipeline file asks for at least."""
    return max((stream.replicas for share in deployment.domains for stream in share.wanted.streams), default=1)
