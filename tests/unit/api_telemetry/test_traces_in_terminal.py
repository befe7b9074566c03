"""`harch sentinel traces`, asked of the real routes over stores in memory."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from click.testing import Result
from trace_routes_world import NOW_NS, TRACE, MemoryTenants, cli_of, span

from harch.cli.views.trace import branches_of
from harch.sentinel.http.traces import Tempo, Traces
from harch.sentinel.model.logs import LogBatch

OTHER = "1" * 32


@pytest.fixture
def harch(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    tenants = MemoryTenants()
    tenants.spans("default").append(
        [
            span("submit", duration_ms=100),
            span("place", ago_s=9.99, duration_ms=20, parent="submit", error=True),
            span("fit", ago_s=9.985, duration_ms=10, parent="place"),
            span("run", ago_s=9.9, duration_ms=40, parent="submit", service="agent"),
            span("\x1b[31mping", ago_s=5, trace=OTHER, service="agent"),
        ]
    )
    metadata = [(("level", "error"), ("trace_id", TRACE))]
    tenants.logs("default").append([LogBatch((("job", "hub"),), [NOW_NS - 10**10], ["no room \x1b[2J"], metadata)])
    traces = Traces(tenants, tenants)
    routes = [*traces.routes(), *Tempo(tenants, traces).routes()]

    run = cli_of(routes, monkeypatch)
    return lambda *words: run("traces", *words)


def test_the_newest_traces_are_listed_without_what_would_move_a_cursor(harch: Callable[..., Result]) -> None:
    told = harch("ls")
    assert told.exit_code == 0, told.output
    lines = told.stdout.splitlines()
    assert lines[0].split() == ["TRACE", "STARTED", "DURATION", "SPANS", "ERRORS", "SERVICE", "NAME"]
    assert [line.split()[0] for line in lines[1:]] == [OTHER, TRACE]
    assert "\x1b" not in told.stdout


def test_words_and_selectors_find_the_same(harch: Callable[..., Result]) -> None:
    by_words = harch("search", "service=hub", "status=error", "--json")
    by_selector = harch("search", '{ resource.service.name = "hub" && status = error }', "--json")
    found = json.loads(by_words.stdout)
    assert [one["traceID"] for one in found["items"]] == [TRACE]
    assert json.loads(by_selector.stdout) == found
    assert harch("search", "name=never").stderr == "no traces found\n"


def test_a_mistake_in_a_query_is_told_with_its_place_and_the_exit_code_of_usage(harch: Callable[..., Result]) -> None:
    told = harch("search", "{ status = late }")
    assert told.exit_code == 2
    assert "error[E0690]: 1:3: not a status" in told.output


def test_a_trace_is_drawn_with_its_failures_path_and_log_lines(harch: Callable[..., Result]) -> None:
    told = harch("show", TRACE)
    assert told.exit_code == 0, told.output
    lines = told.stdout.splitlines()
    assert lines[0].startswith("hub submit  2023-11-14T22:13:10.000Z  140 ms")
    assert lines[1] == f"trace {TRACE}, 4 spans, 1 with errors"
    assert "├ place" in told.stdout
    assert "│ └ fit" in told.stdout
    assert [" ! " in line for line in lines[3:7]] == [False, True, False, False]
    assert "█" in lines[3]
    assert "━" in lines[3]
    assert any("29%" in line and "agent run" in line for line in lines)
    assert lines[-1].endswith("error    no room �[2J")
    assert all(len(line) <= 100 for line in lines)
    assert json.loads(harch("show", TRACE, "--json").stdout)["spanCount"] == 4


def test_a_trace_that_is_not_here_is_told_by_its_code(harch: Callable[..., Result]) -> None:
    told = harch("show", "9" * 32)
    assert told.exit_code == 1
    assert "E0692" in told.output


def test_spans_are_counted_in_a_table(harch: Callable[..., Result]) -> None:
    told = harch("stats", "service=hub", "--by", "service,status")
    assert [line.split()[:3] for line in told.stdout.splitlines()[1:]] == [["hub", "unset", "2"], ["hub", "error", "1"]]


def test_branches_show_who_belongs_to_whom() -> None:
    assert branches_of([0, 1, 2, 2, 1, 0, 1]) == ["", "├ ", "│ ├ ", "│ └ ", "└ ", "", "└ "]
    assert branches_of([0, 1, 2, 3, 1]) == ["", "├ ", "│ └ ", "│   └ ", "└ "]
    assert len(branches_of([5000])[0]) == 24
