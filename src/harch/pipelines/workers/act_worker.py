"""How does an ACT worker run?

The stage with its ledger, its sinks and its audit: outputs in, commands into the ledger, and only then is a message
acknowledged.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
from pathlib import Path

import msgspec

from harch.base.errors import HarchError
from harch.base.rejection import Rejection
from harch.base.tracing.spans import Attributes, read_header
from harch.pipelines.act.decisions import DecisionBatch
from harch.pipelines.act.ledger import ActionCommand, CommandState, LedgerEntry
from harch.pipelines.act.settings import ActSettings
from harch.pipelines.act.sinks.base import Sink
from harch.pipelines.act.sinks.build import build_sinks, close_sinks
from harch.pipelines.act.stage import ActStage
from harch.pipelines.act.store import LedgerStore
from harch.pipelines.client.aio import AioClient
from harch.pipelines.client.bucket import Unreachable
from harch.pipelines.client.errors import NatsError
from harch.pipelines.client.protocol import Message
from harch.pipelines.sense.gate import BatchVerdict, ResidencyGate
from harch.pipelines.think.messages import decode_outputs
from harch.pipelines.wire.header import Buffer
from harch.pipelines.workers.config import EngineAccess, WorkerConfig
from harch.pipelines.workers.names import ACT_CONSUMER
from harch.pipelines.workers.pull_consumer import (
    Answered,
    Puller,
    acknowledge,
    deliveries,
    give_up,
    handle_all,
    still_working,
)
from harch.pipelines.workers.shared_state import DeviceNews, Policies
from harch.pipelines.workers.shell import Shell, StageReport
from harch.pipelines.workers.telemetry import Latency
from harch.sovereignty.audit.chain import Draft

# How does ACT run inside a worker? The stage with its ledger, its sinks and its audit, and outputs made into batches.
#
# The audit of each action goes into a stream of the synced engine, from which the hub takes it into its chain; what
# cannot be written there is not done.


LEDGER_FILE = "ledger.db"


class NotYet(Exception):
    """The policy version of these outputs is not known here yet; they come again."""


class ActRunner:
    """`open`, then `run` beside `take`; `close` last."""

    def __init__(self, shell: Shell, policies: Policies) -> None:
        if shell.config.act is None:
            raise HarchError("E0750", "an ACT worker has no actions", hint="have the hub write its configuration")
        self._shell = shell
        self._config = shell.config
        self._settings: ActSettings = shell.config.act
        self._policies = policies
        self.gate = ResidencyGate(shell.config.site.hub, shell.config.policy)
        self._news = DeviceNews(shell.config.sense.devices)
        self._ledger_client: AioClient | None = None
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
        if answer.verdict is BatchVerdict.HOLD:
            raise NotYet(answer.detail)
        if answer.verdict is BatchVerdict.DROP:
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

    def _closed(self, entry: LedgerEntry) -> None:
        """A command came to its end; one whose window is traced is reported."""
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
        error = "" if entry.state is CommandState.DONE else entry.state.value
        spans.action_ended(context, command.issued_ms * 1_000_000, about, error)

    async def _audit(self, draft: Draft) -> None:
        try:
            await self._shell.act_client.publish_stored(self._shell.names.audit, msgspec.json.encode(draft))
        except NatsError as error:
            raise HarchError(
                "E0775",
                f"could not write to the action audit: {error}",
                hint="check that the synced message engine is running",
            ) from error


async def connect_ledger(access: EngineAccess, config: WorkerConfig | None = None) -> AioClient:
    """A connection of its own, also for whoever approves: only to servers that were named. Raises E0775."""
    client = AioClient(access.options(config.worker if config is not None else access.user))
    try:
        async with asyncio.timeout(30):
            await client.connect()
    except (NatsError, TimeoutError) as error:
        raise HarchError(
            "E0775",
            f"the ledger's message server is not reachable ({type(error).__name__})",
            hint="check that it is running",
        ) from error
    return client


def share_of(command: ActionCommand, count: int) -> int:
    """Which worker carries on the commands of a device: the same one at every worker that asks."""
    digest = hashlib.sha256(f"{command.pipeline}/{command.device}".encode()).digest()
    return int.from_bytes(digest[:4], "little") % max(1, count)


# How does an ACT worker run? Outputs in, commands into the ledger, and only then is a message acknowledged.


RETRY_S = 0.5
KEEP_ALIVE_S = 1.5
DRAIN_S = 15.0  # for actions that are open; what is left waits in the ledger for the next worker

log = logging.getLogger(__name__)


class ActWorker:
    """The split stage."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        self._config = shell.config
        self._policies = Policies(shell.config.policy)
        self._actor = ActRunner(shell, self._policies)
        self._stopping = asyncio.Event()
        self._ready = False
        self._latency = Latency()
        self._messages = self._commands = self._dead = self._redelivered = self._repeated = 0
        self._answered = Answered()
        self._lag = 0
        self._puller: Puller | None = None

    async def run(self) -> None:
        await self._open()
        stage = asyncio.create_task(self._actor.run(), name="act-stage")
        lag = asyncio.create_task(self._measure_lag(), name="lag")
        self._ready = True
        try:
            working = asyncio.create_task(self._work(), name="act")
            await asyncio.wait((working, stage), return_when=asyncio.FIRST_COMPLETED)
            await working if working.done() else await stage
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(DRAIN_S):
                    await self._actor.stage.drain()
        finally:
            for task in (stage, lag):
                task.cancel()
            await asyncio.gather(stage, lag, return_exceptions=True)
            await self._actor.close()

    def stop(self) -> None:
        self._stopping.set()

    async def look(self) -> None:
        for table in await self._policies.look(self._shell.state):
            self._actor.gate.learn(table)
        if self._ready:
            self._actor.stage.wake()  # a person may have approved something

    def report(self) -> StageReport:
        report = StageReport(
            counters={
                "messages": self._messages,
                "commands": self._commands,
                "messages_dead": self._dead,
                "messages_redelivered": self._redelivered,
                "messages_repeated": self._repeated,
            },
            lag=float(self._lag),
            done=float(self._commands),
            drained=float(self._messages),
            latency_ms=self._latency.summary(),
            latency_counts=tuple(self._latency.histogram.counts),
            trouble="" if self._ready else "opening its ledger",
        )
        if self._ready:
            report.counters |= self._actor.stage.counters.as_dict()
            report.gauges = {"open_actions": float(len(self._actor.stage.agenda))}
        return report

    async def _open(self) -> None:
        """The ledger may be a moment later than we are."""
        while True:
            try:
                await self._actor.open()
                return
            except HarchError as error:
                if error.code != "E0775" or self._stopping.is_set():
                    raise
                log.warning("%s", error.message)
            await self._shell.clock.sleep(RETRY_S)

    async def _work(self) -> None:
        shell = self._shell
        puller = Puller(shell.act_client, shell.names.outputs_stream, ACT_CONSUMER, shell.clock)
        self._puller = puller
        await handle_all(puller, self._handle, self._stopping)

    async def _handle(self, message: Message) -> None:
        began_s = self._shell.clock.monotonic_s()
        self._redelivered += deliveries(message) > 1
        alive = asyncio.create_task(self._keep_alive(message))
        try:
            if deliveries(message) > self._config.acting.deliveries_max:
                await self._bury(message, f"{deliveries(message)} deliveries")
                return
            if self._answered.has(message):
                self._repeated += 1
                acknowledge(self._shell.act_client, message)
                return
            taken = await self._take(message)
            if isinstance(taken, Rejection):
                await self._bury(message, f"{taken.rule}: {taken.detail}")
                return
            self._answered.add(message)
            acknowledge(self._shell.act_client, message)
        except NatsError as error:
            log.warning("redelivering outputs: %s", error)
            return
        finally:
            alive.cancel()
        self._messages += 1
        self._commands += taken
        self._latency.add((self._shell.clock.monotonic_s() - began_s) * 1000)

    async def _take(self, message: Message) -> int | Rejection:
        while True:
            try:
                return await self._actor.take(message.payload)
            except NotYet as error:
                log.info("outputs delayed: %s", error)
            except HarchError as error:
                if error.code not in ("E0775", "E0777"):
                    return Rejection("outputs", error.code, error.message)
                log.warning("outputs delayed: %s", error.message)
            await self._shell.clock.sleep(RETRY_S)

    async def _bury(self, message: Message, why: str) -> None:
        self._dead += 1
        self._shell.alert("dead", f"outputs on {message.subject}: {why}")
        partition = message.subject.rpartition(".")[2]
        await self._shell.act_client.publish_stored(self._shell.names.dead(partition), message.payload)
        give_up(self._shell.act_client, message)

    async def _keep_alive(self, message: Message) -> None:
        while True:
            await self._shell.clock.sleep(KEEP_ALIVE_S)
            with contextlib.suppress(NatsError):
                still_working(self._shell.act_client, message)

    async def _measure_lag(self) -> None:
        while True:
            await self._shell.clock.sleep(self._config.status_every_s)
            if self._puller is not None:
                with contextlib.suppress(NatsError):
                    self._lag = await self._puller.pending()
