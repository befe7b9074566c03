"""Spans as HarchOS and its users send them: traces of eight spans over some services, with ids and failures."""

from __future__ import annotations

import random
from collections.abc import Iterator

from harch.sentinel.model.spans import Span, SpanKind, SpanStatus

SPANS_PER_TRACE = 8
SERVICES = ("gateway", "hub-dakhla", "hub-dakar", "agent", "sense", "think", "act", "ledger", "billing", "store")
OPERATIONS = tuple(f"{verb} {noun}" for verb in ("GET", "POST", "place", "run", "offer", "lease")
                   for noun in ("workload", "gpu", "plan", "batch", "lease"))  # fmt: skip
_RESOURCES = {
    service: (("host.name", f"node-{place:03d}"), ("service.version", "1.4.2"))
    for place, service in enumerate(SERVICES)
}
_OK, _ERROR, _UNSET = SpanStatus.OK, SpanStatus.ERROR, SpanStatus.UNSET


def batches(spans: int, first_ns: int, step_ns: int, seed: int = 1) -> Iterator[list[Span]]:
    """Requests of 100 traces each, as exporters send them."""
    rng = random.Random(seed)
    at = first_ns
    for _ in range(spans // (100 * SPANS_PER_TRACE)):
        batch: list[Span] = []
        for _ in range(100):
            at += rng.randrange(2 * step_ns)
            batch += _trace(rng, at)
        yield batch


def _trace(rng: random.Random, at: int) -> list[Span]:
    trace_id = f"{rng.getrandbits(128):032x}"
    failed = rng.random() < 0.02
    workload = f"w-{rng.getrandbits(40):010x}"
    spans: list[Span] = []
    parent = ""
    for place in range(SPANS_PER_TRACE):
        service = SERVICES[rng.randrange(len(SERVICES))]
        duration = int(rng.lognormvariate(15.5, 1.2))
        span_id = f"{rng.getrandbits(64) | 1:016x}"
        attributes = (
            ("harch.workload.id", workload),
            ("http.route", "/v1/workloads"),
            ("http.status_code", 500 if failed else 200),
            ("net.peer.port", rng.randrange(1024, 65_536)),
            ("user.id", f"user-{rng.randrange(5000):04d}"),
        )
        is_last = place == SPANS_PER_TRACE - 1
        spans.append(
            Span(
                trace_id=trace_id,
                span_id=span_id,
                parent_id=parent,
                service=service,
                name=OPERATIONS[rng.randrange(len(OPERATIONS))],
                start_ns=at + place * 300_000,
                duration_ns=duration,
                kind=SpanKind.SERVER if place else SpanKind.CLIENT,
                status=_ERROR if failed and is_last else (_OK if place % 2 else _UNSET),
                status_message="timeout" if failed and is_last else "",
                attributes=attributes,
                resource=_RESOURCES[service],
                scope="harch",
            )
        )
        parent = spans[rng.randrange(len(spans))].span_id
    return spans
