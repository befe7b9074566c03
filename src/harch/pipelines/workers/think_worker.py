"""How does a THINK worker run? Features in, outputs into ACT's stream, and only then is a message acknowledged.

Models change between batches: what is wanted stands in the state bucket, and each worker carries it out by itself, also
after it was started again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable

from harch.base.rejection import Rejection
from harch.pipelines.client.errors import NatsError
from harch.pipelines.client.protocol import Message
from harch.pipelines.think.endpoint import inference_app
from harch.pipelines.workers.answered import Answered
from harch.pipelines.workers.models import Models
from harch.pipelines.workers.names import THINK_CONSUMER
from harch.pipelines.workers.puller import Puller, acknowledge, deliveries, give_up, handle_all, still_working
from harch.pipelines.workers.shell import Report, Shell
from harch.pipelines.workers.status import Latency
from harch.pipelines.workers.thinker import Busy, OutputMessage
from harch.pipelines.workers.web import keyed, serve

HOT_MAX = 1024  # messages of the hot lane that wait; beyond it the oldest goes, and is counted
RETRY_S_FIRST, RETRY_S_MAX = 0.05, 2.0
KEEP_ALIVE_S = 1.5

log = logging.getLogger(__name__)


class ThinkWorker:
    """The split stage: a process of its own between SENSE's stream and ACT's."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        self._config = shell.config
        self._models = Models(shell)
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

    def report(self) -> Report:
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
        report.trouble = report.trouble or ("" if self._ready else "loads its models")
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
            log.warning("features of partition %d come again: %s", partition, error)
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
            log.warning("outputs of partition %d wait: %s", partition, error)
            retried()
        await shell.clock.sleep(pause_s)
        pause_s = min(RETRY_S_MAX, 2 * pause_s)


def _partition_of(subject: str) -> int:
    last = subject.rpartition(".")[2]
    return int(last) if last.isdigit() else 0
