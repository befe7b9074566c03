"""Traces over HTTP: the public plugin's search, Tempo's calls as Grafana makes them, and the tree of one trace."""

from __future__ import annotations

import base64
from collections.abc import Mapping

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trace_routes_world import MS, NOW_NS, NOW_S, TRACE, MemoryTenants, Reply, asked, span

from harch.sentinel.http.routing import HttpRoute
from harch.sentinel.http.traces import Tempo, Traces
from harch.sentinel.model.logs import LogBatch

OTHER = "1" * 32
OLD = "2" * 32


@pytest.fixture(scope="module")
def tenants() -> MemoryTenants:
    tenants = MemoryTenants()
    tenants.spans("default").append(
        [
            span("submit", duration_ms=100, attributes={"gpus": 8, "http.status_code": 500}),
            span("place", ago_s=9.99, duration_ms=20, parent="submit", error=True),
            span("run", ago_s=9.9, duration_ms=40, parent="submit", service="agent"),
            span("ping", ago_s=5, trace=OTHER, service="agent"),
            span("old", ago_s=40 * 86400, trace=OLD, attributes={"gpus": 1}),
        ]
    )
    tenants.spans("other").append([span("secret", trace="3" * 32)])
    lines = LogBatch(
        labels=(("job", "hub"),),
        times_ns=[NOW_NS - 10**10, NOW_NS - 9 * 10**9],
        bodies=["placed on n17", "about something else"],
        metadata=[(("level", "warn"), ("span_id", "ab"), ("trace_id", TRACE)), (("trace_id", OTHER),)],
    )
    tenants.logs("default").append([lines])
    return tenants


@pytest.fixture(scope="module")
def routes(tenants: MemoryTenants) -> list[HttpRoute]:
    traces = Traces(tenants, tenants)
    return [*traces.routes(), *Tempo(tenants, traces).routes()]


def test_the_public_plugin_reads_its_own_shape(routes: list[HttpRoute]) -> None:
    reply = asked(routes, "/api/traces/search", {"query": '{ resource.service.name = "hub" && duration > 50ms }'})
    assert reply.json == {
        "status": "success",
        "data": {
            "traces": [
                {
                    "traceID": TRACE,
                    "rootServiceName": "hub",
                    "rootTraceName": "submit",
                    "startTimeUnixNano": str(NOW_NS - 10**10),
                    "durationMs": 140.0,
                }
            ]
        },
    }


def test_an_empty_query_finds_the_newest_traces_however_old(routes: list[HttpRoute]) -> None:
    found = asked(routes, "/api/traces/search", {"query": ""}).json["data"]["traces"]
    assert [one["traceID"] for one in found] == [OTHER, TRACE, OLD]
    first = asked(routes, "/harchos/api/v1/traces", {"limit": 1}).json["data"]["traces"]
    assert [one["traceID"] for one in first] == [OTHER]


def test_tenants_do_not_see_each_other(routes: list[HttpRoute]) -> None:
    reply = asked(routes, "/api/traces/search", headers={"X-Scope-OrgID": "other"})
    assert [one["rootTraceName"] for one in reply.json["data"]["traces"]] == ["secret"]
    assert asked(routes, f"/api/traces/{TRACE}", headers={"X-Scope-OrgID": "other"}).status == 404


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({"q": "{ .gpus >= 8 }"}, [TRACE]),
        ({"q": '{ name = "place" && status = error }'}, [TRACE]),
        ({"q": '{ name = "ping" || .gpus = 1 }'}, [OTHER, OLD]),
        ({"tags": 'service.name=agent http.status_code="200"'}, []),
        ({"tags": "service.name=agent"}, [OTHER, TRACE]),
        ({"tags": "service.name=agent", "minDuration": "100ms"}, [TRACE]),
        ({"maxDuration": "10ms", "start": NOW_S - 3600, "end": NOW_S}, [OTHER]),
        ({"q": "{}", "limit": 2}, [OTHER, TRACE]),
        ({"q": '{ rootName = "submit" && rootServiceName =~ "h.*" }'}, [TRACE]),
        ({"q": '{ rootName = "place" }'}, []),
        ({"q": '{ rootName != "submit" }', "limit": 5}, [OTHER, OLD]),
        ({"q": TRACE.lstrip("0")}, [TRACE]),
        ({"tags": "", "start": NOW_S - 3600, "end": NOW_S}, [OTHER, TRACE]),
    ],
)
def test_tempos_search(routes: list[HttpRoute], parameters: Mapping[str, object], expected: list[str]) -> None:
    reply = asked(routes, "/api/search", parameters)
    assert [one["traceID"] for one in reply.json["traces"]] == expected
    assert isinstance(reply.json["metrics"]["inspectedTraces"], int)


