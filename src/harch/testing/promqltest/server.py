"""How does a server answer?

Remote-write 2.0 for loading, the Prometheus HTTP API for queries, a tenant of its own per run.
"""

from __future__ import annotations

import itertools
import secrets
import struct
from collections.abc import Iterable

import httpx

from harch.base.errors import HarchError
from harch.sentinel.model.histograms import BucketSpan, NativeHistogram
from harch.sentinel.model.labels import Labels, labels
from harch.sentinel.promql.histograms.buckets import compacted
from harch.testing.promqltest.commands import (
    DisplayedHistogram,
    EvaluationGrid,
    EvaluationResult,
    Point,
    QueryFailed,
    ResultSeries,
    SeriesSamples,
)

CONTENT_TYPE = "application/x-protobuf;proto=io.prometheus.write.v2.Request"
VERSION = "2.0.0"
_VARINT, _FIXED64, _BYTES = 0, 1, 2

TimedSample = tuple[int, float | NativeHistogram, int]  # time, value, start time or 0


def encode(series: Iterable[tuple[Labels, list[TimedSample]]]) -> bytes:
    """The protobuf body, not yet compressed."""
    symbols: dict[str, int] = {"": 0}
    encoded: list[bytes] = []
    for series_labels, samples in series:
        refs = b"".join(
            _varint(symbols.setdefault(text, len(symbols))) for name, value in series_labels for text in (name, value)
        )
        body = _field(1, refs)
        for time_ms, value, start_ms in samples:
            if isinstance(value, NativeHistogram):
                body += _field(3, _histogram(value, time_ms, start_ms))
            else:
                body += _field(2, _double(1, value) + _integer(2, time_ms) + _integer(3, start_ms))
        encoded.append(_field(5, body))
    table = b"".join(_field(4, text.encode("utf-8", "surrogateescape")) for text in symbols)
    return table + b"".join(encoded)


def _histogram(histogram: NativeHistogram, time_ms: int, start_ms: int) -> bytes:
    whole = compacted(histogram)
    return b"".join(
        (
            _double(2, whole.count),
            _double(3, whole.sum),
            _tag(4, _VARINT) + _varint(_zigzag(whole.schema)),
            _double(5, whole.zero_threshold),
            _double(7, whole.zero_count),
            *(_field(8, _span(span)) for span in whole.negative_spans),
            _doubles(10, whole.negative_counts),
            *(_field(11, _span(span)) for span in whole.positive_spans),
            _doubles(13, whole.positive_counts),
            _integer(14, int(whole.reset_hint)),
            _integer(15, time_ms),
            _doubles(16, whole.custom_bounds),
            _integer(17, start_ms),
        )
    )


def _span(span: BucketSpan) -> bytes:
    return _tag(1, _VARINT) + _varint(_zigzag(span.offset)) + _integer(2, span.length)


def _tag(number: int, kind: int) -> bytes:
    return _varint(number << 3 | kind)


def _field(number: int, content: bytes) -> bytes:
    return _tag(number, _BYTES) + _varint(len(content)) + content


def _integer(number: int, value: int) -> bytes:
    return b"" if value == 0 else _tag(number, _VARINT) + _varint(value & (1 << 64) - 1)


def _double(number: int, value: float) -> bytes:
    return _tag(number, _FIXED64) + struct.pack("<d", value)


def _doubles(number: int, values: tuple[float, ...]) -> bytes:
    return _field(number, struct.pack(f"<{len(values)}d", *values)) if values else b""


def _zigzag(value: int) -> int:
    return value << 1 if value >= 0 else (-value << 1) - 1


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


# How is a server asked? Remote-write for loading, the Prometheus HTTP API for queries, a tenant of its own per run.


SAMPLES_PER_REQUEST = 20_000
_TIMEOUT_S = 60.0
_INFO_MARK = "PromQL info"


