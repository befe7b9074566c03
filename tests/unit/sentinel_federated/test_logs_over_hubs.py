"""Log lines stay in their country; counts of large groups of streams cross borders."""

from __future__ import annotations

import random

import msgspec
import numpy as np
import pytest
from owner_world import HOME, HOUR_S, Owner, rule, values

from harch.sentinel.federated.disclosure.answer import OwnHub, TenantReaders, answer
from harch.sentinel.federated.disclosure.ledger import Memory
from harch.sentinel.federated.messages import FederatedAnswer, Question
from harch.sentinel.federated.query.log_split import plan_lines, plan_logs
from harch.sentinel.federated.query.merge import lines_together, merge, merge_notes
from harch.sentinel.logql.evaluate.context import LogQueryOptions
from harch.sentinel.logql.evaluate.engine import LogqlEngine
from harch.sentinel.logql.evaluate.lines import LogEntry
from harch.sentinel.model.labels import Labels, labels
from harch.sentinel.model.logs import LogBatch
from harch.sentinel.promql.evaluate.values import QueryResult, StepGrid
from harch.testing.federated_telemetry import difference, result_points
from harch.testing.telemetry_stores import MemoryLogs

SECOND_NS = 10**9


def stream(number: int, **more: str) -> Labels:
    return labels({"node": f"node-{number}", "job": "agent", **more})


def written(store: MemoryLogs, one: Labels, times_s: list[int], text: str = "GPU is warm", level: str = "info") -> None:
    metadata = [labels({"level": level})] * len(times_s)
    store.append([LogBatch(one, [time_s * SECOND_NS for time_s in times_s], [text] * len(times_s), metadata)])


def hub(streams: int = 12, odd: dict[str, str] | None = None) -> MemoryLogs:
    store = MemoryLogs()
    for number in range(streams):
        more = {"zone": "north", **((odd or {}) if number == streams - 1 else {})}
        written(store, stream(number, **more), list(range(10 + number, 2 * HOUR_S, 60)))
        written(store, stream(number, **more), list(range(40 + number, 2 * HOUR_S, 300)), "password is 1234", "error")
    return store


def test_counts_of_many_streams_cross_a_border_and_are_right() -> None:
    owner = Owner(logs=hub())
    assert values(owner.ask_logs('sum(count_over_time({job="agent"}[10m]))')) == {"": [12 * 12.0]}
    assert values(owner.ask_logs('sum by (level) (rate({job="agent"}[5m]))')) == {
        "error": [12 / 300],
        "info": [12 * 5 / 300],
    }
    assert values(owner.ask_logs('sum(bytes_over_time({job="agent"} | level="error" [5m]))')) == {"": [12 * 16.0]}


@pytest.mark.parametrize(
    ("expression", "broken"),
    [
        ('{job="agent"}', "lines"),
        ('{job="agent"} |= "password"', "lines"),
        ('sum(count_over_time({job="agent"} |= "password" [5m]))', "filter"),
        ('sum(count_over_time({job="agent"} |~ "pass.*12" [5m]))', "filter"),
        ('sum(count_over_time({job="agent"} | json [5m]))', "filter"),
        ('sum(count_over_time({job="agent"} | json | user="x" [5m]))', "filter"),
        ('sum(count_over_time({job="agent"} | trace_id="ab" [5m]))', "filter"),
        ('sum(count_over_time({job="agent"} | level="error" or trace_id="ab" [5m]))', "filter"),
        ('sum(count_over_time({node="node-1"}[5m]))', "labels"),
        ('sum by (node) (count_over_time({job="agent"}[5m]))', "labels"),
        ('sum without (node) (count_over_time({job="agent"}[5m]))', "labels"),
        ('topk(1, count_over_time({job="agent"}[5m]))', "aggregate"),
        ('count_over_time({job="agent"}[5m])', "aggregate"),
        ('count(count_over_time({job="agent"}[5m]))', "aggregate"),
        ('sum(count_over_time({job="agent"}[5m])) > 3', "aggregate"),
        ('sum(count_over_time({job="agent"}[5m]) > 3)', "aggregate"),
        ('sum(max_over_time({job="agent"} | unwrap size [5m]))', "function"),
        ('sum(absent_over_time({job="agent"}[5m]))', "function"),
        ('sum(count_over_time({job="agent"}[1m]))', "time"),
        ('sum(count_over_time({job="agent"}[5m] offset 7s))', "time"),
    ],
)
def test_what_shows_single_lines_or_streams_is_refused_abroad(expression: str, broken: str) -> None:
    assert rule(Owner(logs=hub()).ask_logs(expression)) == broken


def test_lines_of_which_more_may_come_are_not_told_yet() -> None:
    owner = Owner(logs=hub())
    told = owner.ask_logs('sum(count_over_time({job="agent"}[5m]))', at_s=2 * HOUR_S)
    assert told.series == ()
    assert told.warnings
    assert rule(owner.ask_logs('sum(count_over_time({job="agent"}[5m]))', at_s=HOUR_S + 1)) == "time"


def test_all_and_all_but_one_stream_are_not_both_told() -> None:
    owner = Owner(logs=hub(odd={"zone": "south"}))
    assert values(owner.ask_logs('sum(count_over_time({job="agent"}[5m]))'))
    assert values(owner.ask_logs('sum(count_over_time({zone="north"}[5m]))')) == {}
    other = Owner(logs=hub(odd={"zone": "south"}))
    assert values(other.ask_logs('sum(count_over_time({zone="north"}[5m]))'))
    assert values(other.ask_logs('sum(count_over_time({job="agent"}[5m]))')) == {}


