"""How does a program query SENTINEL?

PromQL, logs, traces, alerts and silences over its public HTTP API, and the values that it answers.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any
from urllib.parse import quote, urlencode, urlsplit, urlunsplit

import httpx
import msgspec
from msgspec import Struct, field
from msgspec.json import decode

from harch.base.config import ports_from_env
from harch.base.errors import REGISTRY, HarchError
from harch.sdk.settings import normal_url, settings_from_env

MESSAGE_BYTES_MAX = 64 << 20
CATEGORIZED = {"X-Loki-Response-Encoding-Flags": "categorize-labels"}
_METADATA, _PARSED = "structuredMetadata", "parsed"


class LogLine(Struct, frozen=True):
    """One line. `labels` are those of its stream; `metadata` came with the line; `parsed` was found by the query."""

    time_ns: int
    line: str
    labels: dict[str, str]
    metadata: dict[str, str] = {}
    parsed: dict[str, str] = {}


class LogLines(Struct, frozen=True):
    """Lines in the order of time, and how many were left out because the reader was too slow.

    `warnings` name hubs that were asked and disclosed nothing.
    """

    lines: list[LogLine]
    dropped: int = 0
    warnings: list[str] = []


def lines_of(reply: Mapping[str, Any], warnings: Sequence[str] = ()) -> LogLines:
    """What `query_range` answers as `data`, or what one message of `tail` says."""
    streams: Iterable[Any] = reply.get("result", reply.get("streams", []))
    found = [
        LogLine(
            int(value[0]),
            value[1],
            stream["stream"],
            value[2].get(_METADATA, {}) if len(value) > 2 else {},
            value[2].get(_PARSED, {}) if len(value) > 2 else {},
        )
        for stream in streams
        for value in stream["values"]
    ]
    found.sort(key=lambda one: one.time_ns)
    return LogLines(found, int(reply.get("dropped_count", 0)), list(warnings))


def follow(url: str, headers: Mapping[str, str], parameters: Mapping[str, str]) -> Iterator[LogLines]:
    """Lines as they are stored, until the connection ends. Raises HarchError when SENTINEL says no."""
    from websockets.exceptions import ConnectionClosedError, ConnectionClosedOK, InvalidStatus, WebSocketException
    from websockets.sync.client import connect

    address = f"ws{url.removeprefix('http')}/loki/api/v1/tail?{urlencode(parameters)}"
    try:
        with connect(
            address, additional_headers={**headers, **CATEGORIZED}, max_size=MESSAGE_BYTES_MAX, proxy=None
        ) as socket:
            for message in socket:
                yield lines_of(decode(message))
    except InvalidStatus as refused:
        raise _refusal(refused.response.body, refused.response.status_code) from refused
    except ConnectionClosedOK:
        return
    except ConnectionClosedError as ended:
        reason = ended.rcvd.reason if ended.rcvd is not None else "the connection broke"
        raise HarchError("E0802", f"SENTINEL stopped sending lines: {reason}") from ended
    except (OSError, WebSocketException) as problem:
        raise HarchError("E0802", f"no SENTINEL answers at {url}: {problem}") from problem


def _refusal(body: bytes | None, status: int) -> HarchError:
    try:
        reply = decode(body or b"{}")
        code, message, hint = reply["code"], reply["error"], reply.get("hint", "")
    except (ValueError, KeyError, TypeError):
        code, message, hint = "", "", ""
    if code not in REGISTRY:
        return HarchError("E0802", f"the answer was status {status}")
    return HarchError(code, message, hint=hint)


# What does SENTINEL tell about traces? Traces in short, one trace as a tree, and spans counted by groups.


Attributes = dict[str, Any]


def _wire_name(name: str) -> str:
    """`parent_span_id` is `parentSpanID` in the answers."""
    first, *rest = name.split("_")
    return first + "".join({"id": "ID", "ids": "IDs"}.get(word, word.capitalize()) for word in rest)


class TraceFound(Struct, frozen=True, rename=_wire_name):
    """A trace that a search found. The root is that of the whole trace, as far as it is stored."""

    trace_id: str
    root_service_name: str
    root_trace_name: str
    start_time_unix_nano: str
    duration_ns: int
    span_count: int
    error_count: int
    matched_span_ids: list[str] = []


class TracesFound(Struct, frozen=True):
    traces: list[TraceFound]
    warnings: list[str] = []


class SpanView(Struct, frozen=True, rename=_wire_name):
    """A span in the tree, with its depth; `start_ns` counts from the start of the trace.

    `critical_ns` is how long the whole trace waited for this span itself.
    """

    span_id: str
    parent_span_id: str
    depth: int
    service: str
    name: str
    kind: str
    status: str
    start_ns: int
    duration_ns: int
    self_ns: int
    critical_ns: int
    attributes: Attributes = field(default_factory=dict)
    resource: Attributes = field(default_factory=dict)
    status_message: str = ""
    events: list[dict[str, Any]] = []
    links: list[dict[str, Any]] = []
    odd: list[str] = []
    skew_ns: int = 0
    children_omitted: int = field(default=0, name="childrenNotShown")


class PathSegment(Struct, frozen=True, rename=_wire_name):
    """A piece of the critical path. `waiting`: the span had ended, and what it led to had not begun."""

    span_id: str
    service: str
    name: str
    start_ns: int
    duration_ns: int
    waiting: bool


class TraceLogLine(Struct, frozen=True, rename=_wire_name):
    time_unix_nano: str
    line: str
    level: str
    labels: dict[str, str]
    trace_id: str = ""
    span_id: str = ""


class TraceView(Struct, frozen=True, rename=_wire_name):
    """One trace: spans in the order of a walk through its tree, and what the duration hangs on."""

    trace_id: str
    root_service_name: str
    root_trace_name: str
    start_time_unix_nano: str
    duration_ns: int
    span_count: int
    error_count: int
    spans: list[SpanView]
    critical_path: list[PathSegment]
    services: list[dict[str, Any]] = []
    gaps: list[dict[str, Any]] = []
    notes: list[str] = []
    logs: list[TraceLogLine] = []
    warnings: list[str] = []


class SpanStatistics(Struct, frozen=True):
    """Groups as dictionaries: the fields of `by`, `count`, `errors`, `meanNs`, and estimated `p50Ns` and others."""

    by: list[str]
    groups: list[dict[str, Any]]
    quantiles: str = ""
    warnings: list[str] = []


# How does a program ask SENTINEL? Queries in PromQL, traces, alerts and silences, over its public HTTP API.


TIMEOUT_S = 150.0
_IDENTITY = ("Authorization", "X-Scope-OrgID")


class VectorSample(msgspec.Struct, frozen=True):
    metric: dict[str, str]
    value: tuple[float, str] | None = None
    histogram: Any = None


class MatrixSeries(msgspec.Struct, frozen=True):
    metric: dict[str, str]
    values: list[tuple[float, str]] = []
    histograms: list[Any] = []


class QueryAnswer(msgspec.Struct, frozen=True):
    """`kind` is vector, matrix, scalar or string; `vector` or `matrix` or `text` holds what it says."""

    kind: str
    vector: list[VectorSample] = []
    matrix: list[MatrixSeries] = []
    text: str = ""
    warnings: list[str] = []
    infos: list[str] = []


class SentinelClient:
    """A client of one SENTINEL. Address and key come from the environment unless they are given."""

    def __init__(
        self,
        url: str | None = None,
        api_key: str | None = None,
        tenant: str | None = None,
        *,
        timeout_s: float = TIMEOUT_S,
        hubs: str = "",
    ) -> None:
        """`hubs`: `all`, or names with commas: what they tell together; `warnings` say what is missing in it."""
        self.url = normal_url(url or sentinel_url_from_env())
        key = api_key or os.environ.get("HARCH_SENTINEL_TOKEN") or settings_from_env().api_key
        headers = {"X-Scope-OrgID": tenant} if tenant else {}
        if key:
            headers["Authorization"] = f"Bearer {key}"
        params = {"hubs": hubs, "partial_response": "true"} if hubs else {}
        self._http = httpx.Client(base_url=self.url, headers=headers, params=params, timeout=timeout_s, trust_env=False)

    def __enter__(self) -> SentinelClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def query(self, promql: str, at_s: float | None = None) -> QueryAnswer:
        form = {"query": promql, **({} if at_s is None else {"time": str(at_s)})}
        return _query_answer(self._send("POST", "/api/v1/query", data=form))

    def query_range(self, promql: str, start_s: float, end_s: float, step_s: float) -> QueryAnswer:
        form = {"query": promql, "start": str(start_s), "end": str(end_s), "step": str(step_s)}
        return _query_answer(self._send("POST", "/api/v1/query_range", data=form))

    def find_traces(self, query: str = "", start_s: float | None = None, limit: int = 20) -> TracesFound:
        """The newest traces with a span that satisfies the query; docs/sentinel/traces.md says how to write one."""
        params = {"query": query, "limit": str(limit), **({} if start_s is None else {"start": str(start_s)})}
        reply = self.get("/harchos/api/v1/traces", params)
        return msgspec.convert({**reply["data"], "warnings": reply.get("warnings", [])}, TracesFound)

    def trace(self, trace_id: str, *, spans: int = 1000, logs: int = 0) -> TraceView:
        """One trace as a tree, with at most so many of its spans and so many log lines that carry its id."""
        path = f"/harchos/api/v1/traces/{quote(trace_id, safe='')}"
        reply = self.get(path, {"limit": str(spans), "logs": str(logs)})
        return msgspec.convert({**reply["data"], "warnings": reply.get("warnings", [])}, TraceView)

    def trace_statistics(
        self, query: str = "", by: Sequence[str] = ("service", "name"), start_s: float | None = None
    ) -> SpanStatistics:
        """Spans since `start_s` (the last hour if absent), counted by service, name, status or kind."""
        params = {"query": query, "by": ",".join(by), **({} if start_s is None else {"start": str(start_s)})}
        reply = self.get("/harchos/api/v1/traces/statistics", params)
        return msgspec.convert({**reply["data"], "warnings": reply.get("warnings", [])}, SpanStatistics)

    def logs(
        self, logql: str, start_ns: int, end_ns: int, *, limit: int = 100, step_s: float | None = None
    ) -> LogLines | QueryAnswer:
        """The newest lines between two times, or numbers over them; docs/sentinel/logql.md says how to ask."""
        form = {"query": logql, "start": str(start_ns), "end": str(end_ns), "limit": str(limit)}
        form |= {} if step_s is None else {"step": str(step_s)}
        reply = self._send("POST", "/loki/api/v1/query_range", data=form, headers=CATEGORIZED)
        if reply["data"]["resultType"] != "streams":
            return _query_answer(reply)
        return lines_of(reply["data"], reply.get("warnings", []))

    def follow_logs(self, logql: str, start_ns: int, *, limit: int = 100) -> Iterator[LogLines]:
        """The last lines since `start_ns`, then new ones as they are stored, until the connection ends."""
        headers = {name: self._http.headers[name] for name in _IDENTITY if name in self._http.headers}
        return follow(self.url, headers, {"query": logql, "start": str(start_ns), "limit": str(limit)})

    def alert_page(self, fingerprint: str, *, before: str = "30m", after: str = "30m") -> dict[str, Any]:
        """An alert with its rule, curves, log lines, traces and neighbours; `missing` says what could not be had."""
        path = f"/harchos/api/v1/alerts/{quote(fingerprint, safe='')}/around"
        page: dict[str, Any] = self.get(path, {"before": before, "after": after})["data"]
        return page

    def get(self, path: str, params: Mapping[str, str | Sequence[str]] | None = None) -> Any:
        """The JSON of any path, e.g. `/api/v2/alerts`."""
        return self._send("GET", path, params=dict(params or {}))

    def post(self, path: str, document: object) -> Any:
        return self._send("POST", path, json=document)

    def delete(self, path: str) -> Any:
        return self._send("DELETE", path)

    def _send(self, method: str, path: str, **more: Any) -> Any:
        try:
            answer = self._http.request(method, path, **more)
        except httpx.HTTPError as problem:
            hint = "a hub's SENTINEL takes a minute at its first start; HARCH_SENTINEL_URL names another one"
            raise HarchError("E0802", f"no SENTINEL answers at {self.url}: {problem}", hint=hint) from problem
        if answer.is_success:
            return answer.json() if answer.content else None
        raise _error_of(answer)


def sentinel_url_from_env() -> str:
    """HARCH_SENTINEL_URL, else beside the hub at HARCH_URL: its port is ten above the hub's."""
    if url := os.environ.get("HARCH_SENTINEL_URL"):
        return url
    return sentinel_url_beside(settings_from_env().url)


