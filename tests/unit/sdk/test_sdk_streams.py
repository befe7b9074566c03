"""Do event and log streams survive broken connections without losing or repeating anything?"""

from __future__ import annotations

import json

import pytest

from harch.base.errors import HarchError
from harch.sdk.exchange import ApiError, ApiReply, RetryPolicy, SendFailure
from harch.sdk.streams import SSE_BLOCK_BYTES_MAX, STREAM_FAILURES_MAX, EventStream, LogStream

POLICY = RetryPolicy(jitter=lambda: 0.0)


def sse(seq: int, kind: str = "workload.running") -> bytes:
    data = {"seq": seq, "at": "2026-01-02T03:04:05Z", "kind": kind}
    return f"id: {seq}\nevent: {kind}\ndata: {json.dumps(data)}\n\n".encode()


def log(*, follow: bool, offset: int = 0) -> LogStream:
    return LogStream(POLICY, "wl_1", rank=2, attempt=None, offset=offset, follow=follow)


def test_events_are_whole_however_the_bytes_are_cut() -> None:
    text = b": hello\n\n" + sse(1) + b": keep-alive\n\n" + sse(2)
    for cut in range(len(text)):
        stream = EventStream(POLICY, after=0)
        stream.request()
        assert [event.seq for event in stream.feed(text[:cut]) + stream.feed(text[cut:])] == [1, 2]


def test_a_broken_event_stream_resumes_after_the_last_event() -> None:
    stream = EventStream(POLICY, after=3)
    assert stream.request().params == {"after": "3"}
    stream.feed(sse(4) + sse(5)[:-10])
    stream.broke(SendFailure("reset"))
    assert stream.request().params == {"after": "4"}
    assert [event.seq for event in stream.feed(sse(5))] == [5]  # what was cut off comes whole


def test_an_event_stream_that_the_hub_closes_goes_on() -> None:
    stream = EventStream(POLICY, after=0)
    stream.request()
    stream.feed(sse(1))
    stream.ended()
    assert not stream.done
    assert stream.request().params == {"after": "1"}


def test_events_that_are_not_understood_are_skipped() -> None:
    stream = EventStream(POLICY, after=0)
    stream.request()
    assert [event.seq for event in stream.feed(b"data: [DONE]\n\n" + b'data: {"x": 1}\n\n' + sse(9))] == [9]


def test_an_event_without_end_is_refused() -> None:
    stream = EventStream(POLICY, after=0)
    with pytest.raises(HarchError, match="larger than 1 MiB"):
        stream.feed(b"x" * (SSE_BLOCK_BYTES_MAX + 1))


def test_too_many_failures_in_a_row_end_a_stream_and_one_byte_starts_the_count_again() -> None:
    stream = EventStream(POLICY, after=0, failures_max=2)
    for _ in range(5):
        stream.broke(SendFailure("reset"))
        stream.broke(SendFailure("reset"))
        stream.feed(b":\n\n")
    stream.broke(SendFailure("reset"))
    stream.broke(SendFailure("reset"))
    with pytest.raises(HarchError, match="no hub answers"):
        stream.broke(SendFailure("reset"))


def test_a_busy_hub_is_asked_again_and_a_refusal_is_an_error() -> None:
    stream = EventStream(POLICY, after=0)
    assert stream.refused(ApiReply(503, {"retry-after": "2"}, b"")) == 2.0
    with pytest.raises(ApiError):
        stream.refused(ApiReply(401, {}, b""))


def test_a_followed_log_resumes_where_it_broke_and_ends_with_the_task() -> None:
    stream = log(follow=True)
    assert stream.request().params == {"rank": "2", "offset": "0", "follow": "true"}
    stream.opened({})
    assert stream.feed(b"one\n") == [b"one\n"]
    stream.broke(SendFailure("reset"))
    assert stream.request().params["offset"] == "4"
    stream.feed(b"two\n")
    stream.ended()
    assert stream.done


def test_a_log_that_is_not_followed_is_read_page_by_page_until_an_empty_one() -> None:
    stream = log(follow=False)
    stream.request()
    stream.opened({"x-log-offset": "996", "x-log-eof": "false"})  # what came before was rotated away
    stream.feed(b"last")
    stream.ended()
    assert not stream.done
    assert stream.request().params["offset"] == "1000"
    stream.opened({"x-log-offset": "1000"})
    stream.ended()
    assert stream.done


def test_the_last_page_of_a_finished_task_needs_no_other_question() -> None:
    stream = log(follow=False)
    stream.request()
    stream.opened({"x-log-offset": "0", "x-log-eof": "true"})
    stream.feed(b"all")
    stream.ended()
    assert stream.done


def test_a_task_that_is_silent_for_hours_does_not_end_its_stream() -> None:
    stream = log(follow=True)
    for _ in range(1000):
        stream.request()
        stream.opened({"x-log-offset": "0"})
        assert stream.broke(SendFailure("took too long", quiet=True)) == 0.0
    for _ in range(STREAM_FAILURES_MAX):  # a hub that does not even accept is another matter
        stream.broke(SendFailure("took too long", quiet=True))
    with pytest.raises(HarchError, match="no hub answers"):
        stream.broke(SendFailure("took too long", quiet=True))
