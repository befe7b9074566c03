"""Does the judge judge? Files are read, answers compared, and wrong ones found."""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from pathlib import Path

import httpx
import numpy as np
import pytest

from harch.sentinel.model.histograms import NativeHistogram, ResetHint, stale_mask
from harch.sentinel.model.labels import labels
from harch.sentinel.promql.syntax.parser import parse
from harch.testing.promqltest.commands import (
    Clear,
    Eval,
    EvaluationGrid,
    EvaluationResult,
    ExpectedValue,
    ExpectSubject,
    Load,
    QueryFailed,
    ResultSeries,
    ScriptError,
    SeriesSamples,
)
from harch.testing.promqltest.comparison import ResultMismatch, check_answer, close, displayed
from harch.testing.promqltest.runner import (
    as_json,
    as_table,
    can_be_middle_step,
    fixed_queries,
    run_eval,
    run_file,
    with_custom_buckets,
)
from harch.testing.promqltest.script import read_script, read_start_offsets, read_values
from harch.testing.promqltest.server import ServerTarget, encode, read_reply, timed

SCRIPT = """
# A comment.
load 5m
  up{job="a}b"} 1 2 _ stale
  up@st _ -1m
  up 0+10x2

eval instant at 5m up
  expect no_warn
  expect info msg: PromQL info: x (1:1)
  up{job="a}b"} 2

eval range from 0 to 10m step 5m 1
  {} 1 1 1

eval instant at 1m "x"
  expect string `x`

eval_fail instant at 0 -"x"

clear
"""


def floats(text: str) -> list[float | None]:
    return [None if value is None else value.content for value in read_values(text)]  # type: ignore[misc]


def test_files_are_read_into_commands() -> None:
    load, instant, span, text, failing, clear = read_script(SCRIPT)
    assert isinstance(load, Load)
    assert load.step_ms == 300_000
    assert [series.start_offsets_ms for series in load.series] == [(), (None, -60_000)]
    assert isinstance(instant, Eval)
    assert instant.expected(ExpectSubject.INFO)[0].text == "PromQL info: x (1:1)"
    assert instant.series[0].labels == labels({"__name__": "up", "job": "a}b"})
    assert isinstance(span, Eval)
    assert list(span.grid.times()) == [0, 300_000, 600_000]
    assert isinstance(text, Eval)
    assert text.text == "x"
    assert isinstance(failing, Eval)
    assert failing.expected(ExpectSubject.FAIL)
    assert isinstance(clear, Clear)


@pytest.mark.parametrize(
    "text", ["lod 5m", "load", "load 5m\n  up{ 1", "load 5m\n  up 1x", "eval 5", "eval instant at x up"]
)
def test_files_that_are_none_are_refused_with_their_line(text: str) -> None:
    with pytest.raises(ScriptError, match="line"):
        read_script(text)


def test_sequences_expand() -> None:
    assert floats("1 2x2 _x2 1-2x2 .5") == [1, 2, 2, 2, None, None, 1, -1, -3, 0.5]
    assert floats("1e2+1e1x1 -Inf") == [100, 110, float("-inf")]
    values = read_values("{{count:1 buckets:[1]}}+{{count:2 buckets:[1 1]}}x2 stale")
    assert [value.content.count for value in values[:3] if value and isinstance(value.content, NativeHistogram)] == [
        1,
        3,
        5,
    ]
    stale = values[3]
    assert stale is not None
    assert isinstance(stale.content, float)
    assert stale_mask(np.array([stale.content])).all()
    with pytest.raises(ValueError, match="values"):
        read_values("1x99999999")


def test_start_times_are_relative_to_their_samples() -> None:
    assert read_start_offsets("_ -30s-1mx2 0 +1m") == (None, -30_000, -90_000, -150_000, 0, 60_000)
    series = SeriesSamples((("__name__", "a"),), read_values("5 6 7"), (None, -1000))
    assert timed(series, 10_000) == [(0, 5.0, 0), (10_000, 6.0, 9_000), (20_000, 7.0, 0)]


