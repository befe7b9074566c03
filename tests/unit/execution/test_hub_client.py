"""An agent's requests survive a hub that restarts, and end at once when nobody wants them any more."""

from __future__ import annotations

import threading

import httpx
import msgspec
import pytest

from harch.base.errors import HarchError
from harch.content.frames import encode_ids
from harch.execution.content import hub_client as module
from harch.execution.content.cancellation import Cancellation, Cancelled
from harch.execution.content.hub_client import HubClient, connect, http_url
from harch.wire.content import TransferView, TreeView

VIEW = TreeView(ref="data_1", digest="0" * 64)


class Time:
    """Passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.slept: list[float] = []


class Patient(Cancellation):
    def __init__(self, time: Time) -> None:
        super().__init__()
        self._time = time

    def sleep(self, delay_s: float) -> None:
        self.check()
        self._time.now_s += delay_s
        self._time.slept.append(delay_s)


def answer(value: object, status: int = 200, **headers: str) -> httpx.Response:
    return httpx.Response(status, content=msgspec.json.encode(value), headers=headers)


def error(status: int, code: str = "E1110", message: str = "closed", **headers: str) -> httpx.Response:
    return answer({"code": code, "message": message, "error": {"hint": "do this"}}, status, **headers)


class Hub:
    """Answers in turn; the last answer again and again. An exception is raised."""

    def __init__(self, *answers: httpx.Response | Exception) -> None:
        self.answers, self.requests, self.time, self.notes = list(answers), [], Time(), []
        self.cancellation = Patient(self.time)

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        found = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(found, Exception):
            raise found
        return httpx.Response(found.status_code, content=found.content, headers=found.headers)

    def client(self, retry_s_max: float = 60.0) -> HubClient:
        client = httpx.Client(base_url="http://hub", transport=httpx.MockTransport(self))
        return HubClient(
            client,
            "wl_1",
            self.cancellation,
            note=self.notes.append,
            retry_s_max=retry_s_max,
            monotonic_s=lambda: self.time.now_s,
        )


def test_a_hub_that_comes_back_is_not_noticed_but_in_the_log():
    hub = Hub(httpx.ConnectError("refused"), error(503), httpx.ReadTimeout("late"), error(429), answer(VIEW))
    assert hub.client().tree("data_1") == VIEW
    assert len(hub.requests) == 5
    assert hub.notes == ["the hub at http://hub does not answer: ConnectError refused; trying again"]
    assert str(hub.requests[0].url) == "http://hub/v1/agents/content/trees?workload=wl_1&data=data_1"


def test_pauses_grow_up_to_a_limit_and_the_hub_may_ask_for_longer_ones():
    hub = Hub(*[error(503)] * 12, answer(VIEW))
    hub.client(retry_s_max=1000).tree("data_1")
    assert all(0 < one <= module.BACKOFF_S_MAX for one in hub.time.slept)
    assert hub.time.slept[0] < 1 < hub.time.slept[-1]
    hub = Hub(error(503, **{"retry-after": "3"}), answer(VIEW))
    hub.client().tree("data_1")
    assert hub.time.slept == [3.0]


def test_patience_ends_with_what_was_said_last():
    hub = Hub(httpx.ConnectError("refused"))
    with pytest.raises(HarchError, match="does not answer") as caught:
        hub.client(retry_s_max=30).tree("data_1")
    assert caught.value.code == "E1113"
    assert 30 <= hub.time.now_s <= 30 + module.BACKOFF_S_MAX
    with pytest.raises(HarchError) as caught:
        Hub(error(503, "E1110", "the bucket is gone")).client().tree("data_1")
    assert (caught.value.code, caught.value.message, caught.value.hint) == ("E1110", "the bucket is gone", "do this")


def test_patience_is_counted_from_the_last_answer():
    coming = answer(TransferView(digest="", bytes_done=1), 202)
    hub = Hub(*[error(503)] * 5, coming, *[error(503)] * 5, answer(VIEW))
    assert hub.client(retry_s_max=25).tree("data_1") == VIEW


@pytest.mark.parametrize(("status", "code"), [(404, "E1102"), (403, "E0103"), (413, "E1103"), (409, "E1104")])
def test_a_no_is_not_asked_again(status, code):
    hub = Hub(error(status, code, "no"))
    with pytest.raises(HarchError) as caught:
        hub.client().tree("data_1")
    assert (caught.value.code, len(hub.requests)) == (code, 1)


def test_answers_that_make_no_sense_are_errors():
    for found in (httpx.Response(200, content=b"<html>"), httpx.Response(418), error(400, "X1", "odd")):
        with pytest.raises(HarchError) as caught:
            Hub(found).client().tree("data_1")
        assert caught.value.code == "E1113"


def test_an_answer_without_end_is_cut_off():
    hub = Hub(httpx.Response(200, content=bytes(module.JSON_BYTES_MAX + 1)))
    with pytest.raises(HarchError, match="its answer is larger than"):
        hub.client(retry_s_max=0).tree("data_1")


def test_a_transfer_between_hubs_is_waited_for_as_long_as_it_goes_on():
    views = [TransferView(digest="", source_hub="tangier", bytes_done=done, bytes_total=9) for done in (0, 3, 3, 9)]
    hub, told = Hub(*[answer(view, 202) for view in views], answer(VIEW)), []
    assert hub.client().tree("data_1", progress=told.append) == VIEW
    assert told == views
    hub = Hub(answer(views[1], 202))
    with pytest.raises(HarchError, match="has stopped coming from hub tangier"):
        hub.client(retry_s_max=30).tree("data_1")
    assert 30 < hub.time.now_s < 40


def test_an_image_that_the_hub_does_not_have_is_none():
    assert Hub(error(404, "E1102")).client().image("r/n:t") is None
    with pytest.raises(HarchError):
        Hub(error(403, "E0103")).client().image("r/n:t")
    hub = Hub(answer(VIEW))
    assert hub.client().keep_image("r/n:t", "sha256:1", "2") == VIEW
    assert msgspec.json.decode(hub.requests[0].content) == {
        "reference": "r/n:t",
        "image_digest": "sha256:1",
        "digest": "2",
    }
    assert hub.requests[0].method == "PUT"


def test_chunks_are_asked_for_by_ref_and_put_for_the_tenant_of_the_work():
    names = [bytes([number]) * 32 for number in range(3)]
    hub = Hub(httpx.Response(200, content=encode_ids(names[1:])))
    assert hub.client().chunks().missing(names) == names[1:]
    hub.answers = [httpx.Response(200, content=b"frames")]
    assert hub.client().chunks("snap_1").fetch(names) == b"frames"
    hub.answers = [answer({"stored": 2, "known": 1})]
    assert hub.client().chunks().put(b"body").stored == 2
    urls = [str(request.url).removeprefix("http://hub/v1/agents/content/") for request in hub.requests]
    assert urls == ["missing?workload=wl_1", "fetch?workload=wl_1&ref=snap_1", "chunks?workload=wl_1"]


def test_whoever_waits_for_an_answer_can_be_called_off():
    asked, go_on = threading.Event(), threading.Event()

    def never(request: httpx.Request) -> httpx.Response:
        asked.set()
        go_on.wait(10)
        return answer(VIEW)

    cancellation = Cancellation()
    client = httpx.Client(base_url="http://hub", transport=httpx.MockTransport(never))
    outcome: list[BaseException] = []

    def ask() -> None:
        try:
            HubClient(client, "wl_1", cancellation).tree("data_1")
        except Cancelled as error:
            outcome.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    assert asked.wait(5)
    cancellation.cancel()
    thread.join(5)
    go_on.set()
    assert [type(one) for one in outcome] == [Cancelled]


def test_addresses_of_hubs_as_people_write_them():
    assert http_url("ws://h:1/v1/agents/connect") == "http://h:1"
    assert http_url("https://h/base/") == "https://h/base"
    assert str(connect("http://h:1", "key").base_url) == "http://h:1"
