"""May a request that got no answer go to another hub of the context, and how long is one waited for before?"""

from __future__ import annotations

from collections.abc import Sequence

import httpx

from harch.base.errors import HarchError
from harch.sdk.exchange import ApiRequest, SendFailure

# TCP repeats the first packet after 1 s and after 3 s: a connection survives the loss of two in a row.
CONNECT_S_MAX = 4.0
# A hub gives its peers 2 s to answer, and one that was killed is back within 10 s. One that lets a question wait longer
# is as good as gone to whoever sits there. Where no other hub is left, it has the whole timeout.
READ_S_MAX = 10.0
STREAM_TIMEOUT_S = 60.0  # without a byte; the hub sends keep-alives more often than that

_KNOWN_TO_ONE = frozenset({"E0301", "E0906", "E1102"})  # workloads, data, content: a hub finds those that it took
_OF_ONE_HUB = ("/workloads/", "/content/")


PROBE = ApiRequest("GET", "/health")  # a question like any other: it goes on where it is not answered


def needs_probe(request: ApiRequest, others: Sequence[str]) -> bool:
    """A change that a silent hub may have heard can go nowhere else, so it is sent to a hub that is known to answer."""
    return bool(others) and request.method != "GET"


def may_go_elsewhere(request: ApiRequest, failure: SendFailure, *, answered_before: bool) -> bool:
    """Questions that are not answered may; changes only if it is certain that they did not arrive.

    `answered_before`: by the hub that is silent now. Then whoever asks for a workload has found it there, and would
    not find it elsewhere; the same is true of chunks.
    """
    if answered_before and request.path.startswith(_OF_ONE_HUB):
        return False
    return not failure.sent or (failure.quiet and request.method == "GET")


def request_timeout(request: ApiRequest, timeout_s: float, *, others: Sequence[str]) -> httpx.Timeout:
    """Shorter where another hub can be asked, and a question may go there."""
    answer_s = request.timeout_s or timeout_s
    if not others:
        return httpx.Timeout(timeout_s, read=answer_s)
    read_s = min(answer_s, READ_S_MAX) if request.method == "GET" else answer_s
    return httpx.Timeout(timeout_s, connect=min(timeout_s, CONNECT_S_MAX), read=read_s)


def stream_timeout(*, others: Sequence[str]) -> httpx.Timeout:
    """A stream may be quiet for long; only its connection is waited for less where another hub can be asked."""
    return httpx.Timeout(STREAM_TIMEOUT_S, connect=CONNECT_S_MAX if others else STREAM_TIMEOUT_S)


def explain_failover(error: HarchError, silent: Sequence[str], queried: str) -> None:
    """What another hub does not know may well exist at the one that did not answer."""
    if silent and error.code in _KNOWN_TO_ONE:
        gone = ", ".join(silent)
        error.hint = f"{gone} did not answer, so {queried} was asked, which knows what it took itself: try again later"
