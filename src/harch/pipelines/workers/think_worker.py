"""How does a THINK worker run?

Features in, outputs of the models that are wanted now into ACT's stream, and only then is a message acknowledged.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter, deque
from collections.abc import Callable
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from harch.base.clock import Clock
from harch.base.errors import HarchError
from harch.base.rejection import Rejection
from harch.pipelines.client.errors import NatsError
from harch.pipelines.client.protocol import Message
from harch.pipelines.sense.edge import source_number
from harch.pipelines.sense.features import feature_schema
from harch.pipelines.sense.gate import BatchVerdict, ResidencyGate
from harch.pipelines.think.counters import VersionCounters
from harch.pipelines.think.inference_api import inference_app
from harch.pipelines.think.messages import DroppedRows, Origin, Scored, Thought, encode_outputs, features_of_message
from harch.pipelines.think.rollout import RolloutChange, VersionState, WantedModels, plan_models
from harch.pipelines.think.runner import ThinkRunner
from harch.pipelines.think.settings import ModelSettings, VersionSettings
from harch.pipelines.think.stage import ThinkStage
from harch.pipelines.wire.columns import EventSchema, decode_columns
from harch.pipelines.wire.header import BatchHeader, Buffer, check_payload, unpack_header
from harch.pipelines.workers.config import WorkerConfig
from harch.pipelines.workers.names import MODELS_KEY, THINK_CONSUMER
from harch.pipelines.workers.pull_consumer import (
    Answered,
    Puller,
    acknowledge,
    deliveries,
    give_up,
    handle_all,
    still_working,
)
from harch.pipelines.workers.shared_state import Policies
from harch.pipelines.workers.shell import Shell, StageReport, keyed, serve
from harch.pipelines.workers.telemetry import Latency
from harch.sovereignty.tags import Tag

# What does THINK make of one message of features? Messages for ACT, once every row of it is accounted for.
#
# The queue of the stage mixes rows of many messages into batches; here they are put together again. A message is
# answered when each of its rows was scored or dropped by each model, and not before.


SCORING_TIMEOUT_S = (
    600.0  # rows in the queue have no deadline of their own: a durable message is worked on until it is done
)
_TRY_AGAIN = ("full", "paused")  # rules by which the stage turned rows away that it may take later


class OutputMessage(Struct, frozen=True):
    """What goes to ACT. `identity` is the same for the same features, whoever scores them."""

    identity: str
    message: bytes


class Busy(Exception):
    """The queue is full, or the model is paused: nothing was lost, try the whole message again."""


class _Ticket:
    """One message under way."""

    def __init__(self, origin: Origin, rows_expected: int) -> None:
        self.origin = origin
        self.left = rows_expected
        self.scored: list[Scored] = []
        self.dropped: list[DroppedRows] = []
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def count(self, rows: int) -> None:
        self.left -= rows
        if self.left <= 0 and not self.done.done():
            self.done.set_result(None)


class FeatureScorer:
    """Give its `handed_over` to the service. `dropped` counts rows that no output was made of, by rule."""

    def __init__(
        self, pipeline: str, schema: EventSchema, gate: ResidencyGate, clock: Clock, *, again: str = ""
    ) -> None:
        self._pipeline = pipeline
        self._schema = schema
        self._names = tuple(column.name for column in schema.values)
        self._gate = gate
        self._clock = clock
        self._again = again
        self._service: ThinkRunner | None = None
        self.dropped: Counter[str] = Counter()
        self.rows = 0
        self.messages = 0

    def use(self, service: ThinkRunner) -> None:
        self._service = service

    def handed_over(self, thought: Thought) -> None:
        for scored in thought.scored:
            if isinstance(scored.source, _Ticket):
                scored.source.scored.append(scored)
                scored.source.count(len(scored.rows))
        self._drop(thought.dropped)

    async def outputs(self, message: Buffer, partition: int) -> list[OutputMessage] | Rejection:
        """Raises Busy. A Rejection means that this message can never be used."""
        header = unpack_header(message)
        if isinstance(header, Rejection):
            return header
        payload = check_payload(header, message)
        if isinstance(payload, Rejection):
            return payload
        answer = self._gate.decide(header)
        if answer.verdict is BatchVerdict.HOLD:
            raise Busy(answer.detail)
        if answer.verdict is BatchVerdict.DROP:
            return Rejection("batch", answer.reason, answer.detail)
        if header.schema != self._schema.id:
            detail = f"schema {header.schema:#010x}; this stage reads {self._schema.id:#010x}"
            return Rejection("batch", "schema", detail, "update SENSE and THINK together where features change")
        columns = decode_columns(self._schema, header.n, payload)
        if isinstance(columns, Rejection):
            return columns
        features = features_of_message(
            header, columns, self._names, pipeline=self._pipeline, partition=partition, again=self._again
        )
        service = self._service
        if service is None or not header.n:
            return []
        ticket = _Ticket(features.source, header.n * len(service.stage.models))
        deadline_s = self._clock.monotonic_s() + SCORING_TIMEOUT_S
        self._drop(service.submit(replace(features, source=ticket, deadline_s=deadline_s)))
        await ticket.done
        if again := next((one.reason for one in ticket.dropped if one.reason.rule in _TRY_AGAIN), None):
            raise Busy(again.detail)
        for one in ticket.dropped:
            self.dropped[one.reason.rule] += len(one.rows)
        self.rows += header.n
        self.messages += 1
        return self._encoded(header, ticket, partition)

    def _drop(self, dropped: list[DroppedRows]) -> None:
        for one in dropped:
            if isinstance(one.source, _Ticket):
                one.source.dropped.append(one)
                one.source.count(len(one.rows))

    def _encoded(self, header: BatchHeader, ticket: _Ticket, partition: int) -> list[OutputMessage]:
        at_ms = round(self._clock.now().timestamp() * 1000)
        found = []
        pieces: Counter[str] = Counter()
        for scored in sorted(ticket.scored, key=lambda one: (one.ref.model, int(one.rows[0]) if len(one.rows) else 0)):
            if not len(scored.rows):
                continue
            model = scored.ref.model
            # Without the version: features that come again after a swap must not be decided a second time.
            identity = f"{self._pipeline}/{partition}/{header.seq}/{model}/{pieces[model]}"
            pieces[model] += 1
            message = encode_outputs(
                replace(scored, source=ticket.origin),
                at_ms=at_ms,
                source=source_number(f"{self._pipeline}/{partition}/think/{model}"),
                seq=header.seq,
                priority=header.priority,
            )
            found.append(OutputMessage(identity, message))
        return found


# Which models does a worker serve, and what is wanted of them now? The stage, its queue, and what people ask for.


class WorkerModels:
    """The stage with its service, and what is wanted of it."""

    def __init__(self, shell: Shell, *, again: str = "") -> None:
        config = shell.config
        if config.think is None:
            raise HarchError("E0750", "a THINK worker has no models", hint="have the hub write its configuration")
        self._shell = shell
        self.gate = ResidencyGate(config.site.hub, config.policy)
        self.policies = Policies(config.policy)
        self.stage = ThinkStage(
            config.think,
            site=config.site,
            tag_of=lambda model, version: tag_of(config, model, version),
            folder=Path(config.model_folder),
            on_change=self._on_change,
        )
        self.thinker = FeatureScorer(config.pipeline, feature_schema(config.sense), self.gate, shell.clock, again=again)
        self.service = ThinkRunner(self.stage, shell.clock, self.thinker.handed_over)
        self.thinker.use(self.service)
        self.revision = 0
        self.trouble = ""
        self._loop: asyncio.AbstractEventLoop | None = None

    async def load(self) -> None:
        """What is declared, then what was wanted since. Raises E0907, E0502 and others of the stage."""
        self._loop = asyncio.get_running_loop()
        await asyncio.to_thread(self.stage.load)
        await self.look()

    async def look(self) -> None:
        entry = await self._shell.state.get(MODELS_KEY)
        if entry is not None:
            wanted = msgspec.json.decode(entry.value, type=WantedModels)
            if wanted.revision > self.revision:
                await self._carry_out(wanted)
        for table in await self.policies.look(self._shell.state):
            self.gate.learn(table)

    async def _carry_out(self, wanted: WantedModels) -> None:
        """Loads beside the traffic. What cannot be loaded changes nothing, and is reported."""
        self.trouble = ""
        for settings in wanted.models:
            if settings.name in self.stage.models:
                self.stage.model(settings.name).learn_rules(settings)
        for name, versions in wanted.versions.items():
            try:
                model = self.stage.model(name)
                by_name = {one.version: one for one in versions}
                for step in plan_models(versions, dict(model.rollout.states)):
                    if step.verb == "load":
                        await asyncio.to_thread(self.stage.load_version, name, by_name[step.version])
                    elif step.verb == "promote" and step.to is not None:
                        model.promote(step.version, step.to, reason=f"requested, revision {wanted.revision}")
                    else:
                        model.retire(step.version, reason=f"not requested, revision {wanted.revision}")
            except HarchError as error:
                self.trouble = f"model {name}: {error.message}"
                self._shell.alert("model", self.trouble)
        self.revision = wanted.revision

    def _on_change(self, model: str, change: RolloutChange) -> None:
        """Called by whichever thread scores or loads; the connection belongs to the loop."""
        log.info("model %s@%s is %s: %s", model, change.version, change.after, change.reason)
        if change.by_itself and self._loop is not None:
            detail = f"{model}@{change.version} is {change.after}: {change.reason}"
            self._loop.call_soon_threadsafe(self._shell.alert, "rollback", detail)

    def report(self) -> StageReport:
        counters = {"rows": self.thinker.rows, "messages": self.thinker.messages}
        counters |= {f"rows_dropped_{rule}": count for rule, count in self.thinker.dropped.items()}
        details = {"models_revision": str(self.revision)}
        for name, model in self.stage.models.items():
            for state, record in model.records():
                details[f"model.{name}@{record.ref.version}"] = str(state)
                if state is VersionState.CANARY:
                    counters |= canary_counters(f"{name}@{record.ref.version}", record.watch.in_role)
        waiting = sum(self.stage.waiting(name) for name in self.stage.models)
        return StageReport(
            counters=counters,
            gauges={"rows_waiting": float(waiting)},
            done=float(self.thinker.rows),
            drained=float(self.thinker.messages),
            details=details,
            trouble=self.trouble,
        )


def canary_counters(version: str, done: VersionCounters) -> dict[str, int]:
    """What a canary did since it is one; `promotion` of the hub adds it up over all workers."""
    return {
        f"canary.{version}.rows": done.rows,
        f"canary.{version}.bad": done.rows_bad,
        f"canary.{version}.compared": done.rows_compared,
        f"canary.{version}.disagreed": done.rows_disagreed,
    }


def tag_of(config: WorkerConfig, model: ModelSettings, version: VersionSettings) -> Tag | None:
    """The tag of a version, else of its model; None, which permits nothing, if nobody has said."""
    found = config.model_tags.get(f"{model.name}@{version.version}")
    return found or config.model_tags.get(model.name)


# How does a THINK worker run? Features in, outputs into ACT's stream, and only then is a message acknowledged.
#
# Models change between batches: what is wanted stands in the state bucket, and each worker carries it out by itself,
# also
# after it was started again.


HOT_MAX = 1024  # messages of the hot lane that wait; beyond it the oldest goes, and is counted
RETRY_S_FIRST, RETRY_S_MAX = 0.05, 2.0
KEEP_ALIVE_S = 1.5

log = logging.getLogger(__name__)


class ThinkWorker:
    """The split stage: a process of its own between SENSE's stream and ACT's."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        self._config = shell.config
        self._models = WorkerModels(shell)
        self._stopping = asyncio.Event()
        self._ready = False
        self._latency = Latency()
        self._dead = self._redelivered = self._repeated = self._retries = self._hot_lost = 0
        self._answered = Answered()
        self._lag = 0
        self._endpoint = ""
        self._hot: deque[Message] = deque(maxlen=HOT_MAX)
        self._hot_news = asyncio.Event()
        self._puller: Puller | None = None

    async def run(self) -> None:
        await self._models.load()
        service = asyncio.create_task(self._models.service.run(), name="think-service")
        helpers = [asyncio.create_task(self._measure_lag(), name="lag")]
        if self._config.thinking.endpoint:
            helpers.append(asyncio.create_task(self._serve(), name="endpoint"))
        self._ready = True
        try:
            work = self._work_hot() if self._config.lane == "hot" else self._work()
            working = asyncio.create_task(work, name="think")
            await asyncio.wait((working, service), return_when=asyncio.FIRST_COMPLETED)
            await working if working.done() else await service
        finally:
            for task in helpers:
                task.cancel()
            self._models.service.stop()
            await asyncio.gather(*helpers, service, return_exceptions=True)

    def stop(self) -> None:
        self._stopping.set()
        self._hot_news.set()

    async def look(self) -> None:
        if self._ready:
            await self._models.look()

    def report(self) -> StageReport:
        report = self._models.report()
        report.counters |= {
            "messages_dead": self._dead,
            "messages_redelivered": self._redelivered,
            "messages_repeated": self._repeated,
            "publish_retries": self._retries,
            "hot_lost": self._hot_lost,
        }
        report.lag = float(self._lag)
        report.latency_ms = self._latency.summary()
        report.latency_counts = tuple(self._latency.histogram.counts)
        report.endpoints = {"inference": self._endpoint} if self._endpoint else {}
        report.trouble = report.trouble or ("" if self._ready else "loading its models")
        return report

    async def _work(self) -> None:
        shell = self._shell
        puller = Puller(shell.client, shell.names.features_stream, THINK_CONSUMER, shell.clock)
        self._puller = puller
        await handle_all(puller, self._handle, self._stopping)

    async def _work_hot(self) -> None:
        """Core messages, spread over all THINK workers. They are not stored: what finds no room is counted."""
        shell = self._shell
        sid = shell.client.subscribe(shell.names.features("*"), self._hot_arrived, queue="think")
        try:
            while not self._stopping.is_set() or self._hot:
                if not self._hot:
                    await self._hot_news.wait()
                    self._hot_news.clear()
                    continue
                await self._handle(self._hot.popleft())
        finally:
            shell.client.unsubscribe(sid)

    def _hot_arrived(self, message: Message) -> None:
        self._hot_lost += len(self._hot) == HOT_MAX
        self._hot.append(message.kept())
        self._hot_news.set()

    async def _handle(self, message: Message) -> None:
        began_s = self._shell.clock.monotonic_s()
        if deliveries(message) > 1:
            self._redelivered += 1
        partition, spans = _partition_of(message.subject), self._shell.spans
        followed = spans.trace_in(message.payload) if spans is not None else None
        began_ns = spans.now_ns() if spans is not None and followed is not None else 0
        alive = asyncio.create_task(self._keep_alive(message)) if message.reply else None
        try:
            if deliveries(message) > self._config.thinking.deliveries_max:
                await self._bury(message, partition, f"{deliveries(message)} deliveries")
                return
            if self._answered.has(message):
                self._repeated += 1
                acknowledge(self._shell.client, message)
                return
            outputs = await self._outputs(message, partition)
            if isinstance(outputs, Rejection):
                await self._bury(message, partition, f"{outputs.rule}: {outputs.detail}")
                return
            await publish_outputs(self._shell, partition, outputs, self._count_retry)
            if spans is not None and followed is not None:
                spans.thought(partition, followed, began_ns, message.payload, [one.message for one in outputs])
            self._answered.add(message)
            if message.reply:
                acknowledge(self._shell.client, message)
        except NatsError as error:
            log.warning("redelivering features of partition %d: %s", partition, error)
            return
        finally:
            if alive is not None:
                alive.cancel()
        self._latency.add((self._shell.clock.monotonic_s() - began_s) * 1000)

    async def _outputs(self, message: Message, partition: int) -> list[OutputMessage] | Rejection:
        pause_s = RETRY_S_FIRST
        while True:
            try:
                return await self._models.thinker.outputs(message.payload, partition)
            except Busy:
                await self._shell.clock.sleep(pause_s)
                pause_s = min(RETRY_S_MAX, 2 * pause_s)

    async def _bury(self, message: Message, partition: int, why: str) -> None:
        """Into the dead lane of the same jurisdiction, then never again."""
        self._dead += 1
        self._shell.alert("dead", f"features of partition {partition}: {why}")
        await self._shell.client.publish_stored(self._shell.names.dead(partition), message.payload)
        if message.reply:
            give_up(self._shell.client, message)

    async def _keep_alive(self, message: Message) -> None:
        while True:
            await self._shell.clock.sleep(KEEP_ALIVE_S)
            with contextlib.suppress(NatsError):
                still_working(self._shell.client, message)

    def _count_retry(self) -> None:
        self._retries += 1

    async def _measure_lag(self) -> None:
        while self._config.lane == "durable":
            await self._shell.clock.sleep(self._config.status_every_s)
            if self._puller is not None:
                with contextlib.suppress(NatsError):
                    self._lag = await self._puller.pending()

    async def _serve(self) -> None:
        options = self._config.thinking
        app = keyed(inference_app(self._models.service), options.endpoint_key_sha256)
        async with serve(app, options.endpoint_port) as address:
            self._endpoint = address
            await asyncio.get_running_loop().create_future()


async def publish_outputs(
    shell: Shell, partition: int, outputs: list[OutputMessage], retried: Callable[[], None]
) -> None:
    """Returns when ACT's stream, or that of results, has all of them. A full or absent stream is waited for: outputs
    are never shed."""
    await asyncio.gather(*(_publish(shell, partition, output, retried) for output in outputs))


async def _publish(shell: Shell, partition: int, output: OutputMessage, retried: Callable[[], None]) -> None:
    pause_s = RETRY_S_FIRST
    while True:
        try:
            await shell.act_client.publish_stored(
                shell.names.into(shell.config.into, partition),
                output.message,
                msg_id=f"{shell.config.state_version}/{output.identity}",
            )
            return
        except NatsError as error:
            log.warning("outputs of partition %d delayed: %s", partition, error)
            retried()
        await shell.clock.sleep(pause_s)
        pause_s = min(RETRY_S_MAX, 2 * pause_s)


def _partition_of(subject: str) -> int:
    last = subject.rpartition(".")[2]
    return int(last) if last.isdigit() else 0
