"""How is the result of a query written? Prometheus' JSON: vectors and matrices, floats and histograms."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import orjson

from harch.sentinel.http.messages import HttpReply, to_json
from harch.sentinel.model.histograms import NativeHistogram
from harch.sentinel.model.labels import Labels
from harch.sentinel.promql.evaluate.values import (
    Floats,
    MatrixResult,
    Objects,
    QueryValue,
    SamplesResult,
    ScalarResult,
    StringResult,
    VectorResult,
)
from harch.sentinel.promql.histograms.buckets import HistogramBucket, all_buckets

_PLAIN_FROM, _PLAIN_BELOW = 1e-6, 1e21


def number_text(value: float) -> str:
    if value != value:
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    if value == 0:
        return "-0" if math.copysign(1.0, value) < 0 else "0"
    size = abs(value)
    digits = repr(value)
    if _PLAIN_FROM <= size < _PLAIN_BELOW:
        return _plain(digits)
    mantissa, _, power = digits.partition("e")
    sign = "-" if power[0] == "-" else "+"
    return f"{mantissa.removesuffix('.0')}e{sign}{power.lstrip('+-').zfill(2)}"


def _plain(digits: str) -> str:
    """`1e-05` as `0.00001`, `1.5e+17` as `150000000000000000`, `2.0` as `2`."""
    mantissa, _, power = digits.partition("e")
    if not power:
        return mantissa.removesuffix(".0")
    sign = "-" if mantissa[0] == "-" else ""
    whole, _, fraction = mantissa.lstrip("-").partition(".")
    fraction = "" if fraction == "0" else fraction
    shift = int(power)
    if shift < 0:
        return f"{sign}0.{'0' * (-shift - 1)}{whole}{fraction}"
    return f"{sign}{whole}{fraction}{'0' * (shift - len(fraction))}"


def format_numbers(values: npt.NDArray[np.float64]) -> list[str]:
    """The texts of many numbers. Ordinary ones are written by the JSON encoder, ten times as fast as one by one."""
    if not len(values):
        return []
    size = np.abs(values)
    odd = ~((size >= 1e-4) & (size < 1e15))  # where the encoder and Prometheus differ: exponents, NaN, infinities, -0
    encoded = orjson.dumps(np.where(odd, 0.0, values), option=orjson.OPT_SERIALIZE_NUMPY).decode()
    strings = [text[:-2] if text[-2:] == ".0" else text for text in encoded[1:-1].split(",")]
    for place in np.flatnonzero(odd):
        strings[place] = number_text(float(values[place]))
    return strings


def format_times(times_ms: npt.NDArray[np.int64]) -> list[str]:
    """The texts of many times. Whole seconds, which most steps are, are written by the JSON encoder."""
    if not len(times_ms):
        return []
    seconds, rest = np.divmod(times_ms, 1000)
    if rest.any():
        return [time_text(time) for time in times_ms.tolist()]
    return orjson.dumps(seconds, option=orjson.OPT_SERIALIZE_NUMPY).decode()[1:-1].split(",")


def time_text(time_ms: int) -> str:
    """Seconds with up to three decimals, as a JSON number."""
    seconds, rest = divmod(abs(time_ms), 1000)
    sign = "-" if time_ms < 0 else ""
    return f"{sign}{seconds}.{rest:03}" if rest else f"{sign}{seconds}"


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
    strings = format_numbers(vector.values)
    rows = []
    for place in range(vector.series.count):
        metric = _metric(vector.series.labels_of(place))
        histogram = None if vector.histograms is None else vector.histograms[place]
        if histogram is not None:
            rows.append(f'{{"metric":{metric},"histogram":[{time},{_histogram(histogram)}]}}')
        else:
            rows.append(f'{{"metric":{metric},"value":[{time},"{strings[place]}"]}}')
    return _data("vector", rows)


def matrix_json(matrix: MatrixResult) -> bytes:
    times = np.array(format_times(matrix.times), dtype=np.object_)
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
        times = np.array(format_times(samples.timestamps[region]), dtype=np.object_)
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


def query_answer(data: bytes, warnings: Sequence[str] = (), infos: Sequence[str] = ()) -> HttpReply:
    """The envelope around data that is JSON already."""
    notes = b""
    if warnings:
        notes += b',"warnings":' + to_json(list(warnings))
    if infos:
        notes += b',"infos":' + to_json(list(infos))
    return HttpReply(body=b'{"status":"success","data":' + data + notes + b"}")


def _data(kind: str, rows: list[str]) -> bytes:
    return f'{{"resultType":"{kind}","result":[{",".join(rows)}]}}'.encode()


def _metric(labels: Labels) -> str:
    return to_json(dict(labels)).decode()


def _row(labels: Labels, times: Objects, values: Floats, cells: Objects | None) -> str:
    """One series of a matrix; empty if it has no samples."""
    parts = [f'"metric":{_metric(labels)}']
    if cells is not None:
        is_float = np.array([cell is None for cell in cells], dtype=np.bool_)
        listed = ",".join(f"[{times[step]},{_histogram(cells[step])}]" for step in np.flatnonzero(~is_float))
        times, values = times[is_float], values[is_float]
        if listed:
            parts.append(f'"histograms":[{listed}]')
    if len(values):
        pairs = zip(times, format_numbers(values), strict=True)
        inside = ",".join([f'[{time},"{text}"]' for time, text in pairs])
        parts.insert(1, f'"values":[{inside}]')
    return f"{{{','.join(parts)}}}" if len(parts) > 1 else ""


def _histogram(histogram: NativeHistogram) -> str:
    buckets = ",".join(_bucket(bucket) for bucket in _filled_buckets(histogram))
    listed = f',"buckets":[{buckets}]' if buckets else ""
    return f'{{"count":"{number_text(histogram.count)}","sum":"{number_text(histogram.sum)}"{listed}}}'


def _filled_buckets(histogram: NativeHistogram) -> Iterator[HistogramBucket]:
    return (bucket for bucket in all_buckets(histogram) if bucket.count != 0)


def _bucket(bucket: HistogramBucket) -> str:
    """The first number says which ends belong to the bucket: 0 the upper, 1 the lower, 2 none, 3 both."""
    rule = {(False, True): 0, (True, False): 1, (False, False): 2, (True, True): 3}
    ends = rule[bucket.lower_inclusive, bucket.upper_inclusive]
    lower, upper = number_text(bucket.lower), number_text(bucket.upper)
    return f'[{ends},"{lower}","{upper}","{number_text(bucket.count)}"]'