def test_numbers_may_differ_by_a_millionth_but_not_from_zero() -> None:
    assert close(1.0, 1.0000001)
    assert not close(1.0, 1.00001)
    assert not close(0.0, 1e-12)
    assert close(float("nan"), float("nan"))
    assert not close(float("inf"), 1e308)


def evaluation(expected: str) -> Eval:
    command = read_script(f"eval instant at 0 x\n{expected}")[0]
    assert isinstance(command, Eval)
    return command


def answer(*series: tuple[dict[str, str], float]) -> EvaluationResult:
    return EvaluationResult("vector", tuple(ResultSeries(labels(pairs), ((0, value),)) for pairs, value in series))


NOW = EvaluationGrid(0, 0)


def test_right_answers_pass_and_wrong_ones_say_why() -> None:
    command = evaluation('  a{b="c"} 1\n  a{b="d"} 2')
    right = answer(({"__name__": "a", "b": "d"}, 2.0), ({"__name__": "a", "b": "c"}, 1.0))
    check_answer(command, right, NOW)
    with pytest.raises(ResultMismatch, match="place"):
        check_answer(replace(command, is_ordered=True), right, NOW)
    with pytest.raises(ResultMismatch, match="missing"):
        check_answer(command, answer(({"__name__": "a", "b": "c"}, 1.0)), NOW)
    with pytest.raises(ResultMismatch, match="unexpected"):
        check_answer(command, answer(({"b": "c"}, 1.0)), NOW)
    with pytest.raises(ResultMismatch, match="expected 1, got 3"):
        check_answer(command, answer(({"__name__": "a", "b": "c"}, 3.0)), NOW)
    with pytest.raises(ResultMismatch, match="scalar"):
        check_answer(command, EvaluationResult("scalar", value=1.0), NOW)


def test_annotations_are_compared_in_both_directions() -> None:
    command = evaluation("  expect warn msg: PromQL warning: w (1:3)\n  expect no_info")
    right = EvaluationResult("vector", warnings=("PromQL warning: w (1:3)",))
    check_answer(command, right, NOW)
    moved = replace(right, warnings=("PromQL warning: w (1:9)",))
    check_answer(command, moved, NOW, positions=False)
    for wrong in (
        EvaluationResult("vector"),
        moved,
        replace(right, infos=("i",)),
        replace(right, warnings=(*right.warnings, "other")),
    ):
        with pytest.raises(ResultMismatch):
            check_answer(command, wrong, NOW)


def test_histograms_are_compared_bucket_by_bucket_and_by_hint_if_it_is_written() -> None:
    command = evaluation("  {} {{count:3 sum:2 buckets:[1 2] counter_reset_hint:gauge}}")
    expected = command.series[0].values[0]
    assert expected is not None
    histogram = expected.content
    assert isinstance(histogram, NativeHistogram)

    def given(point: object) -> EvaluationResult:
        return EvaluationResult("vector", (ResultSeries((), ((0, point),)),))  # type: ignore[arg-type]

    check_answer(command, given(histogram), NOW)
    check_answer(command, given(displayed(histogram)), NOW)
    for wrong in (
        replace(histogram, reset_hint=ResetHint.UNKNOWN),
        replace(histogram, positive_counts=(1.0, 3.0)),
        replace(histogram, schema=1),
        displayed(replace(histogram, positive_counts=(1.0, 3.0))),
        3.0,
    ):
        with pytest.raises(ResultMismatch):
            check_answer(command, given(wrong), NOW)


def test_queries_are_asked_again_at_fixed_times() -> None:
    texts = fixed_queries(parse("rate(a[1m]) + b offset 1m + c @ 5 + max_over_time(d[1h:])"), 60_000)
    assert [when for _, when in texts] == [-600_000, 0, 12_000, 60_000, 600_000]
    fixed = "rate(a[1m] @ 60.000) + b @ 60.000 offset 1m + c @ 5.000 + max_over_time(d[1h:] @ 60.000)"
    assert {text for text, _ in texts} == {fixed}
    assert fixed_queries(parse("time()"), 60_000) == []
    assert not can_be_middle_step(parse("a[range()]"))
    assert not can_be_middle_step(parse("a @ end()"))
    assert can_be_middle_step(parse("a offset (1m * 2)"))


