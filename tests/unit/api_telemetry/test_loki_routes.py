"""Loki's read API: times in all their forms, directions, limits, tenants, and any noise as parameters."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harch.base.errors import HarchError
from harch.sentinel.http.access import OpenAuthenticator, TokenAuthenticator
from harch.sentinel.http.app import TelemetryApp
from harch.sentinel.http.loki.messages import parse_time_ns
from harch.sentinel.http.loki.routes import Loki
from harch.sentinel.http.routing import Routes
from harch.sentinel.model.labels import labels
from harch.sentinel.model.logs import LogBatch
from harch.testing.clock import SimClock
from harch.testing.telemetry_stores import MemoryLogs

NOW_S = 1_700_000_000
S = 1_000_000_000
LINES = [(NOW_S - 10 * place) * S for place in range(1, 6)]


class Tenants:
    def __init__(self) -> None:
        self._stores: dict[str, MemoryLogs] = {}
        self.logs("default").append(
            [LogBatch(labels({"app": "web"}), LINES, [f"line {place}" for place in range(1, 6)])]
        )

    def logs(self, tenant: str) -> MemoryLogs:
        return self._stores.setdefault(tenant, MemoryLogs())


TENANTS = Tenants()


def asked(
    path: str,
    parameters: Mapping[str, str],
    *,
    method: str = "GET",
    headers: Mapping[str, str] | None = None,
    token: str = "",
) -> httpx.Response:
    async def ask() -> httpx.Response:
        clock = SimClock(datetime.fromtimestamp(NOW_S, UTC))
        door = TokenAuthenticator(token) if token else OpenAuthenticator()
        app = TelemetryApp(Routes(Loki(TENANTS, clock).routes()), door, clock)
        try:
            async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://sentinel") as client:
                form = {"data": parameters} if method == "POST" else {"params": parameters}
                return await client.request(method, f"/loki/api/v1/{path}", headers=headers, **form)  # type: ignore[arg-type]
        finally:
            app.close()

    return asyncio.run(ask())


def lines(answer: httpx.Response) -> list[str]:
    assert answer.status_code == 200, answer.text
    return [value[1] for stream in answer.json()["data"]["result"] for value in stream["values"]]


QUERY = {"query": '{app="web"}'}


def test_the_newest_lines_of_the_last_hour_come_first_unless_told_otherwise() -> None:
    assert lines(asked("query_range", QUERY)) == ["line 1", "line 2", "line 3", "line 4", "line 5"]
    forward = {**QUERY, "direction": "forward", "limit": "2"}
    assert lines(asked("query_range", forward)) == ["line 5", "line 4"]
    assert lines(asked("query_range", forward, method="POST")) == ["line 5", "line 4"]
    assert lines(asked("query_range", {**QUERY, "since": "25s"})) == ["line 1", "line 2"]
    assert lines(asked("query_range", {**QUERY, "interval": "20s"})) == ["line 1", "line 3", "line 5"]


@pytest.mark.parametrize(
    "start",
    [
        f"{NOW_S - 20}",
        f"{NOW_S - 20}.0",
        f"{(NOW_S - 20) * S}",
        "2023-11-14T22:13:00Z",
        "2023-11-14T22:13:00.000000000Z",
        "2023-11-14T23:13:00+01:00",
    ],
)
def test_times_are_read_in_all_of_lokis_forms(start: str) -> None:
    assert parse_time_ns(start) == (NOW_S - 20) * S
    assert lines(asked("query_range", {**QUERY, "start": start, "end": str(NOW_S)})) == ["line 1", "line 2"]


def test_nanoseconds_are_kept() -> None:
    assert parse_time_ns("1700000000123456789") == 1_700_000_000_123_456_789
    assert parse_time_ns("2023-11-14T22:13:20.123456789Z") == 1_700_000_000_123_456_789
    assert parse_time_ns("1700000000.123") == 1_700_000_000_123_000_000
    for wrong in ("", "x", "2023-11-14", "nan", "9" * 30, "1e300", "2023-11-14T22:13:20"):
        with pytest.raises(HarchError):
            parse_time_ns(wrong)


def test_the_end_of_a_range_is_not_included_and_the_start_is() -> None:
    window = {"start": str(LINES[2]), "end": str(LINES[0])}
    assert lines(asked("query_range", {**QUERY, **window})) == ["line 2", "line 3"]


def test_an_instant_query_for_lines_looks_back_from_its_time() -> None:
    assert lines(asked("query", {**QUERY, "time": str(LINES[3])})) == ["line 4", "line 5"]
    seconds = {"start": str(NOW_S - 30), "end": str(NOW_S)}
    assert lines(asked("query", {**QUERY, **seconds})) == ["line 1", "line 2", "line 3"]


def test_tenants_see_their_own_lines() -> None:
    assert lines(asked("query_range", QUERY, headers={"X-Scope-OrgID": "other"})) == []
    assert asked("labels", {}, headers={"X-Scope-OrgID": "other"}).json()["data"] == []


def test_reading_needs_a_token_where_there_is_one_and_readiness_does_not() -> None:
    assert asked("query_range", QUERY, token="secret").status_code == 401
    allowed = asked("query_range", QUERY, token="secret", headers={"Authorization": "Bearer secret"})
    assert allowed.status_code == 200
    assert asked("../../../ready", {}, token="secret").status_code == 200


REFUSED = {
    ("query_range", "query={app="): "E0685",
    ("query_range", ""): "E0201",
    ("query_range", 'query={app="web"}&limit=5001'): "E0687",
    ("query_range", 'query={app="web"}&limit=0'): "E0201",
    ("query_range", 'query={app="web"}&direction=up'): "E0201",
    ("query_range", 'query={app="web"}&start=5&end=3'): "E0201",
    ("query_range", 'query={app="web"}&start=x'): "E0201",
    ("query_range", 'query=rate({app="web"}[1m])&step=0'): "E0201",
    ("query_range", 'query=rate({app="web"}[1m])&step=-5'): "E0201",
    ("query_range", 'query=sum(count_over_time({app="web"} | json [1m]))'): "E0686",
    ("index/stats", "query=vector(1)"): "E0689",
    ("detected_fields", "query=vector(1)"): "E0689",
    ("series", "match[]=x"): "E0685",
    ("tail", 'query={app="web"}'): "E0201",
    ("nothing", ""): "E0207",
}


@pytest.mark.parametrize(("call", "code"), REFUSED.items())
def test_what_is_wrong_is_refused_with_a_code_and_a_message(call: tuple[str, str], code: str) -> None:
    path, query = call
    parameters = dict(part.split("=", 1) for part in query.split("&")) if query else {}
    answer = asked(path, parameters)
    told = answer.json()
    assert 400 <= answer.status_code < 500
    assert (told["code"], bool(told["message"]), bool(told["hint"])) == (code, True, True)


def test_a_long_range_gets_a_wider_step_and_says_so() -> None:
    told = asked(
        "query_range", {"query": 'rate({app="web"}[1m])', "start": "1600000000", "end": "1700000000", "step": "15"}
    ).json()
    assert "widened" in told["warnings"][0]


def test_steps_are_multiples_of_the_step_so_that_bars_stay_where_they_are() -> None:
    query = {"query": 'count_over_time({app="web"}[30s])', "step": "30", "end": str(NOW_S)}
    first, later = (
        asked("query_range", {**query, "start": start}).json()["data"]["result"][0]["values"]
        for start in (str(NOW_S - 95), str(NOW_S - 80))
    )
    assert [time % 30 for time, _ in first] == [0] * len(first)
    assert first[-len(later) :] == later


def test_volumes_are_counted_by_the_labels_asked_for() -> None:
    window = {"query": '{app=~".+"}', "start": str(NOW_S - 100), "end": str(NOW_S)}
    data = asked("index/volume", window).json()["data"]
    assert data["result"] == [{"metric": {"app": "web"}, "value": [NOW_S, "30"]}]
    by_name = asked("index/volume", {**window, "aggregateBy": "labels"}).json()["data"]
    assert by_name["result"] == [{"metric": {"app": ""}, "value": [NOW_S, "30"]}]
    over_time = asked("index/volume_range", {**window, "step": "50"}).json()["data"]["result"][0]["values"]
    assert [value for _, value in over_time] == ["6", "24"]


def test_fields_and_their_values_are_found_in_a_sample() -> None:
    TENANTS.logs("fields").append([LogBatch(labels({"app": "x"}), [LINES[0]], ["took=3ms ok=true size=5KB n=1 f=1.5"])])
    header = {"X-Scope-OrgID": "fields"}
    told = asked("detected_fields", {"query": '{app="x"}'}, headers=header).json()["fields"]
    assert {field["label"]: field["type"] for field in told} == {
        "took": "duration",
        "ok": "boolean",
        "size": "bytes",
        "n": "int",
        "f": "float",
    }
    assert asked("detected_field/n/values", {"query": '{app="x"}'}, headers=header).json()["values"] == ["1"]


noise: st.SearchStrategy[Any] = st.sampled_from(
    [
        "",
        "0",
        "-1",
        "1e400",
        "nan",
        "now",
        "{}",
        '{app="web"}',
        "rate({app=~`.+`}[1s])",
        "\x00",
        "é",
        "9" * 40,
        "5m",
        "forward",
    ]
)


@given(
    st.sampled_from(["query", "query_range", "labels", "label/app/values", "series", "index/stats", "index/volume"])
    | st.sampled_from(["index/volume_range", "detected_fields", "detected_labels", "patterns", "format_query"]),
    st.dictionaries(
        st.sampled_from(["query", "start", "end", "time", "since", "limit", "direction", "interval", "step", "match[]"])
        | st.sampled_from(["targetLabels", "aggregateBy", "line_limit", "timeout"]),
        noise,
        max_size=6,
    ),
)
@settings(max_examples=120, deadline=None)
def test_any_noise_is_answered_below_500(path: str, parameters: dict[str, str]) -> None:
    assert asked(path, parameters).status_code < 500
