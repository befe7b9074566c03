"""How does ACT run inside a worker? The stage with its ledger, its sinks and its audit, and outputs made into batches.

The audit of each action goes into a stream of the synced engine, from which the hub takes it into its chain; what
cannot be written there is not done.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from harch.base.errors import HarchError
from harch.base.rejection import Rejection
from harch.base.tracing.context import read_header
from harch.base.tracing.span import Attributes
from harch.pipelines.act.command import Command
from harch.pipelines.act.decisions import DecisionBatch
from harch.pipelines.act.ledger import Entry, State
from harch.pipelines.act.runner import ActStage
from harch.pipelines.act.settings import ActSettings
from harch.pipelines.act.sinks.base import Sink
from harch.pipelines.act.sinks.build import build_sinks, close_sinks
from harch.pipelines.act.store import LedgerStore
from harch.pipelines.client.errors import NatsError
from harch.pipelines.client.nkeys import sign
from harch.pipelines.client.options import parse_address
from harch.pipelines.engine.users import inbox_of
from harch.pipelines.sense.gate import Gate, Verdict
from harch.pipelines.think.messages import decode_outputs
from harch.pipelines.wire.checksum import Buffer
from harch.pipelines.workers.bucket import Unreachable
from harch.pipelines.workers.config import EngineAccess, WorkerConfig
from harch.pipelines.workers.known_devices import DeviceNews
from harch.pipelines.workers.policies import Policies
from harch.pipelines.workers.shell import Shell
from harch.sovereignty.audit.entry import Draft

if TYPE_CHECKING:
    from nats.aio.client import Client, Server

LEDGER_FILE = "ledger.db"
RECONNECT_S = 0.2

log = logging.getLogger(__name__)


class NotYet(Exception):
    """The policy version of these outputs is not known here yet; they come again."""


class Actor:
    """`open`, then `run` beside `take`; `close` last."""

    def __init__(self, shell: Shell, policies: Policies) -> None:
        if shell.config.act is None:
            raise HarchError("E0750", "a worker that acts has no actions", hint="let the hub write its configuration")
        self._shell = shell
        self._config = shell.config
        self._settings: ActSettings = shell.config.act
        self._policies = policies
        self.gate = Gate(shell.config.site.hub, shell.config.policy)
        self._news = DeviceNews(shell.config.sense.devices)
        self._ledger_client: Client | None = None
        self._store: LedgerStore | None = None
        self._sinks: dict[str, Sink] = {}
        self._stage: ActStage | None = None

    @property
    def stage(self) -> ActStage:
        if self._stage is None:
            raise HarchError("E0775", "the ledger is not open yet", hint="wait until the worker is ready")
        return self._stage

    async def open(self) -> None:
        """Raises E0775 without a ledger, E0776 without what a sink needs."""
        config = self._config
        self._store = await self._open_ledger()
        guards = {name: self._shell.guard(f"sink {name}", config.egress.sink(name)) for name in self._settings.sinks}
        self._sinks = build_sinks(self._settings, guards=guards)
        number, count = config.share
        self._stage = ActStage(
            self._settings,
            store=self._store,
            sinks=self._sinks,
            clock=self._shell.clock,
            worker=f"{config.worker}-{self._shell.process}",
            audit=self._audit,
            local_bit=config.local_bit,
            country_bits=config.country_bits,
            owns=lambda command: share_of(command, count) == number,
            on_closed=self._closed if self._shell.spans is not None else None,
            seed=config.seed,
        )

    async def run(self) -> None:
        await self.stage.run()

    async def look(self) -> None:
        """Devices that were added. Without an answer, those that are known are known."""
        with contextlib.suppress(Unreachable):
            await self._news.look(self._shell.state)

    async def take(self, message: Buffer) -> int | Rejection:
        """How many commands came of it, once the ledger has them. A Rejection is final. Raises NotYet and E0775."""
        found = decode_outputs(message)
        if isinstance(found, Rejection):
            return found
        header, decided = found
        answer = self.gate.decide(header)
        if answer.verdict is Verdict.HOLD:
            raise NotYet(answer.detail)
        if answer.verdict is Verdict.DROP:
            return Rejection("outputs", answer.reason, answer.detail)
        origin = decided.origin
        if len(decided.devices) and int(decided.devices.max()) >= len(self._news.devices):
            await self.look()  # an operator may have added a device a moment ago
        spans, trace = self._shell.spans, ""
        followed = spans.trace_of(origin.window_end_ns) if spans is not None and not origin.again else None
        began_ns = 0
        if spans is not None and followed is not None:
            began_ns, trace = spans.now_ns(), spans.act_context(followed, origin.partition, message).header
        batch = DecisionBatch(
            pipeline=origin.pipeline,
            devices=[self._device(int(number)) for number in decided.devices],
            columns=decided.outputs,
            windows=origin.window_end_ns,
            at_ms=decided.at_ms,
            # Sinks, countries and this place are known by the numbering that the stage was made with.
            juris_mask=self._policies.renumbered(origin.juris_mask, origin.policy_version, self._config.policy),
            policy_version=self._config.policy.version,
            model=decided.ref.model,
            model_hash=decided.ref.sha256,
            again=origin.again,
            trace=trace,
        )
        taken = await self.stage.submit(batch)
        if spans is not None and followed is not None:
            spans.acted(origin.partition, followed, message, began_ns, commands=taken.commands)
        return taken.refused if taken.refused is not None else taken.commands

    async def close(self) -> None:
        await close_sinks(self._sinks)
        if self._store is not None:
            await self._store.close()
        if self._ledger_client is not None:
            await self._ledger_client.close()

    def _device(self, number: int) -> str:
        """Devices that have no name in the table are called by their number."""
        return self._news.devices[number] if number < len(self._news.devices) else str(number)

    async def _open_ledger(self) -> LedgerStore:
        if self._config.acting.ledger == "sqlite":
            from harch.pipelines.act.store_sqlite import SqliteLedger

            return SqliteLedger(Path(self._config.state_folder) / LEDGER_FILE)
        from harch.pipelines.act.store_nats import NatsLedger

        self._ledger_client = await connect_ledger(self._config.act_engine, self._config)
        return await NatsLedger.open(
            self._ledger_client,
            bucket=self._shell.names.ledger_bucket,
            retention_s=self._settings.retention_s,
        )

    def _closed(self, entry: Entry) -> None:
        """A command came to its end; one whose window is followed is told."""
        command, spans = entry.command, self._shell.spans
        context = read_header(command.trace) if command.trace else None
        if spans is None or context is None:
            return
        about: Attributes = {
            "action.id": command.cmd_id,
            "action.name": command.action,
            "action.state": entry.state.value,
            "action.attempts": entry.attempts,
            "action.device": command.device,
        }
        error = "" if entry.state is State.DONE else entry.state.value
        spans.action_ended(context, command.issued_ms * 1_000_000, about, error)

    async def _audit(self, draft: Draft) -> None:
        try:
            await self._shell.act_client.publish_stored(self._shell.names.audit, msgspec.json.encode(draft))
        except NatsError as error:
            raise HarchError(
                "E0775", f"the audit of actions took no entry: {error}", hint="is the synced message engine running?"
            ) from error


async def connect_ledger(access: EngineAccess, config: WorkerConfig | None = None) -> Client:
    """A connection as the ledger needs it, also for whoever approves. Raises E0775."""
    import nats
    from nats.errors import Error

    options: dict[str, Any] = {}
    if access.tls is not None:
        context = ssl.create_default_context(cafile=access.tls.ca)
        if access.tls.certificate:
            context.load_cert_chain(access.tls.certificate, access.tls.key)
        options["tls"] = context
        if access.tls.server_name:
            options["tls_hostname"] = access.tls.server_name
    if access.token:
        options["user_jwt_cb"] = lambda: access.token.encode()
        options["signature_cb"] = lambda nonce: sign(access.seed, nonce).encode()
    else:
        options["nkeys_seed_str"] = access.seed
    try:
        async with asyncio.timeout(30):
            return await nats.connect(
                servers=list(access.servers),
                name=config.worker if config is not None else access.user,
                inbox_prefix=inbox_of(access.user).encode(),
                max_reconnect_attempts=-1,
                reconnect_time_wait=RECONNECT_S,
                reconnect_to_server_handler=_named_servers(access.servers),
                error_cb=_quiet,
                **options,
            )
    except (Error, OSError, TimeoutError) as error:
        raise HarchError(
            "E0775", f"the ledger's message server is not reachable ({type(error).__name__})", hint="is it running?"
        ) from error


def _named_servers(urls: tuple[str, ...]) -> Callable[[list[Server], dict[str, Any]], tuple[Server | None, float]]:
    """Whoever connects again stays with the servers that were named. A server tells its clients of others in its
    cluster, and those may stand in another country."""
    named = {(address.host, address.port) for address in map(parse_address, urls)}

    def choose(known: list[Server], info: dict[str, Any]) -> tuple[Server | None, float]:
        own = [server for server in known if (server.uri.hostname, server.uri.port) in named]
        return min(own, key=lambda server: server.reconnects), RECONNECT_S

    return choose


async def _quiet(error: Exception) -> None:
    log.debug("ledger connection: %s", type(error).__name__)


def share_of(command: Command, count: int) -> int:
    """Which worker carries on the commands of a device: the same one at every worker that asks."""
    digest = hashlib.sha256(f"{command.pipeline}/{command.device}".encode()).digest()
    return int.from_bytes(digest[:4], "little") % max(1, count)