def test_classic_histograms_become_custom_buckets() -> None:
    load = read_script(
        """load 1m
  h_bucket{le="1"} 1 2
  h_bucket{le="5"} 3 4
  h_bucket{le="+Inf"} 4 6
  h_count 4 6
  h_sum 9 _
  other 1"""
    )[0]
    assert isinstance(load, Load)
    (series,) = with_custom_buckets(load.series)
    assert series.labels == (("__name__", "h"),)
    first = series.values[0]
    assert first is not None
    assert isinstance(first.content, NativeHistogram)
    assert (first.content.custom_bounds, first.content.positive_counts, first.content.sum) == ((1, 5), (1, 2, 1), 9)


class Table:
    """A target that knows the answers of some queries."""

    def __init__(self, known: dict[str, EvaluationResult]) -> None:
        self.known = known
        self.loaded = 0
        self.cleared = 0

    def clear(self) -> None:
        self.cleared += 1

    def load(self, step_ms: int, series: tuple[SeriesSamples, ...]) -> None:
        self.loaded += len(series)

    def query(self, text: str, grid: EvaluationGrid) -> EvaluationResult:
        if text not in self.known:
            raise QueryFailed(f"{text} is not known")
        return self.known[text]

    def close(self) -> None:
        pass


def test_files_are_counted_with_native_histograms_apart(tmp_path: Path) -> None:
    path = tmp_path / "x.test"
    path.write_text(
        "load 1m\n  a 1\n\neval range from 0 to 1m step 1m b\n\neval range from 0 to 1m step 1m c\n\n"
        "load 1m\n  h {{count:1}}\n\neval range from 0 to 1m step 1m h\n\n"
        "eval range from 0 to 1m step 1m sum(h) + e\n  expect fail\n\neval range from 0 to 1m step 1m b\n"
    )
    target = Table({"b": EvaluationResult("matrix"), "h": EvaluationResult("matrix")})
    outcome = run_file(path, target)
    assert outcome.counts(histograms=False) == (2, 3)
    assert outcome.counts(histograms=True) == (2, 2)
    assert (target.loaded, target.cleared) == (2, 1)
    report = json.loads(json.dumps(as_json([outcome])))
    assert report["plain"] == {"passed": 2, "evals": 3, "percent": 66.67}
    assert report["files"][0]["failed"][0]["line"] == 6
    assert "query failed: c is not known" in as_table([outcome], failures=5, totals=False)


def fields(body: bytes) -> list[tuple[int, int | bytes]]:
    """A protobuf message taken apart, without its schema."""
    found: list[tuple[int, int | bytes]] = []
    place = 0

    def varint() -> int:
        nonlocal place
        value = shift = 0
        while True:
            byte = body[place]
            place += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while place < len(body):
        tag = varint()
        if tag & 7 == 0:
            found.append((tag >> 3, varint()))
        elif tag & 7 == 1:
            found.append((tag >> 3, body[place : place + 8]))
            place += 8
        else:
            length = varint()
            found.append((tag >> 3, body[place : place + length]))
            place += length
    return found


