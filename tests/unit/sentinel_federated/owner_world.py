"""A hub in Morocco with GPUs, and somebody abroad who asks it."""

from __future__ import annotations

from collections.abc import Mapping

from harch.sentinel.federated.disclosure.answer import OwnHub, TenantReaders, answer
from harch.sentinel.federated.disclosure.ledger import Memory
from harch.sentinel.federated.disclosure.policy import TelemetryPolicy
from harch.sentinel.federated.messages import LogPart, MetricPart, Part, PartResult, Question, Requester, TracePart
from harch.sentinel.model.labels import Labels, labels
from harch.sentinel.model.logs import LogReadable
from harch.sentinel.model.spans import SpanReadable
from harch.testing.federated_telemetry import MemoryMetrics, Points

MINUTE_MS = 60_000
HOUR_S = 3600
NOW_S = 7200.0
HOME = Requester(hub_id="tangier", country="MA")
ABROAD = Requester(hub_id="dakar", country="SN")


def gpu(number: int, name: str = "load", **more: str) -> Labels:
    return labels({"__name__": name, "device": f"gpu-{number}", "job": "gpus", **more})


def steady(value: float, begin_s: int = 0, end_s: int = 2 * HOUR_S, every_s: int = 15, offset_s: int = 0) -> Points:
    """Samples that change a little all the time."""
    return [(1000 * second, value + second / 1000) for second in range(begin_s + offset_s, end_s, every_s)]


class Owner:
    """The hub, with its memory and a clock to set."""

    def __init__(
        self,
        series: Mapping[Labels, Points] | None = None,
        logs: LogReadable | None = None,
        spans: SpanReadable | None = None,
        policy: TelemetryPolicy | None = None,
        memory: Memory | None = None,
        store: MemoryMetrics | None = None,
    ) -> None:
        self.memory = memory or Memory()
        self.now_s = NOW_S
        readers = TenantReaders(store or MemoryMetrics(series or {}), logs, spans)
        self.hub = OwnHub("casablanca", "MA", lambda _: readers, self.memory, policy or TelemetryPolicy())

    def ask(
        self,
        expression: str,
        *,
        at_min: float = 60,
        until_min: float | None = None,
        step_s: float = 60,
        who: Requester = ABROAD,
    ) -> PartResult:
        """One time, or a grid up to another time."""
        start_ms = int(at_min * MINUTE_MS)
        end_ms = start_ms if until_min is None else int(until_min * MINUTE_MS)
        step_ms = 0 if until_min is None else int(step_s * 1000)
        return self.part(MetricPart(expression=expression, start_ms=start_ms, end_ms=end_ms, step_ms=step_ms), who)

    def ask_logs(self, expression: str, *, at_s: int = HOUR_S, who: Requester = ABROAD, limit: int = 100) -> PartResult:
        at_ns = at_s * 10**9
        start_ns = at_ns if expression.startswith("sum") else 0
        return self.part(LogPart(expression=expression, start_ns=start_ns, end_ns=at_ns, step_ns=0, limit=limit), who)

    def ask_spans(
        self,
        query: str = "",
        by: tuple[str, ...] = (),
        *,
        kind: str = "statistics",
        who: Requester = ABROAD,
        hours: int = 1,
    ) -> PartResult:
        part = TracePart(kind=kind, query=query, start_ns=0, end_ns=hours * HOUR_S * 10**9, by=by)  # type: ignore[arg-type]
        return self.part(part, who)

    def part(self, part: Part, who: Requester = ABROAD) -> PartResult:
        question = Question(id="q", tenant="default", requested_by="somebody", parts=(part,))
        return answer(question, who, self.hub, now_s=self.now_s).results[0]


def values(told: PartResult) -> dict[str, list[float]]:
    """Values by labels without names: `a100 train`."""
    assert told.refused is None, told.refused
    return {" ".join(value for _, value in one.labels): list(one.values) for one in told.series}


def rule(told: PartResult) -> str:
    assert told.refused is not None, told
    assert told.refused.nearest_fix, "a refusal says what would pass"
    return told.refused.rule
