"""What does a request in Loki's manner say, and how is it answered?

Times in any of its forms in; streams, vectors and matrices out.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from harch.base.errors import HarchError
from harch.sentinel.http.messages import HttpReply, TelemetryRequest, to_json
from harch.sentinel.http.prometheus.results import result_json
from harch.sentinel.logql.evaluate.engine import LogAnswer
from harch.sentinel.logql.evaluate.lines import LogEntry
from harch.sentinel.logql.text.values import duration_ns
from harch.sentinel.model.labels import Labels
from harch.sentinel.model.logs import LineOrder
from harch.sentinel.promql.evaluate.values import StepGrid

NS = 1_000_000_000
MS_NS = 1_000_000
HOUR_NS = 3600 * NS
POINTS_MAX = 11_000  # of a series; a wider step is taken instead of a refusal
_NS_MAX = (1 << 63) - 1
_STEPS_BY_DEFAULT = 250
_DIGITS_OF_SECONDS = 10
_RFC3339 = re.compile(r"(?P<until_s>\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d)(?:\.(?P<fraction>\d{1,9})\d*)?(?P<zone>.*)")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FLAGS_HEADER = "x-loki-response-encoding-flags"
CATEGORIZE = "categorize-labels"


def now_ns(request: TelemetryRequest) -> int:
    return request.now_ms * MS_NS


def time_ns(request: TelemetryRequest, name: str, default: int) -> int:
    text = request.one(name)
    return parse_time_ns(text, name) if text else default


def parse_time_ns(text: str, name: str = "time") -> int:
    """Nanoseconds, seconds (ten digits at most, or with a fraction), or RFC 3339. Raises E0201."""
    digits = text.removeprefix("-")
    if digits.isdecimal() and digits.isascii():
        value = int(text[:24])
        ns = value * NS if len(digits) <= _DIGITS_OF_SECONDS else value
    else:
        ns = _other_time(text, name)
    if abs(ns) > _NS_MAX:
        raise _no_time(text, name)
    return ns


def _other_time(text: str, name: str) -> int:
    try:
        seconds = float(text)
    except ValueError:
        return _rfc3339_ns(text, name)
    if not math.isfinite(seconds) or abs(seconds) > _NS_MAX:
        raise _no_time(text, name)
    return round(seconds * 1000) * MS_NS if abs(seconds) < _NS_MAX / NS else round(seconds)


def _rfc3339_ns(text: str, name: str) -> int:
    found = _RFC3339.fullmatch(text.strip())
    try:
        if found is None or not found["zone"]:
            raise ValueError
        moment = datetime.fromisoformat(found["until_s"] + found["zone"].upper())
        passed = moment - _EPOCH
    except (ValueError, TypeError, OverflowError):
        raise _no_time(text, name) from None
    return (passed // timedelta(seconds=1)) * NS + int((found["fraction"] or "").ljust(9, "0"))


def _no_time(text: str, name: str) -> HarchError:
    hint = "write nanoseconds or seconds since 1970, or e.g. `2026-01-31T12:00:00Z`"
    return HarchError("E0201", f"`{name}`: `{text[:40]}` is not a time", field=name, hint=hint)


def duration_of(request: TelemetryRequest, name: str, default_ns: int) -> int:
    """Seconds with a fraction, or a duration such as `5m`; nothing below 0."""
    text = request.one(name)
    if not text:
        return default_ns
    ns = duration_ns(text)
    if ns is None:
        try:
            ns = round(float(text) * NS)
        except (ValueError, OverflowError):
            ns = -1
    if not 0 <= ns <= _NS_MAX:
        raise HarchError("E0201", f"`{name}`: `{text[:40]}` is not a duration", field=name, hint="e.g. `30s` or `5m`")
    return ns


def window_of(request: TelemetryRequest) -> tuple[int, int]:
    """`start` and `end`; `since` before the end, an hour by default."""
    end = time_ns(request, "end", now_ns(request))
    start = time_ns(request, "start", min(end, now_ns(request)) - duration_of(request, "since", HOUR_NS))
    if end < start:
        raise HarchError("E0201", "`end` is before `start`", field="end")
    return start, end


def step_of(request: TelemetryRequest, start_ns: int, end_ns: int) -> tuple[int, tuple[str, ...]]:
    """The step in milliseconds and what has to be said about it. Raises E0201 for a step of nothing."""
    default = max((end_ns - start_ns) // _STEPS_BY_DEFAULT // NS, 1) * NS
    step_ms = duration_of(request, "step", default) // MS_NS
    if step_ms <= 0:
        raise HarchError("E0201", "`step` must be above 0", field="step", hint="e.g. `step=15` or `step=1m`")
    span_ms = (end_ns - start_ns) // MS_NS
    if span_ms // step_ms >= POINTS_MAX:
        step_ms = -(-span_ms // (POINTS_MAX - 1))
        return step_ms, (f"step widened to {step_ms / 1000:g} s to keep series within 11,000 points",)
    return step_ms, ()


def grid_of(request: TelemetryRequest, start_ns: int, end_ns: int) -> tuple[StepGrid, tuple[str, ...]]:
    """The times of a range query, and what has to be said about them.

    They are multiples of the step, as in Loki: the start is rounded down and the end up, so that the bars of a
    histogram count the same lines whenever it is drawn again.
    """
    step_ms, warnings = step_of(request, start_ns, end_ns)
    first, last = start_ns // MS_NS // step_ms, -(-end_ns // (MS_NS * step_ms))
    return StepGrid(first * step_ms, step_ms, last - first + 1), warnings


def order_of(request: TelemetryRequest) -> LineOrder:
    text = request.one("direction", "backward").lower()
    if text not in ("forward", "backward"):
        raise HarchError(
            "E0201", f"invalid `direction`: `{text[:40]}`", field="direction", hint="use forward or backward"
        )
    return LineOrder.OLDEST_FIRST if text == "forward" else LineOrder.NEWEST_FIRST


def limit_of(request: TelemetryRequest, default: int) -> int:
    limit = request.count("limit", default)
    if limit <= 0:
        raise HarchError("E0201", "`limit` must be above 0", field="limit")
    return limit


def wants_categories(request: TelemetryRequest) -> bool:
    """Whether labels are to be told apart by where they come from."""
    flags = request.headers.get(_FLAGS_HEADER, "")
    return CATEGORIZE in [flag.strip() for flag in flags.split(",")]


# How are answers about logs written? Loki's JSON: streams of lines, vectors and matrices, with statistics.


def log_answer(answer: LogAnswer, seconds: float, *, categorized: bool, warnings: Sequence[str] = ()) -> HttpReply:
    """The envelope with `data` and `stats`."""
    value = answer.value
    stats = b',"stats":' + to_json(statistics(answer, seconds))
    if isinstance(value, list):
        flags = f',"encodingFlags":["{CATEGORIZE}"]'.encode() if categorized else b""
        result = to_json(streams_of(value, categorized=categorized))
        data = b'{"resultType":"streams","result":' + result + flags + stats + b"}"
    else:
        data = result_json(value)[:-1] + stats + b"}"
    notes = b',"warnings":' + to_json(list(warnings)) if warnings else b""
    return HttpReply(body=b'{"status":"success","data":' + data + notes + b"}")


def streams_of(entries: Iterable[LogEntry], *, categorized: bool) -> list[dict[str, Any]]:
    """Lines by their labels, in the order they came in; streams sorted by labels."""
    found: dict[Labels, list[list[Any]]] = {}
    for entry in entries:
        key = entry.stream if categorized else entry.labels
        line: list[Any] = [str(entry.time_ns), entry.text]
        if categorized:
            line.append(_categories(entry))
        found.setdefault(key, []).append(line)
    return [{"stream": dict(labels), "values": lines} for labels, lines in sorted(found.items())]


def _categories(entry: LogEntry) -> dict[str, dict[str, str]]:
    categories = {"structuredMetadata": dict(entry.metadata), "parsed": dict(entry.parsed)}
    return {name: labels for name, labels in categories.items() if labels}


def statistics(answer: LogAnswer, seconds: float) -> dict[str, Any]:
    """What was read: lines that passed the store's own filters, and their bytes."""
    lines, size = answer.read.lines, answer.read.text_bytes
    entries = len(answer.value) if isinstance(answer.value, list) else 0
    per_second = 1 / seconds if seconds > 0 else 0.0
    nothing: dict[str, Any] = {
        "totalChunksRef": 0,
        "totalChunksDownloaded": 0,
        "chunksDownloadTime": 0,
        "chunk": {
            "headChunkBytes": 0,
            "headChunkLines": 0,
            "decompressedBytes": size,
            "decompressedLines": lines,
            "compressedBytes": 0,
            "totalDuplicates": 0,
        },
    }
    return {
        "summary": {
            "bytesProcessedPerSecond": round(size * per_second),
            "linesProcessedPerSecond": round(lines * per_second),
            "totalBytesProcessed": size,
            "totalLinesProcessed": lines,
            "execTime": round(seconds, 6),
            "queueTime": 0,
            "subqueries": 0,
            "totalEntriesReturned": entries,
            "splits": 0,
            "shards": 0,
        },
        "querier": {"store": nothing},
        "ingester": {
            "totalReached": 0,
            "totalChunksMatched": 0,
            "totalBatches": 0,
            "totalLinesSent": 0,
            "store": {},
        },
    }
