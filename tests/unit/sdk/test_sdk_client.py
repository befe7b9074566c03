"""Do both clients ask the right questions, and understand the answers?"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from harch.base.errors import HarchError
from harch.sdk import AsyncClient, Client, aio, client
from harch.sdk.exchange import RetryPolicy

WORKLOAD = {
    "id": "wl_1",
    "name": "train",
    "type": "batch",
    "status": "running",
    "metadata": {"id": "wl_1", "name": "train", "created_at": "2026-01-02T03:04:05Z", "labels": {"team": "a"}},
    "spec": {"name": "train", "command": ["true"]},
    "hub_id": "dakhla",
    "placement": [{"rank": 0, "node_id": "n1", "gpu_ids": ["g1"]}],
    "carbon_metrics": None,
    "a_field_of_the_future": 1,
}
ENDED = {**WORKLOAD, "status": "completed"}
EXPLANATION = {"subject": "train", "verdict": "fits_now", "sentence": "It fits.", "hubs": []}
EVENTS = {"items": [], "next_after": 7, "last_seq": 7}
NO_PAUSE = RetryPolicy(jitter=lambda: 0.0)

Handler = Callable[[httpx.Request], httpx.Response]


def page(*items: object) -> httpx.Response:
    return httpx.Response(200, json={"items": list(items), "total": len(items), "pagination": {"page": 1}})


def recording(answer: httpx.Response | list[httpx.Response]) -> tuple[list[httpx.Request], Handler]:
    seen: list[httpx.Request] = []

    def handle(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return answer.pop(0) if isinstance(answer, list) else answer

    return seen, handle


def sync_client(handler: Handler) -> Client:
    return Client("http://hub.test", "hsk_x", transport=httpx.MockTransport(handler), retry=NO_PAUSE)


CALLS: list[tuple[str, Callable[[Client], object], str, str, httpx.Response]] = [
    (
        "submit",
        lambda c: c.workloads.submit({"name": "a"}),
        "POST",
        "/v1/workloads",
        httpx.Response(201, json=WORKLOAD),
    ),
    ("get", lambda c: c.workloads.get("a b/c"), "GET", "/v1/workloads/a%20b%2Fc", httpx.Response(200, json=WORKLOAD)),
    ("why", lambda c: c.workloads.why("wl_1"), "GET", "/v1/workloads/wl_1/why", httpx.Response(200, json=EXPLANATION)),
    ("plan", lambda c: c.plan({"name": "a"}), "POST", "/v1/workloads/plan", httpx.Response(200, json=EXPLANATION)),
    ("stop", lambda c: c.workloads.stop("wl_1"), "PATCH", "/v1/workloads/wl_1", httpx.Response(200, json=WORKLOAD)),
    ("hubs", lambda c: c.hubs.list(), "GET", "/v1/hubs?page=1&per_page=100", page({"id": "dakar", "name": "Dakar"})),
    ("secret", lambda c: c.secrets.set("A", "b"), "PUT", "/v1/secrets/A", httpx.Response(200, json={})),
    ("unset", lambda c: c.secrets.remove("A"), "DELETE", "/v1/secrets/A", httpx.Response(200, json={})),
    ("past", lambda c: c.event_page(7), "GET", "/v1/events?after=7&limit=100", httpx.Response(200, json=EVENTS)),
]


@pytest.mark.parametrize(("call", "method", "path", "answer"), [case[1:] for case in CALLS], ids=[c[0] for c in CALLS])
def test_a_call_becomes_one_request(
    call: Callable[[Client], object], method: str, path: str, answer: httpx.Response
) -> None:
    seen, handler = recording(answer)
    with sync_client(handler) as hub:
        call(hub)
    (request,) = seen
    assert (request.method, request.url.raw_path.decode()) == (method, path)
    assert request.headers["x-api-key"] == "hsk_x"


def test_filters_become_query_parameters() -> None:
    seen, handler = recording(page(WORKLOAD))
    with sync_client(handler) as hub:
        found = hub.workloads.list(page=2, per_page=5, status="running", active=True, labels={"team": "a"})
    assert dict(seen[0].url.params) == {
        "page": "2",
        "per_page": "5",
        "status": "running",
        "active": "true",
        "label.team": "a",
    }
    assert found.items[0].placement[0].gpu_ids == ("g1",)


def test_a_retried_submission_keeps_its_idempotency_key() -> None:
    seen, handler = recording([httpx.Response(503), httpx.Response(201, json=WORKLOAD)])
    with sync_client(handler) as hub:
        assert hub.workloads.submit({"name": "train"}).id == "wl_1"
    keys = {request.headers["idempotency-key"] for request in seen}
    assert len(seen) == 2
    assert len(keys) == 1


def test_all_pages_of_secrets_are_read() -> None:
    pages = [httpx.Response(200, json={"items": [{"name": name}], "total": 2}) for name in "AB"]
    with sync_client(recording(pages)[1]) as hub:
        assert hub.secrets.list() == ["A", "B"]


def test_wait_asks_until_it_has_ended() -> None:
    seen, handler = recording([httpx.Response(200, json=WORKLOAD), httpx.Response(200, json=ENDED)])
    with sync_client(handler) as hub:
        assert hub.workloads.wait("wl_1").status == "completed"
    assert len(seen) == 2


def test_wait_ends_at_its_timeout() -> None:
    with (
        sync_client(lambda _: httpx.Response(200, json=WORKLOAD)) as hub,
        pytest.raises(TimeoutError, match="still running"),
    ):
        hub.workloads.wait("wl_1", timeout_s=0.0)


def test_a_certificate_that_is_not_trusted_is_named_as_such() -> None:
    told = "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: self-signed certificate (_ssl.c:1006)"

    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError(told, request=request)

    with sync_client(refuse) as hub, pytest.raises(HarchError) as caught:
        hub.health()
    assert "the certificate of http://hub.test is not trusted: self-signed certificate" in caught.value.message


def test_no_answer_is_an_error_that_names_the_address() -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused", request=request)

    with sync_client(refuse) as hub, pytest.raises(HarchError) as caught:
        hub.health()
    assert caught.value.code == "E0802"
    assert "http://hub.test" in caught.value.message


@pytest.mark.parametrize(
    ("ends", "status", "expected"),
    [
        ([], "running", None),
        ([{"rank": 0, "reason": "exited", "exit_code": 0}], "completed", 0),
        (
            [{"rank": 1, "reason": "exited", "exit_code": 7}, {"rank": 0, "reason": "stopped", "signal": 15}],
            "failed",
            7,
        ),
        ([{"rank": 0, "reason": "signalled", "signal": 11}], "failed", 139),
        ([{"rank": 0, "reason": "not_started", "detail": "no such command"}], "failed", 1),
        ([{"rank": 0, "reason": "stopped", "signal": 15}], "cancelled", 1),
    ],
)
def test_the_exit_code_is_what_a_shell_would_answer(ends: list[Any], status: str, expected: int | None) -> None:
    body = {**WORKLOAD, "status": status, "task_ends": ends}
    with sync_client(lambda _: httpx.Response(200, json=body)) as hub:
        assert hub.workloads.get("wl_1").exit_code == expected


def event_text(seq: int) -> bytes:
    return b"data: " + json.dumps({"seq": seq, "at": "2026-01-02T03:04:05Z", "kind": "k"}).encode() + b"\n\n"


def test_events_go_on_over_closed_connections() -> None:
    streams = [httpx.Response(200, content=event_text(n)) for n in (8, 9, 10)]
    seen, handler = recording([httpx.Response(200, json=EVENTS), *streams])
    with sync_client(handler) as hub:
        events = hub.events()  # from now on: the first question is where "now" is
        assert [next(events).seq for _ in range(3)] == [8, 9, 10]
    assert [request.url.params["after"] for request in seen[1:]] == ["7", "8", "9"]


def test_a_refused_stream_is_an_error_with_the_hubs_words() -> None:
    answer = httpx.Response(404, json={"code": "E0301", "message": "Workload not found: x"})
    with sync_client(lambda _: answer) as hub, pytest.raises(HarchError, match="Workload not found: x"):
        list(hub.workloads.logs("x", follow=True))


async def test_the_async_client_does_the_same() -> None:
    def handle(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/events":
            return httpx.Response(200, content=event_text(int(request.url.params["after"]) + 1))
        if request.url.path.endswith("/logs"):
            return httpx.Response(200, content=b"hello\n")
        return httpx.Response(201, json=ENDED)

    async with AsyncClient("http://hub.test", "k", transport=httpx.MockTransport(handle), retry=NO_PAUSE) as hub:
        workload = await hub.workloads.submit({"name": "train"})
        assert (await hub.workloads.wait(workload.id)).exit_code == 0
        assert [piece async for piece in hub.workloads.logs("wl_1", follow=True)] == [b"hello\n"]
        seen = []
        async for event in hub.events(after=0):
            seen.append(event.seq)
            if len(seen) == 3:
                break
        assert seen == [1, 2, 3]


@pytest.mark.parametrize("name", ["Client", "Workloads", "Hubs", "Gpus", "Secrets"])
def test_both_clients_have_the_same_methods(name: str) -> None:
    def methods(cls: type) -> dict[str, list[str]]:
        return {
            key: list(inspect.signature(value).parameters)
            for key, value in vars(cls).items()
            if inspect.isfunction(value) and not key.startswith("_")
        }

    assert methods(getattr(client, name)) == methods(getattr(aio, f"Async{name}"))
