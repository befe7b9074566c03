"""How does an endless answer survive a broken connection? Sans-I/O machines for event and log streams.

A driver asks for `request()`, passes every piece to `feed()`, says how the connection ended (`ended`, `broke`,
`refused`), and sleeps for what these return before it asks again; `done` ends it.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol, TypeVar

import msgspec

from harch.base.errors import HarchError, InvariantBroken
from harch.sdk.exchange import RETRY_STATUSES, ApiReply, ApiRequest, RetryPolicy, SendFailure, error_of, unreachable
from harch.sdk.operations import log_path
from harch.sdk.types import Event

SSE_BLOCK_BYTES_MAX = 1024 * 1024
STREAM_FAILURES_MAX = 30  # in a row, each followed by a pause of up to RetryPolicy.delay_s_max
GONE_FAILURES = 8  # about 10 s of pauses: a hub that was killed is back by then

T_co = TypeVar("T_co", covariant=True)


class Stream(Protocol[T_co]):
    @property
    def done(self) -> bool: ...

    @property
    def gone(self) -> bool:
        """Whether its hub was waited for long enough, and another one would do."""

    def move(self) -> None:
        """From now on another hub is asked."""

    def request(self) -> ApiRequest: ...

    def opened(self, headers: dict[str, str]) -> None: ...

    def feed(self, data: bytes) -> Sequence[T_co]: ...

    def ended(self) -> float: ...

    def broke(self, failure: SendFailure) -> float: ...

    def refused(self, reply: ApiReply) -> float: ...


class _Resuming:
    """What both streams share: counting failures in a row, and giving up after too many."""

    def __init__(self, policy: RetryPolicy, failures_max: int) -> None:
        self._policy = policy
        self._failures_max = failures_max
        self._failures = 0
        self._is_open = False
        self.done = False

    @property
    def gone(self) -> bool:
        return False  # what one hub has, no other one has

    def move(self) -> None:
        raise InvariantBroken("stream", "it belongs to one hub")

    def opened(self, headers: dict[str, str]) -> None:
        """Headers have come. No failure is forgiven yet: a hub that closes at once would be asked in a tight loop."""
        self._is_open = True

    def broke(self, failure: SendFailure) -> float:
        was_open, self._is_open = self._is_open, False
        if was_open and failure.quiet:
            return 0.0  # a task that says nothing for a while is no failure; asking again finds out if the hub is there
        return self._failed(unreachable(failure))

    def refused(self, reply: ApiReply) -> float:
        error = error_of(reply)
        if reply.status not in RETRY_STATUSES:
            raise error
        return max(self._failed(error), float(min(error.retry_after_s or 0, self._policy.delay_s_max)))

    def _failed(self, error: HarchError) -> float:
        self._failures += 1
        if self._failures > self._failures_max:
            raise error
        return self._policy.delay_s(self._failures)


class EventStream(_Resuming):
    """Server-sent events from `after` on, without end: a lost connection resumes after the last event seen.

    At another hub it goes on with what happens from then on: each has events, and numbers, of its own.
    """

    def __init__(self, policy: RetryPolicy, after: int, failures_max: int = STREAM_FAILURES_MAX) -> None:
        super().__init__(policy, failures_max)
        self.after: int | None = after
        self._buffer = b""
        self._silent = False

    @property
    def gone(self) -> bool:
        return self._silent or self._failures >= GONE_FAILURES

    def move(self) -> None:
        self.after, self._failures, self._silent = None, 0, False

    def broke(self, failure: SendFailure) -> float:
        self._silent = (
            failure.quiet and not self._is_open
        )  # connected, and not even a header: it was waited for already
        return super().broke(failure)

    def request(self) -> ApiRequest:
        self._buffer = b""
        params = {} if self.after is None else {"after": str(self.after)}
        return ApiRequest("GET", "/events", params, {"accept": "text/event-stream"})

    def feed(self, data: bytes) -> list[Event]:
        self._failures = 0
        *blocks, self._buffer = (self._buffer + data).replace(b"\r\n", b"\n").split(b"\n\n")
        if len(self._buffer) > SSE_BLOCK_BYTES_MAX:
            raise HarchError("E1001", "an event of the hub is larger than 1 MiB", hint="is it a HarchOS hub?")
        events = [event for block in blocks if (event := _event_of(block))]
        if events:
            self.after = events[-1].seq
        return events

    def ended(self) -> float:
        return self._failed(HarchError("E0802", "the hub closed the event stream", hint="is it stopping? try again"))


class LogStream(_Resuming):
    """The output of one task. `follow`: one connection that lasts as long as the task; else page by page to the end."""

    def __init__(
        self,
        policy: RetryPolicy,
        ref: str,
        *,
        rank: int,
        attempt: int | None,
        offset: int,
        follow: bool,
        since: datetime | None = None,
        preparation: bool = False,
    ) -> None:
        super().__init__(policy, STREAM_FAILURES_MAX)
        self.offset = offset
        self._path = log_path(ref)
        self._fixed = {"rank": str(rank)} | ({} if attempt is None else {"attempt": str(attempt)})
        self._fixed |= {} if since is None else {"since": since.isoformat()}
        self._fixed |= {"preparation": "true"} if preparation else {}
        self._follow = follow
        self._page_bytes = 0
        self._page_is_last = False

    def request(self) -> ApiRequest:
        self._page_bytes, self._page_is_last = 0, False
        params = {**self._fixed, "offset": str(self.offset)} | ({"follow": "true"} if self._follow else {})
        return ApiRequest("GET", self._path, params, {"accept": "text/plain"})

    def opened(self, headers: dict[str, str]) -> None:
        super().opened(headers)
        start = headers.get("x-log-offset", "")
        if start.isdecimal():
            self.offset = int(start)  # the hub knows better: the start may have been rotated away
        self._page_is_last = headers.get("x-log-eof") == "true"

    def feed(self, data: bytes) -> list[bytes]:
        if not data:
            return []
        self._failures = 0
        self._page_bytes += len(data)
        self.offset += len(data)
        return [data]

    def broke(self, failure: SendFailure) -> float:
        try:
            return super().broke(failure)
        except HarchError as error:
            error.hint = (
                "output is kept at the hub that took the workload, and no other has it: try again once it is back"
            )
            raise

    def ended(self) -> float:
        self.done = self._follow or self._page_is_last or self._page_bytes == 0
        return 0.0


class ChainExport(_Resuming):
    """A whole chain, once: a part of one proves nothing, so a broken connection is an error."""

    def __init__(self, policy: RetryPolicy, path: str) -> None:
        super().__init__(policy, failures_max=0)
        self._path = path

    def request(self) -> ApiRequest:
        return ApiRequest("GET", self._path, {}, {"accept": "application/x-ndjson"})

    def feed(self, data: bytes) -> list[bytes]:
        return [data]

    def ended(self) -> float:
        self.done = True
        return 0.0


def _event_of(block: bytes) -> Event | None:
    """One SSE block; comments, keep-alives and events of shapes that this client does not know are skipped."""
    lines = [line.removeprefix(b"data:").strip() for line in block.split(b"\n") if line.startswith(b"data:")]
    if not lines:
        return None
    try:
        return msgspec.json.decode(b"\n".join(lines), type=Event)
    except msgspec.DecodeError:
        return None
