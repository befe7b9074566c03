"""How is the result of a query written? Prometheus' JSON: vectors and matrices, floats and histograms."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from harch.api.telemetry.answer import Answer, to_json
from harch.api.telemetry.number_text import number_text, number_texts, time_text, time_texts
from harch.sentinel.model.histograms import Histogram
from harch.sentinel.model.labels import Labels
from harch.sentinel.promql.evaluate.results import (
    MatrixResult,
    QueryValue,
    SamplesResult,
    ScalarResult,
    StringResult,
    VectorResult,
)
from harch.sentinel.promql.evaluate.values import Floats, Objects
from harch.sentinel.promql.histograms.buckets import Bucket, all_buckets


def result_json(value: QueryValue) -> bytes:
    """The `data` of an answer."""
    match value:
        case ScalarResult():
            return scalar_json(value.value, value.time_ms)
        case StringResult():
            return string_json(value.value, value.time_ms)
        case VectorResult():
            return vector_json(value)
        case MatrixResult():
            return matrix_json(value)
        case SamplesResult():
            return samples_json(value)


def vector_json(vector: VectorResult) -> bytes:
    """One value a series, in the order of the result: `sort` is answered here."""
    time = time_text(vector.time_ms)
    texts = number_texts(vector.values)
    rows = []
    for place in range(vector.series.count):
        metric = _metric(vector.series.labels_of(place))
        histogram = None if vector.histograms is None else vector.histograms[place]
        if histogram is not None:
            rows.append(f'{{"metric":{metric},"histogram":[{time},{_histogram(histogram)}]}}')
        else:
            rows.append(f'{{"metric":{metric},"value":[{time},"{texts[place]}"]}}')
    return _data("vector", rows)


def matrix_json(matrix: MatrixResult) -> bytes:
    times = np.array(time_texts(matrix.times), dtype=np.object_)
    rows = []
    for place in range(matrix.series.count):
        cells = None if matrix.histograms is None else matrix.histograms[place]
        present = matrix.present[place]
        rows.append(
            _row(
                matrix.series.labels_of(place),
                times[present],
                matrix.values[place][present],
                None if cells is None else cells[present],
            )
        )
    return _data("matrix", [row for row in rows if row])


def samples_json(found: SamplesResult) -> bytes:
    """Samples at their own times, for an instant query with a range selector."""
    rows = []
    samples = found.samples
    for place in range(found.series.count):
        region = slice(int(samples.first[place]), int(samples.first[place] + samples.count[place]))
        times = np.array(time_texts(samples.timestamps[region]), dtype=np.object_)
        cells = None
        if samples.histogram_at is not None:
            at = samples.histogram_at[region].tolist()
            cells = np.empty(len(at), dtype=np.object_)
            cells[:] = [samples.histograms[one] if one >= 0 else None for one in at]
        rows.append(_row(found.series.labels_of(place), times, samples.values[region], cells))
    return _data("matrix", [row for row in rows if row])


def scalar_json(value: float, at_ms: int) -> bytes:
    return f'{{"resultType":"scalar","result":[{time_text(at_ms)},"{number_text(value)}"]}}'.encode()


def string_json(text: str, at_ms: int) -> bytes:
    return f'{{"resultType":"string","result":[{time_text(at_ms)},{to_json(text).decode()}]}}'.encode()


def query_answer(data: bytes, warnings: Sequence[str] = (), infos: Sequence[str] = ()) -> Answer:
    """The envelope around data that is JSON already."""
    notes = b""
    if warnings:
        notes += b',"warnings":' + to_json(list(warnings))
    if infos:
        notes += b',"infos":' + to_json(list(infos))
    return Answer(body=b'{"status":"success","data":' + data + notes + b"}")


def _data(kind: str, rows: list[str]) -> bytes:
    return f'{{"resultType":"{kind}","result":[{",".join(rows)}]}}'.encode()


def _metric(labels: Labels) -> str:
    return to_json(dict(labels)).decode()


def _row(labels: Labels, times: Objects, values: Floats, cells: Objects | None) -> str:
    """One series of a matrix; empty if it has no samples."""
    parts = [f'"metric":{_metric(labels)}']
    if cells is not None:
        is_float = np.array([cell is None for cell in cells], dtype=np.bool_)
        told = ",".join(f"[{times[step]},{_histogram(cells[step])}]" for step in np.flatnonzero(~is_float))
        times, values = times[is_float], values[is_float]
        if told:
            parts.append(f'"histograms":[{told}]')
    if len(values):
        pairs = zip(times, number_texts(values), strict=True)
        inside = ",".join([f'[{time},"{text}"]' for time, text in pairs])
        parts.insert(1, f'"values":[{inside}]')
    return f"{{{','.join(parts)}}}" if len(parts) > 1 else ""


def _histogram(histogram: Histogram) -> str:
    buckets = ",".join(_bucket(bucket) for bucket in _shown(histogram))
    listed = f',"buckets":[{buckets}]' if buckets else ""
    return f'{{"count":"{number_text(histogram.count)}","sum":"{number_text(histogram.sum)}"{listed}}}'


def _shown(histogram: Histogram) -> Iterator[Bucket]:
    return (bucket for bucket in all_buckets(histogram) if bucket.count != 0)


def _bucket(bucket: Bucket) -> str:
    """The first number says which ends belong to the bucket: 0 the upper, 1 the lower, 2 none, 3 both."""
    rule = {(False, True): 0, (True, False): 1, (False, False): 2, (True, True): 3}
    ends = rule[bucket.lower_inclusive, bucket.upper_inclusive]
    lower, upper = number_text(bucket.lower), number_text(bucket.upper)
    return f'[{ends},"{lower}","{upper}","{number_text(bucket.count)}"]'
