"""What do the pipeline benchmarks run on? A whole pipeline of real processes, with names for what they measure."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
from msgspec import Struct, structs

from harch.pipelines.act.settings import ActionSettings, ActSettings, HttpSink
from harch.pipelines.client.options import ClientOptions
from harch.pipelines.engine.layout import ServerLimits
from harch.pipelines.listener_keys import key_digest
from harch.pipelines.sense.gate import PolicyTable
from harch.pipelines.sense.settings import CheckpointSettings, SenseLimits, SenseSettings, Source, WindowSettings
from harch.pipelines.think.settings import BatchingSettings, ModelSettings, ThinkSettings
from harch.pipelines.workers.config import SourceOptions, WorkerStage
from harch.pipelines.workers.deployment import LaneSizes
from harch.pipelines.workers.parts import PipelineParts
from harch.sovereignty.geography import LegalSite
from harch.testing.local_pipeline import LocalPipeline
from pipelines_generator import Phase, Timetable, Told
from pipelines_mlp import ANYWHERE_IN_MOROCCO, write_version

MIB = 1 << 20
KEY = secrets.token_urlsafe(24)  # of every source that listens
HERE = Path(__file__).parent
DEVICES, METRICS = 256, 2
STATISTICS = ("count", "mean", "min", "max")  # of two metrics: the eight inputs of the model
LIMITS = ServerLimits(file_bytes_max=6 << 30)
SIZES = LaneSizes(features_bytes=512 * MIB, outputs_bytes=1024 * MIB, state_bytes=256 * MIB, ledger_bytes=256 * MIB)


def parts_of(
    folder: Path,
    *,
    window_s: float,
    skew_s: float = 0.5,
    workers: dict[WorkerStage, int],
    schema: str = "compact",
    sources: tuple[Source, ...] = (),
    sink_url: str = "http://127.0.0.1:9/never",
    when: str = "y > 1000000000.0",
) -> PipelineParts:
    """Readings of 256 devices in; per window one inference of 256 rows by 8 features; outputs to ACT."""
    return PipelineParts(
        name="bench",
        country="MA",
        site=LegalSite(hub="dakhla", country="MA"),
        policy=PolicyTable(1, {"dakhla": 0, "dakar": 1}),
        juris_mask=1,
        sense=SenseSettings(
            sources=sources,
            schema=schema,
            devices=tuple(f"device-{number}" for number in range(DEVICES)),
            devices_max=DEVICES,
            metrics=tuple(f"m{number}" for number in range(METRICS)),
            statistics=STATISTICS,  # type: ignore[arg-type]
            windows=WindowSettings(size_s=window_s, lateness_s=0.0, skew_s=skew_s, future_s=min(0.1, skew_s)),
            limits=SenseLimits(ahead_bytes_max=256 * MIB),
            checkpoint=CheckpointSettings(every_s=0.5),
        ),
        think=ThinkSettings(
            models=(
                ModelSettings(
                    name="mlp",
                    inputs=tuple(f"m{metric}.{name}" for metric in range(METRICS) for name in STATISTICS),
                    outputs=("y",),
                    versions=(write_version(folder, "1", 1),),
                    batching=BatchingSettings(preferred_rows=(DEVICES,)),
                ),
            )
        ),
        act=ActSettings(
            sinks={"valves": HttpSink(url=sink_url, honours_key=True, timeout_s=10)},
            actions=(ActionSettings(name="turn", when=when, ttl_s=120, sink="valves", args={"y": "{y}"}),),
        ),
        workers=workers,
        model_folder=str(folder),
        model_tags={"mlp": ANYWHERE_IN_MOROCCO},
        lane="hot",
        sizes=SIZES,
        source=SourceOptions(keys_sha256={source.name: key_digest(KEY) for source in sources}),
    )


class Load(Struct, frozen=True):
    """What processes used of the machine in one round: CPU seconds, and seconds in which they waited for a core."""

    cpu_s: dict[str, float]
    queued_s: dict[str, float]

    def since(self, before: Load) -> Load:
        return Load(
            {name: used - before.cpu_s.get(name, 0.0) for name, used in self.cpu_s.items()},
            {name: used - before.queued_s.get(name, 0.0) for name, used in self.queued_s.items()},
        )

    def __str__(self) -> str:
        return ", ".join(f"{name} {used:.2f}+{self.queued_s[name]:.2f}" for name, used in self.cpu_s.items())


class BenchPipeline:
    """The pipeline with its processes by name."""

    def __init__(self, pipeline: LocalPipeline, folder: Path) -> None:
        self.pipeline = pipeline
        self.folder = folder

    def pids(self) -> dict[str, int]:
        engine = self.pipeline.engine
        found = {"nats": engine.main.pid, "nats-act": engine.act.pid}
        found |= {name: worker.pid for name, worker in self.pipeline.workers.items()}
        return {name: pid for name, pid in found.items() if pid is not None}

    def load(self) -> Load:
        """From /proc/PID/task/*/schedstat: time on a core, and time on a run queue, of all threads."""
        cpu, queued = {}, {}
        for name, pid in self.pids().items():
            cpu[name], queued[name] = schedstat(pid)
        return Load(cpu, queued)

    async def counters(self, stage: WorkerStage) -> dict[str, int]:
        """What the one worker of a stage says from now on: its next status is waited for."""
        since_ms = time.time_ns() // 1_000_000
        while True:
            pids = set(self.pids().values())
            for one in await self.pipeline.statuses():
                if one.stage == stage and one.pid in pids and one.at_ms > since_ms:
                    return one.counters
            await asyncio.sleep(0.1)

    async def endpoint(self, stage: WorkerStage, name: str) -> str:
        """An address that a worker serves, once it does."""
        while True:
            for one in await self.pipeline.statuses():
                if one.stage == stage and one.endpoints.get(name):
                    return one.endpoints[name]
            await asyncio.sleep(0.1)

    def controller_options(self, name: str) -> ClientOptions:
        """Of the engine of ACT."""
        return structs.replace(self.pipeline.engine.act_admin.client.options, name=name)

    def source_options(self, name: str) -> ClientOptions:
        return self.pipeline.engine.access("source")[0].options(name)

    def timetable(self, phases: list[Phase], batch: int, **more: object) -> Timetable:
        names = self.pipeline.parts.names
        return Timetable(
            options=self.source_options("generator"),
            subject=names.events(0),
            credit_subject=names.credit(0),
            phases=phases,
            batch=batch,
            devices=DEVICES,
            metrics=METRICS,
            schema=str(self.pipeline.parts.sense.schema),
            source=secrets.randbits(24) + 1,
            whole_ns=round(self.pipeline.parts.sense.windows.size_s * 1e9),
            **more,  # type: ignore[arg-type]
        )

    async def generate(self, table: Timetable) -> Told:
        """Runs one generator to its end."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(HERE / "pipelines_generator.py"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        answer, _ = await process.communicate(msgspec.json.encode(table))
        if process.returncode:
            raise SystemExit("the generator failed")
        return msgspec.json.decode(answer, type=Told)


def queue_share(load: Load) -> float:
    """Of the time in which the processes wanted to run, how much they waited for a core."""
    cpu, queued = sum(load.cpu_s.values()), sum(load.queued_s.values())
    return queued / max(1e-9, cpu + queued)


def schedstat(pid: int) -> tuple[float, float]:
    cpu_ns = queued_ns = 0
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError, ValueError):
                on_core, waiting, _ = (task / "schedstat").read_text().split()
                cpu_ns, queued_ns = cpu_ns + int(on_core), queued_ns + int(waiting)
    return cpu_ns / 1e9, queued_ns / 1e9


@contextlib.asynccontextmanager
async def pipeline(**wanted: object) -> AsyncIterator[BenchPipeline]:
    """Started, ready, and gone at the end with all that it kept."""
    with TemporaryDirectory(prefix="harch-bench-") as name:
        folder = Path(name)
        change = wanted.pop("change", {})
        parts = structs.replace(parts_of(folder, **wanted), **change)  # type: ignore[arg-type]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *sys.path])}
        made = LocalPipeline(parts, folder / "pipeline", limits=LIMITS, environment=environment)
        try:
            await made.start()
            await made.ready()
            yield BenchPipeline(made, folder)
        finally:
            await made.stop(drain=False)
