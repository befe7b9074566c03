"""How do a hub's own lines, and those of its pipelines' workers, reach its SENTINEL? And those of SENTINEL itself?"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from harch.base.clock import SystemClock
from harch.base.errors import HarchError
from harch.base.tracing.exporter import HttpPost
from harch.base.tracing.logs import TraceFilter
from harch.sentinel.model.labels import Labels, labels

if TYPE_CHECKING:
    from harch.api.telemetry.log_writes import LogWrites
    from harch.sentinel.own_logs.following import Following, Source
    from harch.sentinel.own_logs.shipper import Post, Shipper

FOLDER = "own-logs"
WorkerLogs = Callable[[], Iterable[tuple[str, str, Path]]]  # pipeline, tenant, file


def ship_hub_logs(state_dir: Path, hub_id: str, url: str, token: Callable[[], str], worker_logs: WorkerLogs) -> Shipper:
    """Starts it; `close` ends it. `url` is where the hub's SENTINEL listens."""
    from harch.sentinel.own_logs.following import Following
    from harch.sentinel.own_logs.shipper import PATH

    folder = state_dir / FOLDER
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    following = Following(folder / "told.json", lambda: _worker_sources(worker_logs(), hub_id))
    stream = labels({"job": "harchos-hub", "hub": hub_id})
    return _started(folder, stream, HttpPost(url, token, path=PATH), following)


def keep_sentinel_logs(data: Path, writes: LogWrites, own: Labels) -> Shipper:
    """SENTINEL's lines go the same way, without a network in between. `own` are labels of this SENTINEL."""

    def post(body: bytes, tenant: str) -> int:
        try:
            writes.keep_own(body, tenant)
        except HarchError as problem:
            return problem.kind.status
        return 204

    return _started(data / FOLDER, labels({**dict(own), "job": "harchos-sentinel"}), post, None)


def _started(folder: Path, stream: Labels, post: Post, following: Following | None) -> Shipper:
    from harch.sentinel.node.spool import Spool
    from harch.sentinel.own_logs.handler import ShippingHandler
    from harch.sentinel.own_logs.shipper import SPOOL_BYTES_MAX, Shipper

    handler = ShippingHandler()
    handler.addFilter(TraceFilter())
    shipper = Shipper(stream, handler, Spool(folder, SPOOL_BYTES_MAX), post, SystemClock(), following)
    shipper.start()
    return shipper


def _worker_sources(found: Iterable[tuple[str, str, Path]], hub_id: str) -> Iterator[Source]:
    from harch.sentinel.own_logs.following import file_source

    for pipeline, tenant, path in found:
        stage = path.stem.rpartition("-")[0] or path.stem
        stream = labels({"job": "harchos-pipeline", "hub": hub_id, "pipeline": pipeline, "stage": stage})
        yield file_source(path, tenant, stream, (("worker", path.stem),))
