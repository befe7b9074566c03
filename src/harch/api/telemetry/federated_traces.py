"""How are traces asked for over several hubs? Whole traces in the own country, statistics of spans everywhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harch.api.telemetry.answer import Answer, success
from harch.api.telemetry.hubs import HubsAsked
from harch.api.telemetry.over_hubs import Heard, OverHubs
from harch.api.telemetry.request import TelemetryRequest
from harch.api.telemetry.traces import COUNTED_MS, GROUPS_MAX, MS_NS, end_ns_of, plugin_summary, search_summary
from harch.base.errors import HarchError
from harch.sentinel.federated.asking.bodies import (
    ERRORS_UNKNOWN,
    groups_together,
    spans_together,
    traces_together,
)
from harch.sentinel.federated.messages import TracePart
from harch.sentinel.model.spans import Field, SpanGroup, TraceSummary
from harch.sentinel.traces.fields import trace_id_of
from harch.sentinel.traces.parser import parse_query
from harch.sentinel.traces.searching import LIMIT, LIMIT_MAX
from harch.sentinel.traces.statistics import fields_of, group_view
from harch.sentinel.traces.tree import tree_of
from harch.sentinel.traces.view import SPANS_SHOWN, SPANS_SHOWN_MAX, trace_view

LOOK_BACK_MS = 24 * 3_600_000  # of a search that names no start
QUANTUM_MS = 900_000  # hubs of other countries count spans of whole quarters of an hour
CLOSED_MS = 60_000  # that ended a minute ago
_NO_LINES = "log lines of a trace are shown of one hub at a time, not over several"


class FederatedTraces:
    """Search, statistics and one trace, with `hubs`."""

    def __init__(self, over: OverHubs) -> None:
        self._over = over

    async def plugin_search(self, request: TelemetryRequest, _: Mapping[str, str]) -> Answer:
        found, heard = await self._found(request)
        return success({"traces": [plugin_summary(trace) for trace in found]}, warnings=heard.notes)

    async def search(self, request: TelemetryRequest, _: Mapping[str, str]) -> Answer:
        found, heard = await self._found(request)
        return success({"traces": [search_summary(trace) for trace in found]}, warnings=heard.notes)

    async def statistics(self, request: TelemetryRequest, _: Mapping[str, str]) -> Answer:
        by = fields_of([text for text in request.one("by", "service,name").split(",") if text])
        query = request.one("query")
        parse_query(query)
        asked = await self._over.hubs(request)
        start_ms = request.time_ms("start", request.now_ms - COUNTED_MS)
        end_ms = end_ns_of(request) // MS_NS
        start_ms, end_ms, moved = _shared_times(start_ms, end_ms, asked, request.now_ms)
        names = tuple(field.value for field in by)
        part = TracePart(kind="statistics", query=query, start_ns=start_ms * MS_NS, end_ns=end_ms * MS_NS, by=names)
        heard = await self._over.ask(request, asked, (part,))
        groups = await self._over.in_thread(lambda: groups_together(heard.everyone))
        largest = sorted(groups, key=lambda group: (-group.count, group.key))[:GROUPS_MAX]
        told = {
            "by": list(names),
            "groups": [_group_view(group, by) for group in largest],
            "quantiles": "estimated from buckets; null where a hub may not tell them",
        }
        return success(told, warnings=(*moved, *heard.notes))

    async def tree(self, request: TelemetryRequest, names: Mapping[str, str]) -> Answer:
        """One trace with its spans of all hubs that tell them."""
        trace_id = trace_id_of(names["id"])
        if trace_id is None:
            hint = "an id has up to 32 hexadecimal digits"
            raise HarchError("E0201", f"`{names['id'][:40]}` is no trace id", field="id", hint=hint)
        asked = await self._over.hubs(request)
        part = TracePart(kind="trace", query=trace_id, start_ns=0, end_ns=end_ns_of(request))
        heard = await self._over.ask(request, asked, (part,), stays_home="spans")
        spans_max = min(request.count("limit", SPANS_SHOWN) or SPANS_SHOWN, SPANS_SHOWN_MAX)

        def joined() -> Answer:
            spans = spans_together(heard.everyone)
            if not spans:
                missing = f"; {heard.notes[0]}" if heard.notes else ""
                raise HarchError("E0692", f"no hub tells of a span of trace {trace_id}{missing}")
            lines = (_NO_LINES,) if request.count("logs") else ()
            return success(trace_view(tree_of(spans), spans_max=spans_max), warnings=(*heard.notes, *lines))

        return await self._over.in_thread(joined)

    async def _found(self, request: TelemetryRequest) -> tuple[list[TraceSummary], Heard]:
        query = request.one("query")
        parse_query(query)
        asked = await self._over.hubs(request)
        limit = min(request.count("limit", LIMIT) or LIMIT, LIMIT_MAX)
        start_ms = request.time_ms("start", request.now_ms - LOOK_BACK_MS)
        part = TracePart(kind="search", query=query, start_ns=start_ms * MS_NS, end_ns=end_ns_of(request), limit=limit)
        heard = await self._over.ask(request, asked, (part,), stays_home="traces")
        return await self._over.in_thread(lambda: traces_together(heard.everyone, limit=limit)), heard


def _shared_times(start_ms: int, end_ms: int, asked: HubsAsked, now_ms: int) -> tuple[int, int, tuple[str, ...]]:
    """Whole quarters of an hour that are over, if one of the hubs lies in another country."""
    if not asked.is_abroad:
        return start_ms, end_ms, ()
    last_ms = min(end_ms, now_ms - CLOSED_MS) // QUANTUM_MS * QUANTUM_MS
    first_ms = min(start_ms // QUANTUM_MS * QUANTUM_MS, last_ms - QUANTUM_MS)
    return first_ms, last_ms, ("hubs of other countries count whole quarters of an hour that are over: so does this",)


def _group_view(group: SpanGroup, by: Sequence[Field]) -> dict[str, object]:
    told = group_view(group, by)
    if not group.buckets:
        told |= {name: None for name in told if name.startswith("p") and name.endswith("Ns")}
    return {**told, "errors": None if group.errors == ERRORS_UNKNOWN else group.errors}
