"""How is one question asked until it is answered? The sans-I/O core that both clients drive.

An operation is a generator: it yields a `Request` or a `Sleep`, receives a `Reply` or a `Failure`, and returns its
result. It knows retries, errors and decoding, but no sockets and no event loop; so it is written once.
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from harch.base.errors import REGISTRY, HarchError

RETRY_STATUSES = frozenset({429, 503})
RETRY_AFTER_S_MAX = 30.0  # a hub that asks for more patience gets an error shown instead

# For codes that this client does not know: the nearest one it does.
_CODE_BY_STATUS = {400: "E0201", 401: "E0102", 403: "E0103", 404: "E0207", 405: "E0208", 409: "E0304", 413: "E0204"}
_CODE_BY_STATUS |= {429: "E0401", 503: "E0801", 507: "E1002"}

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ApiRequest:
    """One HTTP request below `/v1`."""

    method: str
    path: str
    params: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    timeout_s: float | None = None  # how long its answer may take; None: as any other


@dataclass(frozen=True, slots=True)
class ApiReply:
    """One HTTP answer; header names are lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class SendFailure:
    """No answer: the connection could not be made, or broke, or took too long (`quiet`: it was made, nothing came).

    `sent` is false where it is certain that nobody has heard the request.
    """

    reason: str
    quiet: bool = False
    sent: bool = True


@dataclass(frozen=True, slots=True)
class Sleep:
    delay_s: float


Operation = Generator[ApiRequest | Sleep, ApiReply | SendFailure | None, T]


class ApiError(HarchError):
    """An error that the hub answered, with its code, its hint and the HTTP status."""

    def __init__(self, code: str, message: str, *, status: int, hint: str, retry_after_s: int | None = None) -> None:
        super().__init__(code, message, hint=hint, retry_after_s=retry_after_s)
        self.status = status


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and how long to wait; full jitter, so that many clients do not come back all at once."""

    retries_max: int = 3
    delay_s_first: float = 0.2
    delay_s_max: float = 5.0
    jitter: Callable[[], float] = random.SystemRandom().random

    def delay_s(self, failures: int) -> float:
        """The pause after so many failures in a row (1 for the first)."""
        return min(self.delay_s_max, self.delay_s_first * 2.0 ** min(failures - 1, 30)) * self.jitter()


def exchange(request: ApiRequest, policy: RetryPolicy) -> Operation[ApiReply]:
    """Asks until there is an answer that is neither a broken connection nor "try again later".

    Every request of this client may be repeated: POSTs that create something carry an idempotency key.
    """
    failures = 0
    while True:
        answer = yield request
        if isinstance(answer, ApiReply):
            if answer.status < 400:
                return answer
            error: HarchError = error_of(answer)
            wait_s = float(error.retry_after_s or 0)
            retriable = answer.status in RETRY_STATUSES and wait_s <= RETRY_AFTER_S_MAX
        else:
            error, wait_s, retriable = unreachable(answer), 0.0, True
        failures += 1
        if not retriable or failures > policy.retries_max:
            raise error
        yield Sleep(max(wait_s, policy.delay_s(failures)))


def decoded(reply: ApiReply, type_: type[T]) -> T:
    try:
        return msgspec.json.decode(reply.body, type=type_)
    except msgspec.DecodeError as error:
        raise HarchError(
            "E1001",
            f"cannot parse the hub's answer: {error}",
            hint="is it a HarchOS hub, and of the same version? `harch doctor` checks",
        ) from error


def unreachable(failure: SendFailure | None) -> HarchError:
    reason = failure.reason if failure else "no answer"
    return HarchError(
        "E0802",
        f"no hub answers: {reason}",
        hint="start one with `harch up`, choose one with `harch context use`, or set HARCH_URL",
    )


def error_of(reply: ApiReply) -> ApiError:
    """The hub's own words where it has any; otherwise what the status says."""
    try:
        body = msgspec.json.decode(reply.body)
    except msgspec.DecodeError:
        body = {}
    body = body if isinstance(body, dict) else {}
    inner = body.get("error")
    inner = inner if isinstance(inner, dict) else {}
    meta = inner.get("meta")
    meta = meta if isinstance(meta, dict) else {}

    code = str(inner.get("code") or body.get("code") or "")
    message = str(inner.get("message") or body.get("message") or f"the hub answered HTTP {reply.status}")
    hint = str(inner.get("hint") or meta.get("hint") or "")
    if code not in REGISTRY:
        message = f"{message} ({code})" if code else message
        code = _CODE_BY_STATUS.get(reply.status, "E1001")
    retry_after = reply.headers.get("retry-after", "")
    retry_after_s = int(retry_after) if retry_after.isdecimal() else None
    return ApiError(code, message, status=reply.status, hint=hint, retry_after_s=retry_after_s)


def new_idempotency_key() -> str:
    return secrets.token_hex(16)
