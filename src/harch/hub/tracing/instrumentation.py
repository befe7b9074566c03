"""Who looks on while the job machine works? Counters, the histogram of waits, and the spans of traced work.

Called for every event and every line of the history, so it does next to nothing for work that is not traced.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime

from harch.base.clock import epoch_ns
from harch.base.metrics import ExemplarHistogram
from harch.base.tracing.spans import read_header
from harch.base.tracing.tracer import Tracing
from harch.federation.offers import BidRequest, Bids
from harch.hub.jobs import effects as fx
from harch.hub.jobs import events as ev
from harch.hub.jobs.machine import JobMachine
from harch.hub.tracing.work_spans import WorkSpans, bid_requests_in
from harch.workloads.lifecycle import Workload

BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0, 120.0, 600.0, 3600.0, 14_400.0, 86_400.0)
_SCHEDULED = "workload.scheduled"
_WITH_OTHERS = (ev.LendingDue, ev.PeerMessageReceived)

_log = logging.getLogger("harch.hub")


class Watch:
    """`count` gets the kind of every record."""

    def __init__(self, count: Callable[[str], None], tracing: Tracing | None, hub_id: str) -> None:
        self._count = count
        self._spans = WorkSpans(tracing, hub_id) if tracing is not None else None
        self._machine: JobMachine | None = None
        self.failures = 0
        self._workloads: Mapping[str, Workload] = {}
        self.waits = ExemplarHistogram(
            "harch_placement_wait_seconds", "Time from submission to placement, of first attempts.", BOUNDS_S
        )

    def restored(self, machine: JobMachine) -> None:
        """A machine takes over, from what the disk holds."""
        self._machine, self._workloads = machine, machine.state.registry.workloads
        if self._spans is not None:
            with self._harmless():
                self._spans.restored(self._workloads.values())

    def recorded(self, record: fx.Record, now: datetime) -> None:
        try:
            self._recorded(record, now)
        except Exception as error:  # noqa: BLE001 - as `_harmless`, which would cost more for every line
            self._failed(error)

    def _recorded(self, record: fx.Record, now: datetime) -> None:
        kind = record.kind
        self._count(kind)
        workload = self._workloads.get(record.subject)
        if workload is None:
            return
        if kind == _SCHEDULED and workload.attempt == 1:
            self._waited(workload, now)
        if self._spans is not None and workload.trace:
            self._spans.recorded(record, workload, epoch_ns(now))

    def handled(self, event: ev.Event, effects: list[fx.Effect], now: datetime) -> None:
        """Before the effects of this event are carried out."""
        if self._spans is not None and type(event) in _WITH_OTHERS:
            with self._harmless():
                self._with_others(self._spans, event, effects, epoch_ns(now))

    def _with_others(self, spans: WorkSpans, event: ev.Event, effects: list[fx.Effect], at_ns: int) -> None:
        if isinstance(event, ev.LendingDue) and self._machine is not None:
            for hub_id, bid_request, workload_ids in bid_requests_in(effects, self._machine.state):
                spans.requested(hub_id, bid_request, workload_ids, at_ns)
        elif isinstance(event, ev.PeerMessageReceived) and isinstance(event.message, Bids):
            spans.answered(event.hub_id, event.message, at_ns)
        elif isinstance(event, ev.PeerMessageReceived) and isinstance(event.message, BidRequest):
            for effect in effects:
                if isinstance(effect, fx.SendPeer) and isinstance(effect.message, Bids):
                    spans.bid(event.hub_id, event.message, effect.message, at_ns)

    @contextlib.contextmanager
    def _harmless(self) -> Iterator[None]:
        """Memory is ahead of the disk here: whatever goes wrong with telemetry must not stop what was decided."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - counted, and logged once
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        self.failures += 1
        if self.failures == 1:
            _log.error("metrics and spans of work are not recorded", exc_info=error)

    def _waited(self, workload: Workload, now: datetime) -> None:
        trace = read_header(workload.trace) if workload.trace else None
        trace_id = trace.trace_id.hex() if trace is not None else ""
        waited_s = max(0.0, (now - workload.created_at).total_seconds())
        self.waits.observe(waited_s, trace_id=trace_id, at_s=now.timestamp() if trace_id else 0.0)
