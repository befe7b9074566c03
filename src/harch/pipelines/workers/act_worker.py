"""How does an ACT worker run? Outputs in, commands into the ledger, and only then is a message acknowledged."""

from __future__ import annotations

import asyncio
import contextlib
import logging

from harch.base.errors import HarchError
from harch.base.rejection import Rejection
from harch.pipelines.client.errors import NatsError
from harch.pipelines.client.protocol import Message
from harch.pipelines.workers.actor import Actor, NotYet
from harch.pipelines.workers.answered import Answered
from harch.pipelines.workers.names import ACT_CONSUMER
from harch.pipelines.workers.policies import Policies
from harch.pipelines.workers.puller import Puller, acknowledge, deliveries, give_up, handle_all, still_working
from harch.pipelines.workers.shell import Report, Shell
from harch.pipelines.workers.status import Latency

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
        self._actor = Actor(shell, self._policies)
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

    def report(self) -> Report:
        report = Report(
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
            trouble="" if self._ready else "opens its ledger",
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
            log.warning("outputs come again: %s", error)
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
                log.info("outputs wait: %s", error)
            except HarchError as error:
                if error.code not in ("E0775", "E0777"):
                    return Rejection("outputs", error.code, error.message)
                log.warning("outputs wait: %s", error.message)
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
