"""How is a server asked? Remote-write for loading, the Prometheus HTTP API for queries, a tenant of its own per run."""

from __future__ import annotations

import itertools
import secrets

import httpx

from harch.base.errors import HarchError
from harch.sentinel.model.labels import Labels, labels
from harch.testing.promqltest.commands import Grid, SeriesSamples
from harch.testing.promqltest.remote_write import CONTENT_TYPE, VERSION, TimedSample, encode
from harch.testing.promqltest.results import Answer, Point, QueryFailed, ResultSeries, ShownHistogram

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

    def query(self, text: str, grid: Grid) -> Answer:
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


def read_reply(status: int, body: dict[str, object]) -> Answer:
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
        return Answer(kind, value=text if kind == "string" else float(text), warnings=warnings, infos=infos)
    series = tuple(_read_series(one) for one in _list(result) if isinstance(one, dict))
    return Answer(kind, series, warnings=warnings, infos=infos)


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


def _read_histogram(shown: dict[str, object]) -> ShownHistogram:
    buckets = tuple(
        (int(bucket[0]), float(bucket[1]), float(bucket[2]), float(bucket[3]))
        for bucket in _list(shown.get("buckets"))
        if isinstance(bucket, list)
    )
    return ShownHistogram(float(str(shown.get("count"))), float(str(shown.get("sum"))), buckets)
