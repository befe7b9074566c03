"""Requests: which begin a trace, in whose trace, and what of them is told."""

from __future__ import annotations

import httpx
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from harch.api.app import create_app
from harch.base.tracing.spans import SERVER, FinishedSpan, TraceContext
from harch.base.tracing.tracer import TraceBudget, Tracing, current
from harch.hub.views import Role
from harch.testing.clock import SimClock
from unit.api.fake_hub import KEYS, FakeHub

CALLER = TraceContext(bytes(range(1, 17)), bytes(range(1, 9)))
JOB = {"name": "job", "command": ["true"]}


class TracedHub:
    def __init__(self, budget: TraceBudget | None = None) -> None:
        self.spans: list[FinishedSpan] = []
        self.seen: list[TraceContext | None] = []
        hub = FakeHub()
        submit = hub.submit

        async def seen(*args: object, **more: object) -> object:
            self.seen.append(current())
            return await submit(*args, **more)  # type: ignore[arg-type]

        hub.submit = seen  # type: ignore[assignment, method-assign]
        clock = SimClock()
        app = create_app(hub, clock=clock, tracing=Tracing(self.spans.append, clock, budget))
        self.client = httpx.AsyncClient(
            transport=httpx.ASGITransport(app),  # type: ignore[arg-type]
            base_url="http://hub",
            headers={"X-API-Key": KEYS[Role.ADMIN]},
        )


@pytest.fixture
def traced() -> TracedHub:
    return TracedHub()


async def test_a_submission_begins_a_trace_that_its_work_goes_on_in(traced: TracedHub) -> None:
    answer = await traced.client.post("/v1/workloads", json=JOB)
    assert answer.status_code == 201
    (span,) = traced.spans
    assert (span.name, span.kind, span.parent_id) == ("POST /v1/workloads", SERVER, b"")
    assert span.attributes["http.response.status_code"] == 201
    assert traced.seen == [TraceContext(span.trace_id, span.span_id)]


async def test_a_submission_goes_on_in_the_trace_of_its_caller(traced: TracedHub) -> None:
    await traced.client.post("/v1/workloads", json=JOB, headers={"traceparent": CALLER.header})
    (span,) = traced.spans
    assert (span.trace_id, span.parent_id) == (CALLER.trace_id, CALLER.span_id)


async def test_a_caller_that_keeps_no_span_gives_the_trace_its_id_only(traced: TracedHub) -> None:
    unkept = CALLER._replace(sampled=False)
    await traced.client.post("/v1/workloads", json=JOB, headers={"traceparent": unkept.header})
    (span,) = traced.spans
    assert (span.trace_id, span.parent_id) == (CALLER.trace_id, b"")


async def test_what_dashboards_ask_is_not_traced_unless_they_trace(traced: TracedHub) -> None:
    await traced.client.get("/v1/workloads")
    assert traced.spans == []
    await traced.client.get("/v1/workloads/secret-project", headers={"traceparent": CALLER.header})
    (span,) = traced.spans
    assert span.name == "GET /v1/workloads"
    assert "secret-project" not in str(span)


@pytest.mark.parametrize("path", ["/v1/secrets/my-bank", "/secrets/my-bank", "/secrets/my-bank/more", "/v1/secrets"])
async def test_names_in_paths_are_not_told(traced: TracedHub, path: str) -> None:
    await traced.client.get(path, headers={"traceparent": CALLER.header})
    assert [span.name for span in traced.spans] == ["GET /v1/secrets"]


async def test_beyond_the_budget_requests_are_served_and_not_traced() -> None:
    hub = TracedHub(TraceBudget(per_s=0.001, burst=1))
    for number in range(3):
        answer = await hub.client.post("/v1/workloads", json={**JOB, "name": f"job-{number}"})
        assert answer.status_code == 201
    assert len(hub.spans) == 1
    assert [seen is not None for seen in hub.seen] == [True, False, False]


async def test_a_slow_bucket_leads_to_its_trace(traced: TracedHub) -> None:
    await traced.client.post("/v1/workloads", json=JOB, headers={"traceparent": CALLER.header})
    plain = await traced.client.get("/v1/metrics/series")
    assert "# {" not in plain.text
    page = await traced.client.get(
        "/v1/metrics/series", headers={"accept": "application/openmetrics-text;version=1.0.0"}
    )
    assert page.headers["content-type"].startswith("application/openmetrics-text")
    assert page.text.endswith("# EOF\n")
    families = {family.name: family for family in text_string_to_metric_families(page.text)}
    assert families["harchos_hub_requests"].type == "counter"
    (line,) = [line for line in page.text.splitlines() if "# {" in line]
    assert line.startswith("harchos_hub_request_duration_seconds_bucket")
    assert f'# {{trace_id="{CALLER.trace_id.hex()}"}}' in line
