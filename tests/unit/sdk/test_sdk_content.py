"""`client.content` and the files of work: both clients ask the same, and large bodies survive bad connections."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from harch.base.errors import HarchError
from harch.sdk import AsyncClient, Client, aio, client
from harch.sdk.content import (
    CHECK_TIMEOUT_S,
    CHUNKS_TIMEOUT_S,
    FILES_TIMEOUT_S,
    RETRIES_MIN,
    AsyncContent,
    Content,
    TransferView,
    TreeView,
)
from harch.sdk.data import AsyncData, Data
from harch.sdk.exchange import ApiRequest, RetryPolicy, SendFailure
from harch.sdk.failover import explain_failover, may_go_elsewhere, request_timeout

KEY = "hsk_test_key_of_enough_length"
NO_PAUSE = RetryPolicy(jitter=lambda: 0.0)
TREE = {"ref": "data_1", "digest": "a" * 64, "size_bytes": 5, "files": 1}
ANSWERS: dict[str, tuple[int, object]] = {
    "POST /v1/content/missing": (200, b"m" * 32),
    "POST /v1/content/chunks": (200, {"stored": 2, "known": 1, "bytes": 9}),
    "POST /v1/content/fetch": (200, b"frames"),
    "POST /v1/content/trees/data 1": (200, TREE),
    "POST /v1/content/trees/far": (
        202,
        {"digest": "b" * 64, "source_hub": "dakar", "bytes_done": 1, "bytes_total": 2},
    ),
    "GET /v1/content": (200, {"hub": "dakhla", "location": "a folder", "of_the_future": 1}),
    "POST /v1/content/collect": (200, {"chunks": 3, "bytes": 4}),
    "POST /v1/content/check": (200, {"chunks": 3, "bytes": 4, "damaged": ["ab"]}),
    "POST /v1/workloads/wl_1/files": (200, {**TREE, "ref": "snap_1"}),
    "PUT /v1/workloads/wl_1/files": (200, {}),
    "GET /v1/artifacts": (
        200,
        {"items": [{"id": "data_2", "name": "model", "workload_id": "wl_1", "digest": "c" * 64}], "total": 1},
    ),
    "GET /v1/workloads/wl_1/logs": (200, b""),
    "DELETE /v1/data/data_1": (200, {}),
    "POST /v1/data": (201, {"id": "data_1", "name": "corpus", "kind": "dataset"}),
}


def answer(request: httpx.Request) -> httpx.Response:
    status, value = ANSWERS[f"{request.method} {request.url.path}"]
    return httpx.Response(status, content=value) if isinstance(value, bytes) else httpx.Response(status, json=value)


class Hub:
    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, str], bytes]] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        question = f"{request.method} {request.url.path}"
        self.asked.append((question, dict(request.url.params), request.content))
        return answer(request)


async def test_both_clients_ask_the_same() -> None:
    one, other = Hub(), Hub()
    with Client("http://hub", KEY, transport=httpx.MockTransport(one)) as hub:
        assert hub.content.missing(b"i" * 64) == b"m" * 32
        assert hub.content.put(b"body").stored == 2
        assert hub.content.fetch("data_1", b"i" * 32) == b"frames"
        tree, far = hub.content.tree("data 1"), hub.content.tree("far")
        assert isinstance(tree, TreeView)
        assert isinstance(far, TransferView)
        assert (tree.files, far.source_hub) == (1, "dakar")
        assert hub.content.status().location == "a folder"
        assert hub.content.collect(grace_s=60).chunks == 3
        assert hub.content.check().damaged == ["ab"]
        assert hub.workloads.files("wl_1", "out", rank=2).ref == "snap_1"
        hub.workloads.place_files("wl_1", "conf", "d" * 64)
        assert hub.workloads.artifacts("wl_1")[0].name == "model"
        assert len(hub.workloads.artifacts()) == 1
        assert list(hub.workloads.logs("wl_1", preparation=True)) == []
        assert hub.data.add("corpus", content="e" * 64).id == "data_1"
        hub.data.remove("data_1")
    async with AsyncClient("http://hub", KEY, transport=httpx.MockTransport(other)) as ahub:
        await ahub.content.missing(b"i" * 64)
        await ahub.content.put(b"body")
        await ahub.content.fetch("data_1", b"i" * 32)
        await ahub.content.tree("data 1")
        await ahub.content.tree("far")
        await ahub.content.status()
        await ahub.content.collect(grace_s=60)
        await ahub.content.check()
        await ahub.workloads.files("wl_1", "out", rank=2)
        await ahub.workloads.place_files("wl_1", "conf", "d" * 64)
        await ahub.workloads.artifacts("wl_1")
        await ahub.workloads.artifacts()
        assert [piece async for piece in ahub.workloads.logs("wl_1", preparation=True)] == []
        await ahub.data.add("corpus", content="e" * 64)
        await ahub.data.remove("data_1")
    assert one.asked == other.asked
    assert one.asked[0] == ("POST /v1/content/missing", {}, b"i" * 64)
    assert one.asked[2][1] == {"ref": "data_1"}
    assert one.asked[6][1] == {"grace_s": "60"}
    assert one.asked[8][2] == b'{"path":"out","rank":2,"attempt":null}'
    assert one.asked[9][2] == b'{"path":"conf","digest":"' + b"d" * 64 + b'","rank":0}'
    assert [asked[1].get("workload") for asked in one.asked[10:12]] == ["wl_1", None]
    assert one.asked[12][1]["preparation"] == "true"
    assert b'"content":"' in one.asked[13][2]


@pytest.mark.parametrize(
    ("one", "other"), [(Content, AsyncContent), (Data, AsyncData), (client.Workloads, aio.AsyncWorkloads)]
)
def test_both_clients_have_the_same_methods(one: type, other: type) -> None:
    def signatures(kind: type) -> dict[str, list[inspect.Parameter]]:
        methods = inspect.getmembers(kind, inspect.isfunction)
        return {
            name: list(inspect.signature(method).parameters.values())
            for name, method in methods
            if not name.startswith("_")
        }

    assert signatures(one) == signatures(other)


def answering_after(failures: int, fail: Callable[[httpx.Request], httpx.Response]) -> Hub:
    class Shaky(Hub):
        def __call__(self, request: httpx.Request) -> httpx.Response:
            done = super().__call__(request)
            return fail(request) if len(self.asked) <= failures else done

    return Shaky()


def broken(request: httpx.Request) -> httpx.Response:
    raise httpx.WriteError("reset by peer", request=request)


@pytest.mark.parametrize("fail", [broken, lambda request: httpx.Response(503)])
def test_a_hub_that_is_started_again_in_the_middle_of_a_transfer_is_waited_for(
    fail: Callable[[httpx.Request], httpx.Response],
) -> None:
    hub = answering_after(RETRIES_MIN, fail)
    with Client("http://hub", KEY, transport=httpx.MockTransport(hub), retry=NO_PAUSE) as one:
        assert one.content.put(b"x" * 1000).stored == 2
    assert len(hub.asked) == RETRIES_MIN + 1
    assert {body for _, _, body in hub.asked} == {b"x" * 1000}


def test_a_check_that_may_be_under_way_is_not_begun_twice() -> None:
    hub = answering_after(1, broken)
    with (
        Client("http://hub", KEY, transport=httpx.MockTransport(hub), retry=NO_PAUSE) as one,
        pytest.raises(HarchError, match="E0802"),
    ):
        one.content.check()
    assert len(hub.asked) == 1


def test_what_takes_the_hub_long_is_waited_for_longer() -> None:
    seen: dict[str, object] = {}

    def handle(request: httpx.Request) -> httpx.Response:
        seen[f"{request.method} {request.url.path}"] = request.extensions["timeout"]["read"]
        return answer(request)

    with Client("http://hub", KEY, transport=httpx.MockTransport(handle), timeout_s=7.0) as one:
        one.content.put(b"")
        one.content.status()
        one.content.check()
        one.workloads.files("wl_1")
    assert seen == {
        "POST /v1/content/chunks": CHUNKS_TIMEOUT_S,
        "GET /v1/content": 7.0,
        "POST /v1/content/check": CHECK_TIMEOUT_S,
        "POST /v1/workloads/wl_1/files": FILES_TIMEOUT_S,
    }


def test_a_dead_hub_is_given_up_soon_although_its_answer_may_take_long() -> None:
    request = ApiRequest("POST", "/content/chunks", timeout_s=100.0)
    timeout = request_timeout(request, 30.0, others=["http://other"])
    assert (timeout.connect, timeout.read, timeout.write) == (4.0, 100.0, 30.0)


def test_chunks_go_to_no_other_hub_once_one_has_answered() -> None:
    unsent = SendFailure("nothing listens", sent=False)
    chunks = ApiRequest("POST", "/content/chunks")
    assert not may_go_elsewhere(chunks, unsent, answered_before=True)
    assert may_go_elsewhere(chunks, unsent, answered_before=False)


def test_content_that_another_hub_lacks_may_be_at_the_one_that_is_silent() -> None:
    error = HarchError("E1102", "not here")
    explain_failover(error, ["http://silent"], "http://asked")
    assert "http://silent did not answer" in error.hint


def test_threads_share_one_client() -> None:
    threads = 8
    together = threading.Barrier(threads)
    bodies: list[bytes] = []

    def handle(request: httpx.Request) -> httpx.Response:
        bodies.append(request.content)
        together.wait(timeout=20)
        return httpx.Response(200, json={"stored": len(request.content), "known": 0})

    with (
        Client("http://hub", KEY, transport=httpx.MockTransport(handle)) as one,
        ThreadPoolExecutor(threads) as pool,
    ):
        stored = list(pool.map(lambda n: one.content.put(b"x" * n).stored, range(1, threads + 1)))
    assert stored == list(range(1, threads + 1))
    assert sorted(map(len, bodies)) == stored