def test_loads_travel_as_remote_write_2() -> None:
    one = read_values("{{schema:-1 count:3 sum:2 buckets:[3]}}")[0]
    assert isinstance(one, ExpectedValue)
    body = encode([(labels({"__name__": "a", "b": "c"}), [(-5, 1.5, 0), (7, one.content, 3)])])
    parts = fields(body)
    assert [text for number, text in parts if number == 4] == [b"", b"__name__", b"a", b"b", b"c"]
    (series,) = (content for number, content in parts if number == 5)
    assert isinstance(series, bytes)
    inside = fields(series)
    assert inside[0] == (1, bytes([1, 2, 3, 4]))
    sample = dict(fields(inside[1][1]))  # type: ignore[arg-type]
    assert sample == {1: struct.pack("<d", 1.5), 2: (1 << 64) - 5}
    histogram = dict(fields(inside[2][1]))  # type: ignore[arg-type]
    assert (histogram[4], histogram[15], histogram[17]) == (1, 7, 3)
    assert histogram[2] == struct.pack("<d", 3.0)


def test_servers_are_asked_as_a_new_tenant_after_each_clear() -> None:
    tenants: list[str] = []
    paths: list[str] = []

    def reply(request: httpx.Request) -> httpx.Response:
        tenants.append(request.headers["X-Scope-OrgID"])
        paths.append(request.url.path)
        if request.url.path.endswith("write"):
            return httpx.Response(204)
        data = {"resultType": "vector", "result": [{"metric": {"a": "b"}, "value": [5, "+Inf"]}]}
        return httpx.Response(200, json={"status": "success", "data": data, "infos": ["PromQL info: i"]})

    target = ServerTarget("http://x/", client=httpx.Client(transport=httpx.MockTransport(reply)))
    target.load(1000, (SeriesSamples((("__name__", "a"),), read_values("1x5")),))
    got = target.query("a", EvaluationGrid(5000, 5000))
    assert got == EvaluationResult(
        "vector", (ResultSeries((("a", "b"),), ((5000, float("inf")),)),), got.value, infos=("PromQL info: i",)
    )
    target.clear()
    target.query("a", EvaluationGrid(0, 1000, 1000))
    assert paths == ["/api/v1/write", "/api/v1/query", "/api/v1/query_range"]
    assert tenants[0] == tenants[1] != tenants[2]


def test_json_of_histograms_strings_and_errors_is_understood() -> None:
    point = [1, {"count": "3", "sum": "2", "buckets": [[0, "0.5", "1", "3"]]}]
    series = {"metric": {}, "values": [[0, "1"]], "histograms": [point]}
    got = read_reply(200, {"status": "success", "data": {"resultType": "matrix", "result": [series]}})
    assert got.series[0].points[1][1] == displayed(read_values("{{count:3 sum:2 buckets:[3]}}")[0].content)  # type: ignore[union-attr,arg-type]
    text = read_reply(200, {"status": "success", "data": {"resultType": "string", "result": [0, "x"]}})
    assert text.value == "x"
    with pytest.raises(QueryFailed, match="no such thing"):
        read_reply(422, {"status": "error", "error": "no such thing"})


class Shifty(Table):
    """Answers right when asked plainly, and wrong in one other way of asking."""

    def __init__(self, wrong: str) -> None:
        super().__init__({})
        self.wrong = wrong
        self.asked: list[tuple[str, bool]] = []

    def query(self, text: str, grid: EvaluationGrid) -> EvaluationResult:
        self.asked.append((text, grid.is_instant))
        way = ("fixed" if "@" in text else "plain") + ("" if grid.is_instant else " range")
        value = 2.0 if way == self.wrong else 1.0
        points = tuple((time_ms, value) for time_ms in grid.times())
        return EvaluationResult("vector" if grid.is_instant else "matrix", (ResultSeries((), points),))


@pytest.mark.parametrize(
    ("wrong", "variant"),
    [("plain range", "as middle step"), ("fixed", "@ 60.000) at -600000 ms"), ("fixed range", "around"), ("none", "")],
)
def test_every_way_of_asking_is_judged(wrong: str, variant: str) -> None:
    command = read_script("eval instant at 1m sum(a)\n  {} 1")[0]
    assert isinstance(command, Eval)
    target = Shifty(wrong)
    outcome = run_eval(command, target)
    assert outcome.passed is (wrong == "none")
    assert variant in outcome.variant
    if outcome.passed:
        assert len(target.asked) == 12