def sentinel_url_beside(hub_url: str) -> str:
    """Where the SENTINEL of the hub at this address listens, unless somebody moved it."""
    ports = ports_from_env()
    parts = urlsplit(hub_url)
    port = (parts.port or ports.api(0)) + ports.stride
    return urlunsplit((parts.scheme, f"{parts.hostname}:{port}", "", "", ""))


def _query_answer(reply: Any) -> QueryAnswer:
    data = reply["data"]
    kind, result = data["resultType"], data["result"]
    notes = {"warnings": reply.get("warnings", []), "infos": reply.get("infos", [])}
    if kind == "vector":
        return QueryAnswer(kind, vector=msgspec.convert(result, list[VectorSample]), **notes)
    if kind == "matrix":
        return QueryAnswer(kind, matrix=msgspec.convert(result, list[MatrixSeries]), **notes)
    return QueryAnswer(kind, text=str(result[1]), **notes)


def _error_of(answer: httpx.Response) -> HarchError:
    try:
        reply = answer.json()
        code, message, hint = reply.get("code", ""), reply.get("error", ""), reply.get("hint", "")
    except (ValueError, AttributeError):
        code, message, hint = "", "", ""
    if code not in REGISTRY:
        code, message = "E0802", message or f"the answer was status {answer.status_code}"
    return HarchError(code, message, hint=hint)
