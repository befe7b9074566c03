"""LogQL over the archive gives what it gives over lines in memory: what is pushed down means the same there."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from logql_world import T0, T0_S, S, at, entries, found_labels, over

from harch.sentinel.archive.folder import ArchiveFolder
from harch.sentinel.model.labels import labels
from harch.sentinel.model.logs import LineOrder, LogBatch, LogStore
from harch.testing.clock import SimClock
from harch.testing.telemetry_stores import MemoryLogs

LEVELS = ("info", "warn", "error")


def batches() -> Iterator[LogBatch]:
    for app in range(4):
        count = 150
        bodies = [
            f'{{"level":"{LEVELS[place % 3]}","ms":{place},"ip":"10.0.{app}.{place}"}}'
            if app % 2
            else f'level={LEVELS[place % 3]} ms={place} msg="a.b é {place * 7} (x)"\nsecond line'
            for place in range(count)
        ]
        times = [T0 + (place * 4 + app) * S for place in range(count)]
        metadata = [
            labels({"trace_id": f"t{place % 5}", "app": "hidden" if place % 50 == 0 else ""}) for place in range(count)
        ]
        yield LogBatch(labels({"app": f"app{app}", "env": "prod" if app else ""}), times, bodies, metadata)


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LogStore, MemoryLogs]]:
    clock = SimClock(datetime.fromtimestamp(T0_S + 700, UTC))
    folder = ArchiveFolder(tmp_path_factory.mktemp("archive"), clock)
    archive, memory = folder.logs("default"), MemoryLogs()
    for place, batch in enumerate(batches()):
        archive.append([batch])
        memory.append([batch])
        if place == 1:
            asyncio.run(clock.advance(7200))
            archive.maintain()  # what came before is in files, what comes after in memory
    yield archive, memory
    folder.close()


LINES = [
    '{app=~".+"}',
    '{app="app0"} |= "a.b"',
    '{app="app0"} |= "é 7" or "(x)"',
    '{app=~"app.*"} != "error" != "é"',
    '{app=~".+"} |~ "ms.{2,3}1[05]"',
    '{app=~".+"} |~ "x.*second" or "10.0.3.[1-5]"',
    '{app=~".+"} !~ "warn|info" or "ms=2"',
    '{app=~".+"} |> "<_>warn<_>(x)<_>"',
    '{app=~".+"} !> "level=<_>"',
    '{app=~".+"} |= ip("10.0.3.0/24")',
    '{env="prod"} | trace_id="t3"',
    '{app="app0", env=""} | trace_id=~"t[12]" | logfmt | ms > 50',
    '{app=~".+"} | app_extracted="hidden"',
    '{app="app1"} | json | level="error" |= "10.0" | line_format "{{.ip}} {{.ms}}" |= "9"',
    '{app="app2"} | logfmt | label_format l="{{.level | upper}}" | l="WARN" | drop msg',
]
NUMBERS = [
    'sum by (app) (count_over_time({app=~".+"}[2m]))',
    'count_over_time({app="app1"}[5m])',
    'sum by (trace_id) (rate({app=~".+"} |= "info" [3m]))',
    'sum by (level) (bytes_over_time({app=~"app[13]"} | json [10m]))',
    'sum without (trace_id, app_extracted) (bytes_rate({env="prod"}[4m] offset 1m))',
    'quantile_over_time(0.9, {app="app2"} | logfmt | unwrap ms [10m]) by (level)',
    'first_over_time({app="app2"} | logfmt | unwrap ms [3m]) by (app)',
    'absent_over_time({app="app9"}[1m])',
    'topk(2, sum by (app) (count_over_time({app=~".+"} |~ "1.5" [10m])))',
]


@pytest.mark.parametrize("query", LINES)
def test_lines_are_the_same(query: str, stores: tuple[LogStore, MemoryLogs]) -> None:
    archive, memory = stores
    assert found_labels(archive, query) == found_labels(memory, query)
    for order in (LineOrder.OLDEST_FIRST, LineOrder.NEWEST_FIRST):
        ours, plain = (entries(store, query, order=order, limit=7) for store in (archive, memory))
        assert ours == plain
        assert ours


@pytest.mark.parametrize("query", NUMBERS)
def test_numbers_are_the_same(query: str, stores: tuple[LogStore, MemoryLogs]) -> None:
    archive, memory = stores
    assert at(archive, query, 600) == at(memory, query, 600)
    assert over(archive, query, 8, 90) == over(memory, query, 8, 90)