def test_two_ranges_do_not_give_away_a_quantum_in_which_few_wrote() -> None:
    store = hub()
    written(store, stream(3, zone="north"), [3700], "one alone", "critical")
    owner = Owner(logs=store)
    by_level = 'sum by (level) (count_over_time({job="agent"}[%s]))'
    assert set(values(owner.ask_logs(by_level % "1h", at_s=2 * HOUR_S - 300))) == {"error", "info"}
    told = owner.ask_logs('sum(count_over_time({job="agent"} | level!="critical" [1h]))', at_s=2 * HOUR_S - 300)
    assert values(told)
    assert values(owner.ask_logs('sum(count_over_time({job="agent"}[1h]))', at_s=2 * HOUR_S - 300)) == {}


@pytest.mark.parametrize("seed", range(2))
def test_equations_over_counts_speak_of_no_fewer_than_k_streams(seed: int) -> None:
    chance = random.Random(seed)
    store, marks = MemoryLogs(), []
    for number in range(40):
        mark = {"zone": chance.choice("ab"), "type": chance.choice("123"), "model": chance.choice("xy")}
        marks.append(mark)
        written(store, stream(number, **mark), [HOUR_S - 100 - chance.randrange(150)])
    owner = Owner(logs=store)
    rows = []
    for _ in range(150):
        zone, kind = chance.choice(("a", "b", "a|b")), chance.choice(("1", "2", "1|2", "2|3", "1|2|3"))
        by = chance.choice(("", "model", "zone", "model, zone"))
        for one in owner.ask_logs(f'sum by ({by}) (count_over_time({{zone=~"{zone}",type=~"{kind}"}}[5m]))').series:
            group = dict(one.labels)
            inside = [
                mark["zone"] in zone and mark["type"] in kind and all(mark[key] == group[key] for key in group)
                for mark in marks
            ]
            assert one.values[0] == sum(inside)
            rows.append(inside)
    matrix = np.array(rows)
    _, sizes = np.unique(matrix[:, matrix.any(axis=0)], axis=1, return_counts=True)
    assert len(rows) > 10
    assert sizes.min() >= 5


def answers(parts: tuple[object, ...], stores: dict[str, MemoryLogs]) -> list[FederatedAnswer]:
    asked = Question(id="q", tenant="t", requested_by="me", parts=parts)  # type: ignore[arg-type]
    found = []
    for hub_id, store in stores.items():
        owner = OwnHub(hub_id, "MA", lambda _, logs=store: TenantReaders(logs=logs), Memory())  # type: ignore[misc]
        told = answer(asked, HOME, owner, now_s=7200.0)
        found.append(msgspec.msgpack.decode(msgspec.msgpack.encode(told), type=FederatedAnswer))
    return found


def alike_hubs() -> tuple[dict[str, MemoryLogs], MemoryLogs]:
    """Ten streams on two hubs, and all of them in one place."""
    chance = random.Random(1)
    stores, central = {f"hub-{number}": MemoryLogs() for number in range(2)}, MemoryLogs()
    for number in range(10):
        one = stream(number, zone=chance.choice("ab"))
        times, level = sorted(chance.sample(range(600, 3600), 40)), chance.choice(("info", "error"))
        for store in (stores[f"hub-{number % 2}"], central):
            written(store, one, times, f"took={number * 3} word-{number % 3}", level)
    return stores, central


@pytest.mark.parametrize(
    "text",
    [
        'sum by (zone) (count_over_time({job="agent"}[5m]))',
        'sum(rate({job="agent"} |= "word-1" [5m])) / 2',
        'count_over_time({job="agent"}[5m]) > 3',
        'avg by (zone) (bytes_rate({job="agent"}[5m]))',
        'stddev(count_over_time({job="agent"}[10m]))',
        'topk(20, sum by (node) (count_over_time({job="agent"}[10m])))',
        'max by (zone) (max_over_time({job="agent"} | logfmt | unwrap took [10m]))',
        'max_over_time({job="agent"} | logfmt | unwrap took [10m]) by (zone)',
        'absent_over_time({job="none"}[5m])',
        'absent_over_time({job="agent"}[5m])',
        'label_replace(sum by (zone) (rate({job="agent"}[5m])), "site", "$1-x", "zone", "(.*)")',
        'sum(count_over_time({zone="a"}[5m])) / sum(count_over_time({zone=~"a|b"}[5m]))',
    ],
)
def test_numbers_of_logs_over_hubs_are_those_of_one_store(text: str) -> None:
    stores, central = alike_hubs()
    grid = StepGrid.between(900_000, 3_300_000, 300_000)
    cut = plan_logs(text, grid)
    merged = merge(cut, answers(cut.parts, stores))
    engine = LogqlEngine()
    found = engine.range(
        engine.tree(text), grid.start_ms, grid.end_ms, grid.step_ms, central, 7200 * SECOND_NS, LogQueryOptions()
    )
    assert not isinstance(found.value, list)
    assert merged.refused == ()
    assert difference(result_points(merged.result), result_points(QueryResult(found.value))) == ""


def test_lines_of_hubs_of_one_country_come_in_the_order_of_time() -> None:
    stores, central = alike_hubs()
    cut = plan_lines('{job="agent"} |= "word-1"', start_ns=0, end_ns=7200 * SECOND_NS, limit=50)
    told = answers((cut.part,), stores)
    lines = lines_together(told, limit=50)
    (all_told,) = answers((cut.part,), {"central": central})
    assert [line.time_ns for line in lines] == [
        line.time_ns for line in msgspec.json.decode(all_told.results[0].body, type=list[LogEntry])
    ]
    assert merge_notes(told).refused == ()
