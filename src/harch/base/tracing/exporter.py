"""How do spans reach SENTINEL, and when does a process begin to trace?

Through a queue with a limit, in batches, from a thread that nobody waits for; by the process's environment.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import ssl
import threading
from collections import Counter, deque
from collections.abc import Callable
from urllib.parse import urlsplit

from harch.base.clock import Clock
from harch.base.tracing.spans import Attributes, FinishedSpan, Resource, encode
from harch.base.tracing.tracer import TraceBudget, Tracing, is_on, share_from_env

# How do spans reach SENTINEL? Through a queue with a limit, in batches, from a thread that nobody waits for.
#
# If SENTINEL is slow or gone, the queue fills and spans are dropped and counted: work never waits for telemetry.


QUEUE_MAX = 8192
BATCH_MAX = 256
EVERY_S = 1.0
RETRY_S_FIRST, RETRY_S_MAX = 1.0, 30.0
TIMEOUT_S = 5.0
CLOSE_S = 2.0
PATH = "/v1/traces"
_ANSWER_BYTES = 4096
_TRY_LATER = frozenset({401, 403, 404, 408, 429})  # not ready, or not yet of a version that takes spans

_log = logging.getLogger("harch.tracing")

Post = Callable[[bytes], int]


class Exporter:
    """`give` never waits and never raises. `counts`: spans sent, dropped (no room) and refused (by SENTINEL)."""

    def __init__(self, resource: Resource, post: Post, *, queue_max: int = QUEUE_MAX, every_s: float = EVERY_S) -> None:
        self.counts: Counter[str] = Counter(sent=0, dropped=0, refused=0)
        self._resource, self._post, self._queue_max, self._every_s = resource, post, queue_max, every_s
        self._queue: deque[FinishedSpan] = deque()
        self._due = threading.Event()
        self._closing = threading.Event()
        self._failing = False
        self._thread: threading.Thread | None = None

    def give(self, span: FinishedSpan) -> None:
        queue = self._queue
        if len(queue) >= self._queue_max:
            self.counts["dropped"] += 1
            return
        queue.append(span)
        if len(queue) == BATCH_MAX:
            self._due.set()

    @property
    def waiting(self) -> int:
        return len(self._queue)

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="spans", daemon=True)
        self._thread.start()

    def close(self, within_s: float = CLOSE_S) -> None:
        """Sends what waits, for so long at most."""
        self._closing.set()
        self._due.set()
        if self._thread is not None:
            self._thread.join(within_s)
        self.counts["dropped"] += len(self._queue)
        self._queue.clear()

    def _run(self) -> None:
        pause_s = RETRY_S_FIRST
        while True:
            self._due.wait(self._every_s)
            self._due.clear()
            closing = self._closing.is_set()
            while self._queue:
                batch = [self._queue.popleft() for _ in range(min(BATCH_MAX, len(self._queue)))]
                if self._sent(batch):
                    pause_s = RETRY_S_FIRST
                elif closing or self._closing.wait(pause_s):
                    self.counts["dropped"] += len(batch)
                    return
                else:
                    self._keep(batch)
                    pause_s = min(2 * pause_s, RETRY_S_MAX)
            if closing:
                return

    def _keep(self, batch: list[FinishedSpan]) -> None:
        """Back to the head of the queue, as far as there is room."""
        room = max(0, self._queue_max - len(self._queue))
        self.counts["dropped"] += max(0, len(batch) - room)
        self._queue.extendleft(reversed(batch[len(batch) - room :] if room < len(batch) else batch))

    def _sent(self, batch: list[FinishedSpan]) -> bool:
        """True if the batch need not be kept: it was taken, or refused for good."""
        try:
            status = self._post(encode(batch, self._resource))
        except (OSError, ValueError) as problem:
            self._note(f"no spans reach SENTINEL: {problem}")
            return False
        if status in _TRY_LATER or status >= 500:
            self._note(f"SENTINEL refused spans with status {status}")
            return False
        self.counts["sent" if status < 400 else "refused"] += len(batch)
        self._failing = False
        return True

    def _note(self, text: str) -> None:
        """Once per trouble."""
        if not self._failing:
            _log.info("%s; %d wait", text, len(self._queue))
            self._failing = True


class HttpPost:
    """A request by hand over one connection that is kept: an HTTP library would cost an agent a third of its memory."""

    def __init__(self, url: str, token: Callable[[], str], *, path: str = PATH, timeout_s: float = TIMEOUT_S) -> None:
        """`url` is where SENTINEL listens; its own path is not looked at."""
        self._at = urlsplit(url)
        self._token, self._path, self._timeout_s = token, path, timeout_s
        self._socket: socket.socket | None = None

    def __call__(self, body: bytes, tenant: str = "") -> int:
        """The status. Raises OSError and ValueError. A connection that was closed meanwhile is made anew, once."""
        kept = self._socket is not None
        try:
            return self._request(body, tenant)
        except (OSError, ValueError):
            self._hang_up()
            if not kept:
                raise
        try:
            return self._request(body, tenant)
        except (OSError, ValueError):
            self._hang_up()
            raise

    def _request(self, body: bytes, tenant: str) -> int:
        line = self._connection()
        token = self._token()
        head = (
            f"POST {self._path} HTTP/1.1\r\nHost: {self._at.netloc}\r\nContent-Length: {len(body)}\r\n"
            "Content-Type: application/x-protobuf\r\n"
        )
        named = (("Authorization: Bearer ", token), ("X-Scope-OrgID: ", tenant))
        head += "".join(f"{name}{value}\r\n" for name, value in named if value) + "\r\n"
        line.sendall(head.encode("latin-1") + body)
        return self._status(line)

    def _status(self, line: socket.socket) -> int:
        answer = b""
        while b"\r\n\r\n" not in answer and len(answer) < _ANSWER_BYTES:
            piece = line.recv(_ANSWER_BYTES)
            if not piece:
                raise ConnectionResetError("SENTINEL closed the connection")
            answer += piece
        head, _, rest = answer.partition(b"\r\n\r\n")
        first, *fields = head.split(b"\r\n")
        words = first.split()
        if len(words) < 2 or not words[1].isdigit():
            raise ValueError("the answer is not HTTP")
        named = dict(field.lower().split(b":", 1) for field in fields if b":" in field)
        size = named.get(b"content-length", b"").strip()
        if named.get(b"connection", b"").strip() == b"close" or not size.isdigit() or int(size) > 1 << 20:
            self._hang_up()
        else:
            left = int(size) - len(rest)
            while left > 0:
                left -= len(line.recv(min(left, 65536)) or b" " * left)
        return int(words[1])

    def _connection(self) -> socket.socket:
        if self._socket is None:
            at = self._at
            host, port = at.hostname or "127.0.0.1", at.port or (443 if at.scheme == "https" else 80)
            line = socket.create_connection((host, port), self._timeout_s)
            if at.scheme == "https":
                line = ssl.create_default_context().wrap_socket(line, server_hostname=host)
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket = line
        return self._socket

    def _hang_up(self) -> None:
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.close()
            self._socket = None


# How does a process begin to trace? By its environment and by where SENTINEL listens; without either it does not.


class ProcessTracing(Tracing):
    """Tracing that is exported to a SENTINEL."""

    def __init__(self, resource: Resource, url: str, token: Callable[[], str], clock: Clock) -> None:
        self.exporter = Exporter(resource, HttpPost(url, token))
        super().__init__(self.exporter.give, clock, TraceBudget(share_from_env()))
        self.counts = self.exporter.counts
        self.exporter.start()

    def close(self) -> None:
        self.exporter.close()


def open_tracing(
    service: str, attributes: Attributes, *, url: str | None, token: Callable[[], str], clock: Clock
) -> ProcessTracing | None:
    """None without a SENTINEL, or if `HARCH_TRACING` is off. Raises E0201 for settings that are none."""
    return ProcessTracing(Resource(service, attributes), url, token, clock) if url and is_on() else None
