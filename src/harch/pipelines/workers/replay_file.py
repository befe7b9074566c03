"""How does a file of rows become batches of a replay? As a source of the pipeline would read it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from harch.base.errors import HarchError
from harch.pipelines.sense.devices import DeviceTable
from harch.pipelines.sense.edge import Edge, Permit
from harch.pipelines.sense.inputs.file import FileInput
from harch.pipelines.sense.intake import Intake
from harch.pipelines.sense.quarantine import Quarantine
from harch.pipelines.sense.settings import SenseSettings
from harch.pipelines.sense.source_settings import FileSource, HttpSource, MqttSource
from harch.pipelines.wire.rows import RowFormat, RowReader
from harch.pipelines.workers.replay_order import ReplayOrder
from harch.pipelines.workers.shell import Shell

WAITING_MAX = 64  # batches


async def batches_of_file(shell: Shell, order: ReplayOrder) -> AsyncIterator[bytes]:
    """Batches in the order of the file; its last one says that it ends. Raises E0202 for what is no such file."""
    settings, config = shell.config.sense, shell.config
    rows, disorder_s = _form(settings, order.source)
    source = FileSource(
        name="replay",
        path=order.file,
        format="csv" if order.file.endswith(".csv") else "ndjson",
        rows=rows,
        disorder_s=disorder_s,
    )
    permit = Permit(config.juris_mask, config.policy.version)
    edge = Edge(f"replay/{order.run}", settings, permit, disorder_s=disorder_s, priority=source.priority)
    names = DeviceTable(settings.devices, settings.devices_max, settings.metrics)
    reader = RowReader(settings.event_schema, names, rows)
    handed = _Handed(Quarantine(settings.limits.quarantine_kept))
    file = FileInput(source, settings.event_schema, edge, reader, handed, shell.clock)
    reading = asyncio.create_task(handed.read(file), name="file")
    try:
        while (message := await handed.waiting.get()) is not None:
            yield message
        await reading  # raises what ended it
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


class _Handed(Intake):
    """Hands batches on one by one; None comes last."""

    def __init__(self, quarantine: Quarantine) -> None:
        super().__init__(bytes_max=1, quarantine=quarantine)
        self.waiting: asyncio.Queue[bytes | None] = asyncio.Queue(WAITING_MAX)

    async def put(self, message: bytes) -> None:
        await self.waiting.put(message)

    async def read(self, file: FileInput) -> None:
        try:
            await file.run()
        finally:
            await self.waiting.put(None)


def _form(settings: SenseSettings, wanted: str) -> tuple[RowFormat, float]:
    """How rows are written, as one of the pipeline's sources has it. Raises E0201."""
    having = {
        source.name: (source.rows, source.disorder_s)
        for source in settings.sources
        if isinstance(source, HttpSource | MqttSource | FileSource)
    }
    if wanted and wanted not in having:
        raise HarchError("E0201", f"no source `{wanted}` takes rows", hint=f"those do: {', '.join(having) or 'none'}")
    return having[wanted] if wanted else next(iter(having.values()), (RowFormat(), 0.0))