class ServerTarget:
    """A server at `url`. Every `clear` goes on as a tenant that nobody has used."""

    def __init__(self, url: str, *, client: httpx.Client | None = None) -> None:
        self._client = client or httpx.Client(timeout=_TIMEOUT_S)
        self._url = url.rstrip("/")
        self._run = secrets.token_hex(4)
        self._numbers = itertools.count(1)
        self._tenant = ""
        self.clear()

    def clear(self) -> None:
        self._tenant = f"promqltest-{self._run}-{next(self._numbers)}"

    def load(self, step_ms: int, series: tuple[SeriesSamples, ...]) -> None:
        batch: list[tuple[Labels, list[TimedSample]]] = []
        waiting = 0
        for one in series:
            samples = timed(one, step_ms)
            for start in range(0, len(samples), SAMPLES_PER_REQUEST):
                part = samples[start : start + SAMPLES_PER_REQUEST]
                batch.append((one.labels, part))
                waiting += len(part)
                if waiting >= SAMPLES_PER_REQUEST:
                    self._write(batch)
                    batch, waiting = [], 0
        if batch:
            self._write(batch)

    def _write(self, batch: list[tuple[Labels, list[TimedSample]]]) -> None:
        import cramjam

        headers = {
            "Content-Type": CONTENT_TYPE,
            "Content-Encoding": "snappy",
            "X-Prometheus-Remote-Write-Version": VERSION,
            "X-Scope-OrgID": self._tenant,
        }
        body = bytes(cramjam.snappy.compress_raw(encode(batch)))
        reply = self._client.post(f"{self._url}/api/v1/write", content=body, headers=headers)
        if reply.status_code // 100 != 2:
            raise HarchError("E0620", f"remote-write was answered {reply.status_code}: {reply.text[:300]}")

    def query(self, text: str, grid: EvaluationGrid) -> EvaluationResult:
        headers = {"X-Scope-OrgID": self._tenant}
        if grid.is_instant:
            form = {"query": text, "time": _seconds(grid.start_ms)}
            reply = self._client.post(f"{self._url}/api/v1/query", data=form, headers=headers)
        else:
            form = {
                "query": text,
                "start": _seconds(grid.start_ms),
                "end": _seconds(grid.end_ms),
                "step": _seconds(grid.step_ms),
            }
            reply = self._client.post(f"{self._url}/api/v1/query_range", data=form, headers=headers)
        return read_reply(reply.status_code, reply.json())

    def close(self) -> None:
        self._client.close()


def timed(series: SeriesSamples, step_ms: int) -> list[TimedSample]:
    """The samples of a series with their times; the first value stands at 1970."""
    samples: list[TimedSample] = []
    for place, value in enumerate(series.values):
        if value is None:
            continue
        time_ms = place * step_ms
        offset = series.start_offsets_ms[place] if place < len(series.start_offsets_ms) else None
        samples.append((time_ms, value.content, 0 if offset is None else time_ms + offset))
    return samples


def _seconds(ms: int) -> str:
    sign, ms = ("-", -ms) if ms < 0 else ("", ms)
    return f"{sign}{ms // 1000}.{ms % 1000:03d}"


def read_reply(status: int, body: dict[str, object]) -> EvaluationResult:
    """The answer in the JSON of Prometheus' API. Raises QueryFailed with the error's text."""
    if status // 100 != 2 or body.get("status") != "success":
        raise QueryFailed(str(body.get("error", f"status {status}")))
    data = body.get("data")
    if not isinstance(data, dict):
        raise QueryFailed("the reply has no data")
    kind, result = str(data.get("resultType")), data.get("result")
    notes = [str(note) for key in ("warnings", "infos") for note in _list(body.get(key))]
    warnings = tuple(note for note in notes if not note.startswith(_INFO_MARK))
    infos = tuple(note for note in notes if note.startswith(_INFO_MARK))
    if kind in ("scalar", "string"):
        text = str(_list(result)[1])
        return EvaluationResult(kind, value=text if kind == "string" else float(text), warnings=warnings, infos=infos)
    series = tuple(_read_series(one) for one in _list(result) if isinstance(one, dict))
    return EvaluationResult(kind, series, warnings=warnings, infos=infos)


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _read_series(one: dict[str, object]) -> ResultSeries:
    metric = one.get("metric")
    named = labels({str(name): str(value) for name, value in metric.items()}) if isinstance(metric, dict) else ()
    floats = (one.get("value"), *_list(one.get("values")))
    histograms = (one.get("histogram"), *_list(one.get("histograms")))
    points: list[tuple[int, Point]] = [(_ms(pair[0]), float(pair[1])) for pair in floats if isinstance(pair, list)]
    points.extend(
        (_ms(pair[0]), _read_histogram(pair[1]))
        for pair in histograms
        if isinstance(pair, list) and isinstance(pair[1], dict)
    )
    return ResultSeries(named, tuple(sorted(points, key=lambda point: point[0])))


def _ms(seconds: float) -> int:
    return round(float(seconds) * 1000)


def _read_histogram(raw: dict[str, object]) -> DisplayedHistogram:
    buckets = tuple(
        (int(bucket[0]), float(bucket[1]), float(bucket[2]), float(bucket[3]))
        for bucket in _list(raw.get("buckets"))
        if isinstance(bucket, list)
    )
    return DisplayedHistogram(float(str(raw.get("count"))), float(str(raw.get("sum"))), buckets)