def test_a_search_by_traceql_shows_the_spans_that_matched(routes: list[HttpRoute]) -> None:
    (found,) = asked(routes, "/api/search", {"q": "{ .gpus >= 8 }"}).json["traces"]
    assert found["spanSets"] == [found["spanSet"]]
    assert found["spanSet"]["matched"] == 1
    (only,) = found["spanSet"]["spans"]
    assert (only["name"], only["durationNanos"]) == ("submit", str(100 * MS))
    assert {"key": "gpus", "value": {"intValue": "8"}} in only["attributes"]
    assert found["durationMs"] == 140


def test_names_and_values_of_tags(routes: list[HttpRoute]) -> None:
    names = asked(routes, "/api/search/tags").json["tagNames"]
    assert {"service.name", "gpus", "hub", "http.status_code", "status"} <= set(names)
    scopes = {one["name"]: one["tags"] for one in asked(routes, "/api/v2/search/tags").json["scopes"]}
    assert scopes["resource"] == ["service.name"]
    assert scopes["span"] == ["gpus", "http.status_code", "hub"]
    only = asked(routes, "/api/v2/search/tags", {"scope": "resource"}).json["scopes"]
    assert [one["name"] for one in only] == ["resource"]
    assert asked(routes, "/api/search/tag/service.name/values").json == {"tagValues": ["agent", "hub"]}
    values = "/api/v2/search/tag/{}/values"
    assert asked(routes, values.format("resource.service.name")).json["tagValues"] == [
        {"type": "string", "value": "agent"},
        {"type": "string", "value": "hub"},
    ]
    assert asked(routes, values.format(".gpus")).json["tagValues"] == [{"type": "int", "value": "8"}]
    assert {"type": "keyword", "value": "error"} in asked(routes, values.format("status")).json["tagValues"]
    assert asked(routes, values.format("duration")).json == {"tagValues": []}
    assert asked(routes, values.format("nestedSetParent")).status == 400
    assert asked(routes, "/api/echo").body == b"echo"


def test_a_trace_as_grafana_reads_it(routes: list[HttpRoute]) -> None:
    from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

    plain = asked(routes, f"/api/traces/{TRACE}").json
    first = plain["batches"][0]["scopeSpans"][0]["spans"][0]
    assert base64.b64decode(first["traceId"]).hex() == TRACE
    assert first["kind"] == "SPAN_KIND_INTERNAL"
    for path, skip in ((f"/api/traces/{TRACE}", 0), (f"/api/v2/traces/{TRACE}", 1)):
        reply = asked(routes, path, headers={"Accept": "application/protobuf"})
        assert reply.headers["content-type"] == "application/protobuf"
        body = reply.body if not skip else _inside(reply.body)
        message = TracesData.FromString(body)
        names = [one.name for batch in message.resource_spans for part in batch.scope_spans for one in part.spans]
        assert names == ["submit", "place", "run"]
    assert "resourceSpans" in asked(routes, f"/api/v2/traces/{TRACE}").json["trace"]


def _inside(body: bytes) -> bytes:
    """The field 1 of a message that has nothing else."""
    assert body[0] == 0x0A
    length, place, shift = 0, 1, 0
    while True:
        byte = body[place]
        length |= (byte & 0x7F) << shift
        place, shift = place + 1, shift + 7
        if byte < 0x80:
            break
    assert len(body) == place + length
    return body[place:]


def test_one_trace_as_a_tree_with_its_log_lines(routes: list[HttpRoute]) -> None:
    told = asked(routes, f"/harchos/api/v1/traces/{TRACE.upper()}", {"logs": 10}).json["data"]
    assert [(one["name"], one["depth"]) for one in told["spans"]] == [("submit", 0), ("place", 1), ("run", 1)]
    assert [(one["line"], one["level"], one["spanID"]) for one in told["logs"]] == [("placed on n17", "warn", "ab")]
    assert [one["name"] for one in told["criticalPath"]] == ["submit", "place", "submit", "run"]
    assert told["errorCount"] == 1
    assert "logs" not in asked(routes, f"/harchos/api/v1/traces/{TRACE}").json["data"]
    again = asked(routes, f"/harchos/api/v1/traces/{TRACE}/otlp").json["data"]["resourceSpans"]
    assert again[0]["scopeSpans"][0]["spans"][0]["traceId"] == TRACE


