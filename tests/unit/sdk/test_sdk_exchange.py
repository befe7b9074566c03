"""Is one question asked until it is answered, and is "no" told in the hub's own words?"""

from __future__ import annotations

import json

import pytest

from harch.base.errors import EXIT_INFEASIBLE, HarchError
from harch.sdk.exchange import (
    ApiError,
    ApiReply,
    ApiRequest,
    Operation,
    RetryPolicy,
    SendFailure,
    Sleep,
    decoded,
    error_of,
    exchange,
)
from harch.sdk.types import Health

POLICY = RetryPolicy(retries_max=3, delay_s_first=1.0, delay_s_max=3.0, jitter=lambda: 1.0)
OK = ApiReply(200, {}, b"{}")
BUSY = ApiReply(503, {}, b"")


def drive(
    operation: Operation[ApiReply], *answers: ApiReply | SendFailure
) -> tuple[ApiReply, list[float], list[ApiRequest]]:
    """Plays the hub: the result, the pauses and the requests."""
    pauses: list[float] = []
    requests: list[ApiRequest] = []
    left = list(answers)
    answer: ApiReply | SendFailure | None = None
    while True:
        try:
            step = operation.send(answer)
        except StopIteration as stop:
            assert left == []
            return stop.value, pauses, requests
        if isinstance(step, Sleep):
            pauses.append(step.delay_s)
            answer = None
        else:
            requests.append(step)
            answer = left.pop(0)


def test_a_broken_connection_and_a_busy_hub_are_asked_again_ever_more_slowly() -> None:
    request = ApiRequest("POST", "/workloads", headers={"idempotency-key": "k"}, body=b"{}")
    reply, pauses, requests = drive(exchange(request, POLICY), SendFailure("broke"), BUSY, SendFailure("broke"), OK)
    assert reply is OK
    assert pauses == [1.0, 2.0, 3.0]
    assert requests == [request] * 4  # the same idempotency key each time


def test_retry_after_is_a_lower_limit_of_the_pause() -> None:
    _, pauses, _ = drive(exchange(ApiRequest("GET", "/x"), POLICY), ApiReply(429, {"retry-after": "7"}, b""), OK)
    assert pauses == [7.0]


def test_a_hub_that_asks_for_too_much_patience_is_an_error_at_once() -> None:
    with pytest.raises(ApiError) as caught:
        drive(exchange(ApiRequest("GET", "/x"), POLICY), ApiReply(503, {"retry-after": "3600"}, b""))
    assert caught.value.retry_after_s == 3600


def test_it_gives_up_after_the_limit() -> None:
    with pytest.raises(HarchError) as caught:
        drive(exchange(ApiRequest("GET", "/x"), POLICY), *[SendFailure("nothing listens")] * 4)
    assert caught.value.code == "E0802"
    assert "nothing listens" in caught.value.message


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 500, 507])
def test_other_errors_are_not_asked_again(status: int) -> None:
    with pytest.raises(ApiError) as caught:
        drive(exchange(ApiRequest("GET", "/x"), POLICY), ApiReply(status, {}, b"oops"))
    assert caught.value.status == status


def test_an_error_keeps_the_hubs_code_message_and_hint() -> None:
    body = {"success": False, "code": "E0303", "message": "too big", "error": {"code": "E0303", "hint": "ask less"}}
    error = error_of(ApiReply(409, {}, json.dumps(body).encode()))
    assert (error.code, error.message, error.hint) == ("E0303", "too big", "ask less")
    assert error.kind.exit_code == EXIT_INFEASIBLE


def test_a_code_of_a_newer_hub_becomes_the_nearest_known_one() -> None:
    error = error_of(ApiReply(404, {}, b'{"code": "E9999", "message": "no such moon"}'))
    assert error.code == "E0207"
    assert error.message == "no such moon (E9999)"


@pytest.mark.parametrize("body", [b"", b"[]", b"<html>", b'{"error": "text"}', b'{"error": {"meta": 3}}'])
def test_a_body_that_is_not_ours_still_makes_an_error(body: bytes) -> None:
    assert "HTTP 500" in error_of(ApiReply(500, {}, body)).message


def test_an_answer_that_is_not_understood_is_told() -> None:
    with pytest.raises(HarchError, match="cannot parse"):
        decoded(ApiReply(200, {}, b"<html>"), Health)
