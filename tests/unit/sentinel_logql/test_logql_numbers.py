"""What queries for numbers give."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest
from logql_world import T0, T0_S, S, at, over, store_of

from harch.base.errors import HarchError
from harch.sentinel.logql.evaluate.context import LogQueryLimits, LogQueryOptions
from harch.sentinel.logql.evaluate.engine import LogqlEngine
from harch.sentinel.model.labels import Labels, Matcher, labels
from harch.sentinel.model.logs import LineChunk, LogRequest
from harch.testing.telemetry_stores import MemoryLogs

WEB, DB = {"app": "web", "env": "prod"}, {"app": "db"}


def small_store() -> MemoryLogs:
    return store_of(
        (
            WEB,
            [
                (second, f"level={'error' if second % 3 == 0 else 'info'} n={second}", {"t": "x"})
                for second in range(60)
            ],
        ),
        (DB, [(second, "n=1.5 took=250ms size=2KB é") for second in range(0, 60, 2)]),
    )


def web(**more: str) -> Labels:
    return labels({**WEB, **more})


def by(**more: str) -> Labels:
    return labels(more)


VALUES: dict[str, object] = {
    'sum by (app) (count_over_time({app=~".+"}[20s]))': {by(app="web"): 19.0, by(app="db"): 9.0},
    'sum(rate({app="web"}[20s]))': {(): 0.95},
    'count_over_time({app="web"}[20s])': {web(t="x"): 19.0},
    'sum without (t) (count_over_time({app="web"}[20s]))': {web(): 19.0},
    'sum by (level) (count_over_time({app="web"} | logfmt [1m]))': {by(level="info"): 40.0, by(level="error"): 19.0},
    'sum by (level) (count_over_time({app="web"} |= "error" [1m]))': {(): 19.0},
    'bytes_over_time({app="db"}[4s])': {by(app="db"): 28.0},
    'bytes_rate({app="db"}[4s] offset 10s)': {by(app="db"): 14.0},
    'bytes_over_time({app="db"} | line_format "é" [4s])': {by(app="db"): 2.0},
    'sum_over_time({app="web"} | logfmt | unwrap n [5s]) ': {
        web(t="x", level="info"): 58 + 59 + 56,
        web(t="x", level="error"): 57.0,
    },
    'sum(sum_over_time({app="web"} | logfmt | unwrap n [5s]))': {(): 230.0},
    'avg_over_time({app="web"} | logfmt | unwrap n [5s]) by (app)': {by(app="web"): 57.5},
    'min_over_time({app="web"} | logfmt | unwrap n [5s]) by (app)': {by(app="web"): 56.0},
    'max_over_time({app="web"} | logfmt | unwrap n [5s]) without (level, t, env)': {by(app="web"): 59.0},
    'first_over_time({app="web"} | logfmt | unwrap n [5s]) by (app)': {by(app="web"): 56.0},
    'last_over_time({app="web"} | logfmt | unwrap n [5s]) by (app)': {by(app="web"): 59.0},
    'stdvar_over_time({app="web"} | logfmt | unwrap n [5s]) by (app)': {by(app="web"): 1.25},
    'quantile_over_time(0.5, {app="web"} | logfmt | unwrap n [5s]) by (app)': {by(app="web"): 57.5},
    'rate({app="web"} | logfmt | unwrap n | level="info" [5s])': {web(t="x", level="info"): 173 / 5},
    'max_over_time({app="db"} | logfmt | unwrap duration(took) [5s]) by (app)': {by(app="db"): 0.25},
    'max_over_time({app="db"} | logfmt | unwrap bytes(size) [5s]) by (app)': {by(app="db"): 2000.0},
    'sum_over_time({app="db"} | logfmt | unwrap missing [5s])': {},
    'absent_over_time({app="nope", env=~".+"}[5s])': {by(app="nope"): 1.0},
    'absent_over_time({app="web"}[5s])': {},
    'absent_over_time({app="web"} | logfmt | level="fatal" [5s])': {by(app="web"): 1.0},
    'topk(1, sum by (app) (count_over_time({app=~".+"}[1m])))': {by(app="web"): 59.0},
    'bottomk(1, sum by (app) (count_over_time({app=~".+"}[1m])))': {by(app="db"): 29.0},
    'count(count_over_time({app=~".+"}[1m]))': {(): 2.0},
    'avg(sum by (app) (count_over_time({app=~".+"}[1m])))': {(): 44.0},
    'sum by (app) (count_over_time({app=~".+"}[1m])) > 30': {by(app="web"): 59.0},
    'sum by (app) (count_over_time({app=~".+"}[1m])) > bool 30': {by(app="web"): 1.0, by(app="db"): 0.0},
    'sum by (app) (count_over_time({app=~".+"}[1m])) / on (app) sum by (app) (count_over_time({app="db"}[1m]))': {
        by(app="db"): 1.0
    },
    'sum by (app, env) (count_over_time({app="web"}[1m])) * on (app) group_left () vector(0)': {},
    'sum by (app) (rate({app=~".+"}[1m])) unless sum by (app) (rate({app="db"}[1m]))': {by(app="web"): 59 / 60},
    'sum(rate({app="nope"}[1m])) or vector(0)': {(): 0.0},
    "vector(1)+vector(1)": {(): 2.0},
    "2 ^ 3 - 1": 7.0,
    "1 > bool 2": 0.0,
    'label_replace(sum by (app) (count_over_time({app="db"}[1m])), "x", "$1!", "app", "(d)b")': {
        by(app="db", x="d!"): 29.0
    },
}


@pytest.mark.parametrize(("query", "expected"), VALUES.items())
def test_values_at_one_time(query: str, expected: object) -> None:
    found = at(small_store(), query)
    assert found == (pytest.approx(expected) if isinstance(expected, dict) else expected)


def test_values_over_steps_count_lines_after_the_start_of_a_window_up_to_its_end() -> None:
    store = store_of((DB, [(0, "a"), (5, "b"), (10, "c"), (30, "d")]))
    assert over(store, 'count_over_time({app="db"}[10s])', 5, 10) == {by(app="db"): [1.0, 2.0, None, 1.0, None]}
    assert over(store, 'count_over_time({app="db"}[5s])', 5, 10) == {by(app="db"): [1.0, 1.0, None, 1.0, None]}
    assert over(store, 'count_over_time({app="db"}[10s] offset 10s)', 5, 10) == {
        by(app="db"): [None, 1.0, 2.0, None, 1.0]
    }
    assert over(store, 'absent_over_time({app="db"}[10s])', 5, 10) == {by(app="db"): [None, None, 1.0, None, 1.0]}


def test_a_counter_in_lines_has_a_rate_with_resets() -> None:
    store = store_of(
        (DB, [(second, f"n={value}") for second, value in ((10, 0), (20, 30), (30, 60), (40, 0), (50, 30))])
    )
    # Increases of 30, 30 and 30 over the 40 s between first and last sample, stretched to both ends of the window.
    found = at(store, 'rate_counter({app="db"} | logfmt | unwrap n [1m])', 60)
    assert found == pytest.approx({by(app="db"): 90 * (50 / 40) / 60})


def test_lines_that_cannot_be_read_make_no_number() -> None:
    store = store_of((DB, [(0, '{"n":1}'), (1, "broken"), (2, '{"n":"many"}')]))
    with pytest.raises(HarchError, match="JSONParserErr") as caught:
        at(store, 'sum(count_over_time({app="db"} | json [1m]))', 30)
    assert caught.value.code == "E0686"
    with pytest.raises(HarchError, match="SampleExtractionErr"):
        at(store, 'sum_over_time({app="db"} | json | __error__="" | unwrap n [1m])', 30)
    clean = 'sum_over_time({app="db"} | json | unwrap n | __error__="" [1m])'
    assert at(store, clean, 30) == {by(app="db"): 1.0}


class Noting(MemoryLogs):
    """Remembers what was asked of it, and hands out only the columns that were asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[LogRequest] = []

    def scan(self, request: LogRequest, stopped: Callable[[], bool]) -> Iterator[LineChunk]:
        self.asked.append(request)
        for chunk in super().scan(request, stopped):
            yield LineChunk(
                chunk.streams,
                chunk.stream_at,
                chunk.times_ns,
                chunk.text_bytes,
                chunk.bodies if request.with_bodies else (),
                chunk.metadata if request.with_metadata else (),
            )

    def streams(self, matchers: Sequence[Matcher], start_ns: int, end_ns: int) -> Sequence[Labels]:
        return super().streams(matchers, start_ns, end_ns)


