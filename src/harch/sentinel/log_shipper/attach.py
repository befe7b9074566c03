"""How do a hub's own lines, and those of its pipelines' workers, reach its SENTINEL? And those of SENTINEL itself?"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from harch.base.clock import SystemClock
from harch.base.errors import HarchError
from harch.base.tracing.exporter import HttpPost
from harch.base.tracing.tracer import TraceFilter
from harch.sentinel.model.labels import Labels, labels

if TYPE_CHECKING:
    from harch.sentinel.log_shipper.shipper import Post, Shipper
    from harch.sentinel.log_shipper.tail import OutputSource, OutputTail

FOLDER = "own-logs"
WorkerLogs = Callable[[], Iterable[tuple[str, str, Path]]]  # pipeline, tenant, file


def ship_hub_logs(state_dir: Path, hub_id: str, url: str, token: Callable[[], str], worker_logs: WorkerLogs) -> Shipper:
    """Starts it; `close` ends it. `url` is where the hub's SENTINEL listens."""
    from harch.sentinel.log_shipper.shipper import PATH
    from harch.sentinel.log_shipper.tail import OutputTail

    folder = state_dir / FOLDER
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    following = OutputTail(folder / "told.json", lambda: _worker_sources(worker_logs(), hub_id))
    stream = labels({"job": "harchos-hub", "hub": hub_id})
    return _started(folder, stream, HttpPost(url, token, path=PATH), following)


def keep_sentinel_logs(data: Path, keep: Callable[[bytes, str], None], own: Labels) -> Shipper:
    """SENTINEL's lines go the same way, without a network in between. `own` are labels of this SENTINEL.

    `keep` takes a body in Loki's shape and the tenant that it is of.
    """

    def post(body: bytes, tenant: str) -> int:
        try:
            keep(body, tenant)
        except HarchError as problem:
            return problem.kind.status
        return 204

    return _started(data / FOLDER, labels({**dict(own), "job": "harchos-sentinel"}), post, None)


def _started(folder: Path, stream: Labels, post: Post, following: OutputTail | None) -> Shipper:
    from harch.sentinel.log_shipper.records import ShippingHandler
    from harch.sentinel.log_shipper.shipper import SPOOL_BYTES_MAX, Shipper
    from harch.sentinel.node.spool import RequestSpool

    handler = ShippingHandler()
    handler.addFilter(TraceFilter())
    shipper = Shipper(stream, handler, RequestSpool(folder, SPOOL_BYTES_MAX), post, SystemClock(), following)
    shipper.start()
    return shipper


def _worker_sources(found: Iterable[tuple[str, str, Path]], hub_id: str) -> Iterator[OutputSource]:
    from harch.sentinel.log_shipper.tail import file_source

    for pipeline, tenant, path in found:
        stage = path.stem.rpartition("-")[0] or path.stem
        stream = labels({"job": "harchos-pipeline", "hub": hub_id, "pipeline": pipeline, "stage": stage})
        yield file_source(path, tenant, stream, (("worker", path.stem),))