def test_spans_are_counted_by_service_name_and_status(routes: list[HttpRoute]) -> None:
    told = asked(routes, "/harchos/api/v1/traces/statistics", {"by": "service,status", "query": "service=hub"})
    groups = told.json["data"]["groups"]
    assert [(one["service"], one["status"], one["count"], one["errors"]) for one in groups] == [
        ("hub", "error", 1, 1),
        ("hub", "unset", 1, 0),
    ]
    assert groups[1]["p50Ns"] == pytest.approx(100 * MS, rel=0.42)
    assert groups[1]["meanNs"] == 100 * MS


@pytest.mark.parametrize(
    ("path", "parameters", "status", "code"),
    [
        ("/api/traces/search", {"query": "{ foo"}, 400, "E0690"),
        ("/api/search", {"q": "{} | rate()"}, 400, "E0691"),
        ("/api/search", {"minDuration": "fast"}, 400, "E0201"),
        ("/api/search", {"limit": "-1"}, 400, "E0201"),
        ("/api/traces/zzz", {}, 400, "E0201"),
        (f"/api/traces/{'9' * 32}", {}, 404, "E0692"),
        (f"/harchos/api/v1/traces/{'9' * 32}", {}, 404, "E0692"),
        ("/harchos/api/v1/traces/statistics", {"by": "hub"}, 400, "E0201"),
        ("/harchos/api/v1/traces/statistics", {"query": "{ .a = 1 || .b = 2 }"}, 400, "E0691"),
    ],
)
def test_mistakes_are_refused_with_their_code(
    routes: list[HttpRoute], path: str, parameters: Mapping[str, str], status: int, code: str
) -> None:
    reply = asked(routes, path, parameters)
    assert (reply.status, reply.json["code"]) == (status, code)


WORDS = st.text(max_size=20) | st.sampled_from(
    ["{}", "{ .a = 1 }", "1e400", "-5", "nan", TRACE, "10ms", "service", "0"]
)
PATHS = st.sampled_from(
    [
        "/api/traces/search",
        "/api/search",
        "/api/search/tags",
        "/api/v2/search/tags",
        "/api/search/tag/{}/values",
        "/api/v2/search/tag/{}/values",
        "/api/traces/{}",
        "/api/v2/traces/{}",
        "/harchos/api/v1/traces",
        "/harchos/api/v1/traces/{}",
        "/harchos/api/v1/traces/statistics",
    ]
)
NAMES = st.sampled_from(
    ["query", "q", "tags", "start", "end", "limit", "minDuration", "maxDuration", "spss", "by", "logs", "scope"]
)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(PATHS, WORDS.filter(lambda word: "/" not in word), st.dictionaries(NAMES, WORDS, max_size=4))
def test_no_request_breaks_the_server(
    routes: list[HttpRoute], path: str, word: str, parameters: dict[str, str]
) -> None:
    sayable = {name: text.encode("utf-8", "replace").decode() for name, text in parameters.items()}
    reply: Reply = asked(routes, path.replace("{}", word), sayable)
    assert reply.status < 500


def test_a_trace_with_too_many_spans_is_cut_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harch.sentinel.http.traces.SPANS_PER_TRACE_MAX", 2)
    tenants = MemoryTenants()
    tenants.spans("default").append([span(f"part {i}", ago_s=10 - i) for i in range(3)])
    traces = Traces(tenants, None)
    routes = [*traces.routes(), *Tempo(tenants, traces).routes()]
    note = "only the first 2 of 3 spans are listed"
    assert asked(routes, f"/harchos/api/v1/traces/{TRACE}", {"logs": 5}).json["warnings"] == [note]
    assert asked(routes, f"/harchos/api/v1/traces/{TRACE}/otlp").json["warnings"] == [note]
    assert asked(routes, f"/api/traces/{TRACE}").headers["x-harch-note"] == note
    wrapped = asked(routes, f"/api/v2/traces/{TRACE}")
    assert (wrapped.json["status"], wrapped.json["message"]) == ("PARTIAL", note)
    packed = asked(routes, f"/api/v2/traces/{TRACE}", headers={"Accept": "application/protobuf"}).body
    assert packed.endswith(b"\x18\x01" + bytes([4 << 3 | 2, len(note)]) + note.encode())