COLUMNS = {
    'sum by (app) (count_over_time({app=~".+"}[1m]))': (False, False),
    'sum(rate({app=~".+"} |= "n" [1m]))': (False, False),
    'sum(bytes_rate({app="web"} | drop t [1m]))': (False, False),
    'sum by (t) (count_over_time({app="web"}[1m]))': (False, True),
    'count_over_time({app="web"}[1m])': (False, True),
    'sum(count_over_time({app="web"} | t="x" [1m]))': (False, True),
    'sum(count_over_time({app="web"} | logfmt [1m]))': (True, True),
    'sum(bytes_over_time({app="web"} | line_format "x" [1m]))': (True, True),
}


@pytest.mark.parametrize(("query", "columns"), COLUMNS.items())
def test_only_columns_that_matter_are_read(query: str, columns: tuple[bool, bool]) -> None:
    store, full = Noting(), small_store()
    store._lines = full._lines
    assert at(store, query) == at(full, query)
    assert [(one.with_bodies, one.with_metadata) for one in store.asked] == [columns]


def test_a_trace_id_is_looked_for_by_the_store() -> None:
    store = Noting()
    store._lines = small_store()._lines
    at(store, 'sum(count_over_time({app="web"} | t="x" and level="" [1m]))')
    assert [(one.name, one.value) for one in store.asked[0].metadata] == [("t", "x")]
    at(store, 'sum(count_over_time({app="web"} | env="prod" [1m]))')
    assert store.asked[1].metadata == ()


def test_too_many_series_are_refused_and_so_is_a_query_that_takes_too_long() -> None:
    store = store_of((DB, [(second, f"n={second}") for second in range(50)]))
    with pytest.raises(HarchError) as caught:
        at(store, 'count_over_time({app="db"} | logfmt [1m])', limits=LogQueryLimits(series_max=10))
    assert caught.value.code == "E0687"
    assert at(store, 'sum(count_over_time({app="db"} | logfmt [1m]))', limits=LogQueryLimits(series_max=10))
    engine = LogqlEngine()
    tree = engine.tree('count_over_time({app="db"}[1m])')
    with pytest.raises(HarchError) as caught:
        engine.instant(tree, T0_S * 1000, store, T0, LogQueryOptions(is_cancelled=lambda: True))
    assert caught.value.code == "E0663"
    with pytest.raises(HarchError) as caught:
        engine.range(tree, 0, T0_S * 1000, 1000, store, T0, LogQueryOptions())
    assert caught.value.code == "E0662"


def test_counting_lines_and_bytes_looks_at_no_text() -> None:
    store = Noting()
    store._lines = small_store()._lines
    found = LogqlEngine().counted((), T0, T0 + 60 * S, store, T0, LogQueryOptions())
    assert (found.lines, store.asked[0].with_bodies) == (90, False)
