"""Logs and traces are erased by query over HTTP, in Loki's manner and in ours, and settings say how they are kept."""

from __future__ import annotations

from pathlib import Path

import pytest
from trace_routes_world import MemoryTenants, asked

from harch.base.errors import HarchError
from harch.sentinel.http.erasure import Erasing
from harch.sentinel.http.settings import read_settings
from harch.sentinel.model.labels import labels
from harch.sentinel.model.logs import LogBatch, LogRequest
from harch.sentinel.model.spans import Span

TRACES = [f"{number:032x}" for number in (1, 2, 3)]


def bodies(tenants: MemoryTenants) -> list[str]:
    found = tenants.logs("default").scan(LogRequest((), 0, 1 << 62), lambda: False)
    return [text for chunk in found for text in chunk.bodies]


@pytest.fixture
def tenants() -> MemoryTenants:
    filled = MemoryTenants()
    batch = LogBatch(labels({"app": "shop"}), [10, 20, 30], ["jane bought", "jack bought", "jane left"])
    filled.logs("default").append([batch])
    filled.spans("default").append(
        [Span(trace, "2" * 16, "", service, "n", 5, 5) for trace, service in zip(TRACES, "aab", strict=True)]
    )
    return filled


def test_lines_are_erased_in_lokis_manner(tenants: MemoryTenants) -> None:
    routes = Erasing(tenants).routes()
    query = '{app="shop"} |= "jane"'
    reply = asked(routes, "/loki/api/v1/delete", {"query": query, "start": "0"}, method="POST")
    assert (reply.status, reply.headers["x-harch-erased-lines"]) == (204, "2")
    assert bodies(tenants) == ["jack bought"]


@pytest.mark.parametrize("query", ['{app="shop"} | json', "", 'rate({app="shop"}[5m])', '{app="shop"'])
def test_what_is_no_selector_with_line_filters_erases_nothing(tenants: MemoryTenants, query: str) -> None:
    reply = asked(Erasing(tenants).routes(), "/loki/api/v1/delete", {"query": query}, method="POST")
    assert reply.status == 400
    assert len(bodies(tenants)) == 3


def test_spans_are_erased_by_trace_and_by_query(tenants: MemoryTenants) -> None:
    routes, spans = Erasing(tenants).routes(), tenants.spans("default")
    path = "/harchos/api/v1/traces"
    assert asked(routes, path, {"trace_id": TRACES[0]}, method="DELETE").json["data"] == {"spans": 1}
    query = '{ resource.service.name = "b" }'
    assert asked(routes, path, {"query": query}, method="DELETE").json["data"] == {"spans": 1}
    assert [bool(spans.trace(trace)) for trace in TRACES] == [False, True, False]
    assert asked(routes, path, method="DELETE").status == 400, "an empty question erases nothing"
    assert asked(routes, path, {"trace_id": "nonsense"}, method="DELETE").status == 400
    assert asked(routes, "/harchos/api/v1/erasures/purge", method="POST").status == 204
    assert asked(routes, "/harchos/api/v1/archive").json["data"]["traces"]["spans"] == 1


def test_settings_say_how_logs_and_traces_are_kept(tmp_path: Path) -> None:
    file = tmp_path / "sentinel.toml"
    file.write_text(
        '[logs]\nkeep = "2d"\nsize_bytes_max = 5\n[logs.limits]\nline_bytes_max = 100\n[traces]\nkeep = ""\n'
        "[traces.limits]\nspan_bytes_max = 200\n"
    )
    archive = read_settings(file).archive
    assert archive.logs_policy.keep_ns == 2 * 86_400 * 10**9
    assert (archive.logs_policy.size_bytes_max, archive.logs.line_bytes_max) == (5, 100)
    assert (archive.spans_policy.keep_ns, archive.spans.span_bytes_max) == (None, 200)


@pytest.mark.parametrize("wrong", ["[logs]\nkept = 1\n", "[traces]\nflush_bytes = 0\n", '[logs]\nkeep = "soon"\n'])
def test_settings_that_make_no_sense_are_refused(tmp_path: Path, wrong: str) -> None:
    file = tmp_path / "sentinel.toml"
    file.write_text(wrong)
    with pytest.raises(HarchError) as refused:
        read_settings(file)
    assert refused.value.code == "E0673"
