"""How does a source worker run? The ways in of a pipeline, each with its spool and its lines to the partitions."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from pathlib import Path

from harch.base.rejection import Rejection
from harch.pipelines.act.sinks.base import variable
from harch.pipelines.client.errors import NatsError
from harch.pipelines.client.protocol import Message
from harch.pipelines.sense.devices import DeviceTable
from harch.pipelines.sense.edge import EdgeBatcher, Permit, source_number
from harch.pipelines.sense.flow_control import unpack_credit
from harch.pipelines.sense.inputs.batches import NatsInput, TcpInput
from harch.pipelines.sense.inputs.file import FileInput
from harch.pipelines.sense.inputs.http import HttpInput
from harch.pipelines.sense.inputs.mqtt import MqttInput
from harch.pipelines.sense.settings import NS_PER_S, FileSource, HttpSource, MqttSource, NatsSource, Source, TcpSource
from harch.pipelines.wire.rows import RowReader
from harch.pipelines.workers.outflow import Outflow, SpoolIntake
from harch.pipelines.workers.shared_state import DeviceNews
from harch.pipelines.workers.shell import Shell, StageReport, serve
from harch.pipelines.workers.source_storage import SourceHistory, SourceSpool

SEND_POLL_S = 0.02
TIDY_S = 1.0
DRAIN_S = 20.0
NAMES_WAIT_S = 2.0  # SENSE looks more often than this, and must know a device before its first event comes

log = logging.getLogger(__name__)


class _Way:
    """One source of the pipeline, as this worker runs it."""

    def __init__(self, source: Source, outflow: Outflow, spool: SourceSpool, history: SourceHistory | None) -> None:
        self.source = source
        self.outflow = outflow
        self.spool = spool
        self.history = history
        self.address = ""


class SourceWorker:
    """This worker's share of the pipeline's sources."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        self._config = shell.config
        self._settings = shell.config.sense
        self._permit = Permit(shell.config.juris_mask, shell.config.policy.version)
        number, count = shell.config.share
        self._ways = [self._way(source) for source in self._settings.sources[number::count]]
        self._devices = DeviceNews(shell.config.sense.devices)
        self._tables: list[DeviceTable] = []
        self._named_s: float | None = None  # when devices came that are not used yet
        self._stopping = asyncio.Event()
        self._ready = False
        self._send_failures = 0
        self._alerted: dict[str, int] = {}  # counts by rule that an alert has reported

    async def run(self) -> None:
        sid = self._shell.client.subscribe(self._shell.names.credit("*"), self._credited)
        senders = [asyncio.create_task(self._send(way), name=f"send-{way.source.name}") for way in self._ways]
        readers = [asyncio.create_task(self._read(way), name=f"read-{way.source.name}") for way in self._ways]
        tidier = asyncio.create_task(self._tidy(), name="tidy")
        stopping = asyncio.create_task(self._stopping.wait(), name="stop")
        self._ready = True
        try:
            watched = {stopping, tidier, *senders, *readers}
            while not stopping.done():
                done, _ = await asyncio.wait(watched, return_when=asyncio.FIRST_COMPLETED)
                for task in done - {stopping}:
                    await task  # raises what ended it; a file that was read to its end just ends
                watched -= done - {stopping}
            for reader in readers:
                reader.cancel()
            await asyncio.gather(*readers, return_exceptions=True)
            await self._drain()
        finally:
            rest = [*senders, *readers, tidier, stopping]
            for task in rest:
                task.cancel()
            await asyncio.gather(*rest, return_exceptions=True)
            self._shell.client.unsubscribe(sid)
            for way in self._ways:
                way.spool.close()
                if way.history is not None:
                    way.history.close()

    def stop(self) -> None:
        self._stopping.set()

    async def look(self) -> None:
        """An operator may have added devices. A new numbering of hubs concerns SENSE, which knows the old one too."""
        now_s = self._shell.clock.monotonic_s()
        if await self._devices.look(self._shell.state):
            self._named_s = now_s
        if self._named_s is not None and now_s - self._named_s >= NAMES_WAIT_S:
            self._named_s = None
            for table in self._tables:
                for name in self._devices.devices:
                    table.add(name)

    def report(self) -> StageReport:
        counters: dict[str, int] = {}
        buffered = 0
        for way in self._ways:
            for name, count in way.outflow.totals().items():
                counters[name] = counters.get(name, 0) + count
            for reason, count in way.outflow.quarantine.counts.items():
                counters[f"aside_{reason}"] = counters.get(f"aside_{reason}", 0) + count
            buffered += way.outflow.buffered_bytes
        self._alert_growth("shed", counters.get("events_shed", 0), "events were shed: no credit and no room")
        self._alert_growth(
            "forgotten", counters.get("batches_forgotten", 0), "confirmed batches are missing in SENSE's state"
        )
        self._alert_growth(
            "unauthorised", counters.get("aside_unauthorised", 0), "senders did not present a source's key"
        )
        return StageReport(
            counters={**counters, "send_failures": self._send_failures},
            gauges={"buffered_bytes": float(buffered)},
            lag=float(buffered),
            done=float(counters.get("events_accepted", 0)),
            endpoints={way.source.name: way.address for way in self._ways if way.address},
            trouble="" if self._ready else "opening its sources",
        )

    def _alert_growth(self, rule: str, count: int, what: str) -> None:
        if (grown := count - self._alerted.get(rule, 0)) > 0:
            self._shell.alert(rule, f"{grown} {what}", grown)
            self._alerted[rule] = count

    def _way(self, source: Source) -> _Way:
        options = self._config.source
        spool = SourceSpool(self._shell.folder / f"{source.name}.db", synced=options.synced)
        history = self._history(source, spool)
        outflow = Outflow(
            spool,
            self._settings.event_schema,
            self._permit,
            partitions=self._settings.partitions,
            bytes_max=options.buffer_bytes_max // max(1, len(self._settings.sources)),
            can_wait=isinstance(source, HttpSource | TcpSource | FileSource),
            keep=None if history is None else lambda some: history.append(self._shell.now_ms(), some),
        )
        return _Way(source, outflow, spool, history)

    def _history(self, source: Source, spool: SourceSpool) -> SourceHistory | None:
        options, folder = self._config.source, self._config.kept_folder
        if not folder or not options.kept_s:
            return None
        return SourceHistory(
            Path(folder) / source.name,
            age_s_max=options.kept_s,
            bytes_max=options.kept_bytes_max // len(self._settings.sources),
            accepted=spool.senders(),
            now_ms=self._shell.now_ms(),
        )

    # In

    async def _read(self, way: _Way) -> None:
        source, settings = way.source, self._settings
        intake = SpoolIntake(way.outflow, self._shell.clock)
        if isinstance(source, TcpSource):
            tcp = TcpInput(
                intake,
                key_sha256=self._key_sha256(source),
                port=source.port,
                connections_max=source.connections_max,
            )
            tcp.address.add_done_callback(lambda found: setattr(way, "address", "tcp://{}:{}".format(*found.result())))
            await tcp.run()
            return
        if isinstance(source, NatsSource):
            await NatsInput(self._shell.client, source.subject, intake).run()
            return
        name = self._name_of(source)
        accepted = way.outflow.last_seq(source_number(name))
        edge = EdgeBatcher(
            name,
            settings,
            self._permit,
            disorder_s=source.disorder_s,
            priority=source.priority,
            seq=0 if isinstance(source, FileSource) else accepted,
        )
        names = DeviceTable(self._devices.devices, settings.devices_max, settings.metrics)
        self._tables.append(names)
        reader = RowReader(settings.event_schema, names, source.rows)
        clock, schema = self._shell.clock, settings.event_schema
        if isinstance(source, FileSource):
            await FileInput(source, schema, edge, reader, intake, clock, after={edge.source: accepted}).run()
        elif isinstance(source, MqttSource):
            password = variable(source.password_secret) if source.password_secret else None
            guard = self._shell.guard(f"source {source.name}", self._config.egress.source(source.name))
            await MqttInput(source, schema, edge, reader, intake, clock, guard=guard, password=password).run()
        else:
            await self._serve(way, source, edge, reader, intake)

    async def _serve(
        self, way: _Way, source: HttpSource, edge: EdgeBatcher, reader: RowReader, intake: SpoolIntake
    ) -> None:
        app = HttpInput(
            edge,
            reader,
            source.rows,
            intake,
            self._shell.clock,
            body_bytes_max=source.body_bytes_max,
            key_sha256=self._key_sha256(source),
        )
        async with serve(app, source.port) as address:
            way.address = address
            await asyncio.get_running_loop().create_future()

    def _key_sha256(self, source: Source) -> str:
        """Empty where the hub gave none: then no key is right, and the source takes nothing."""
        return self._config.source.keys_sha256.get(source.name, "")

    # Out

    async def _send(self, way: _Way) -> None:
        client, names, clock = self._shell.client, self._shell.names, self._shell.clock
        while True:
            try:
                self._follow_clock(way)
                for partition, message in way.outflow.due(clock.monotonic_s(), idle_s=self._silent_s(way.source)):
                    client.publish(names.events(partition), message)
                await client.drain()
            except NatsError:
                self._send_failures += 1  # SENSE finds the hole and asks again
            try:
                async with asyncio.timeout(SEND_POLL_S):
                    await way.outflow.news.wait()
            except TimeoutError:
                pass
            way.outflow.news.clear()

    def _follow_clock(self, way: _Way) -> None:
        """Who posts or publishes as things happen, and is silent, has nothing old to say: its last windows close."""
        if not isinstance(way.source, HttpSource | MqttSource):
            return
        source, idle_s = source_number(self._name_of(way.source)), self._settings.source_idle_s
        quiet_s = self._shell.clock.monotonic_s() - way.outflow.last_message_s(source)
        if idle_s < quiet_s < self._silent_s(way.source):
            now_ns = round(self._shell.clock.now().timestamp() * NS_PER_S)
            way.outflow.advance(source, now_ns - round((idle_s + way.source.disorder_s) * NS_PER_S))

    def _silent_s(self, source: Source) -> float:
        """After this much silence a source says nothing more, not even how late it is. One that follows the clock goes
        on until its last window has closed."""
        idle_s, windows = self._settings.source_idle_s, self._settings.windows
        if not isinstance(source, HttpSource | MqttSource):
            return idle_s
        return 2 * idle_s + source.disorder_s + windows.size_s + windows.lateness_s

    def _name_of(self, source: Source) -> str:
        """Sources of two hubs are two sources, whatever they are called."""
        return f"{self._config.site.hub}/{source.name}"

    def _credited(self, message: Message) -> None:
        credit = unpack_credit(message.payload)
        last = message.subject.rpartition(".")[2]
        if isinstance(credit, Rejection) or not last.isdigit():
            return
        for way in self._ways:
            way.outflow.credit(int(last), credit)

    async def _tidy(self) -> None:
        while True:
            await self._shell.clock.sleep(TIDY_S)
            for way in self._ways:
                way.spool.tidy()
                if way.history is not None:
                    with contextlib.suppress(OSError):  # tried again with the next look
                        way.history.tidy(self._shell.now_ms())

    async def _drain(self) -> None:
        """Until SENSE has all of it in checkpoints; what is left is in the spool, for the next start."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_S):
                while not self._shell.is_orphan and not all(way.outflow.is_drained for way in self._ways):
                    await self._shell.clock.sleep(SEND_POLL_S)
