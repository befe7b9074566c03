"""How do a process's lines reach SENTINEL?

From a thread of its own, in pushes; what fails waits on disk, with a limit.

Nothing here can stop or delay the process: its queue is bounded, its disk space is bounded, and every loss is counted
and reported as a line once SENTINEL is back.
"""

from __future__ import annotations

import contextlib
import logging
import re
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import cramjam

from harch.base.clock import Clock
from harch.base.ids import DEFAULT_TENANT
from harch.sentinel.log_shipper.records import LEVEL, OWN_LOGGER, ShippedLine, ShippingHandler
from harch.sentinel.log_shipper.tail import NewLines, OutputTail
from harch.sentinel.model.labels import Labels
from harch.sentinel.node.spool import RequestSpool

_S = 1_000_000_000
_SMALL = tuple(bytes((value,)) for value in range(0x80))


def push_body(streams: Iterable[tuple[Labels, Sequence[ShippedLine]]]) -> bytes:
    """The message, not yet packed."""
    return b"".join(_field(0x0A, _stream(labels, lines)) for labels, lines in streams if lines)


def stream_text(labels: Labels) -> str:
    return "{" + ", ".join(f'{name}="{_escaped(value)}"' for name, value in labels) + "}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _stream(labels: Labels, lines: Sequence[ShippedLine]) -> bytes:
    pieces = [_field(0x0A, stream_text(labels).encode())]
    known: dict[Labels, bytes] = {}  # the same metadata stands with many lines
    for time_ns, text, metadata in lines:
        more = known.get(metadata)
        if more is None:
            more = known[metadata] = b"".join(_field(0x1A, _pair(name, value)) for name, value in metadata)
        seconds, nanos = divmod(time_ns, _S)
        time = b"\x08" + varint(seconds) + b"\x10" + varint(nanos)
        raw = text.encode()
        entry = b"\x0a%c%b\x12%b%b%b" % (len(time), time, varint(len(raw)), raw, more)
        pieces += (b"\x12", varint(len(entry)), entry)
    return b"".join(pieces)


def _pair(name: str, value: str) -> bytes:
    return _field(0x0A, name.encode()) + _field(0x12, value.encode())


def _field(tag: int, content: bytes) -> bytes:
    return bytes((tag,)) + varint(len(content)) + content


def varint(value: int) -> bytes:
    if value < 0x80:
        return _SMALL[value]
    if value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    return bytes((value & 0x7F | 0x80,)) + varint(value >> 7)


EVERY_S = 2.0
CLOSE_S = 3.0
PATH = "/loki/api/v1/push"
SPOOL_BYTES_MAX = 16 * 1024 * 1024
_CATCH_UP_AT_ONCE = 20  # spooled pushes in one look, so that a SENTINEL that comes back is not overrun
_TRY_LATER = frozenset({401, 403, 404, 408, 429})

_TENANT = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")

_log = logging.getLogger(OWN_LOGGER)


class Post(Protocol):
    """Sends a push for a tenant and returns the status. Raises OSError and ValueError."""

    def __call__(self, body: bytes, tenant: str) -> int: ...


@dataclass(slots=True)
class ShipperCounts:
    """What became of lines. `dropped`: no room in the queue, on disk, or gone before they were read."""

    sent: int = 0
    refused: int = 0
    dropped: int = 0
    lost_bytes: int = 0  # of output of tasks and workers

    @property
    def by_outcome(self) -> dict[str, int]:
        return {"sent": self.sent, "dropped": self.dropped, "refused": self.refused}


class Shipper:
    """`step` is one look; `start` makes them on a thread until `close`."""

    def __init__(
        self,
        stream: Labels,
        handler: ShippingHandler,
        spool: RequestSpool,
        post: Post,
        clock: Clock,
        following: OutputTail | None = None,
        *,
        every_s: float = EVERY_S,
    ) -> None:
        self._stream, self._handler, self._spool, self._post = stream, handler, spool, post
        self._clock, self._following, self._every_s = clock, following, every_s
        self._sent = self._refused = self._reported_dropped = 0
        self._failing = False
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def counts(self) -> ShipperCounts:
        lost = self._following.lost_bytes if self._following is not None else 0
        return ShipperCounts(self._sent, self._refused, self._handler.dropped + self._spool.dropped, lost)

    def start(self) -> None:
        """From here on everything that the process logs is heard."""
        logging.getLogger().addHandler(self._handler)
        self._thread = threading.Thread(target=self._run, name="own-logs", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """One last look, for so long at most; what is not taken stays on disk for the next start."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join(CLOSE_S)
        logging.getLogger().removeHandler(self._handler)

    def step(self) -> None:
        """Sends what waits on disk, then what is new. What is new is not sent past what waits."""
        reachable = self._catch_up()
        lines = self._handler.take()
        if lines:
            body = _packed(self._stream, [*self._lost(), *lines])
            if not (reachable and self._delivered(body, DEFAULT_TENANT, len(lines))):
                self._spool.add(body)
                reachable = False
        if reachable and self._following is not None:
            self._follow(self._following)

    def _run(self) -> None:
        while not self._closing.wait(self._every_s):
            self._safely(self.step)
        self._safely(self.step)

    def _safely(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as fault:  # noqa: BLE001 - the thread's edge: a fault here must not end the shipping
            self._note(f"could not send lines: {type(fault).__name__}: {fault}")

    def _catch_up(self) -> bool:
        """False if SENTINEL takes nothing now."""
        for _ in range(_CATCH_UP_AT_ONCE):
            waiting = self._spool.oldest()
            if waiting is None:
                return True
            if not self._delivered(waiting, DEFAULT_TENANT, 0):
                return False
            self._spool.take()
        return True

    def _follow(self, following: OutputTail) -> None:
        with contextlib.closing(following.look()) as news:
            for latest in news:
                if latest.lines and not self._ship(latest):
                    break
                following.done(latest)
        following.save()

    def _ship(self, latest: NewLines) -> bool:
        if not _TENANT.fullmatch(
            latest.source.tenant
        ):  # SENTINEL would refuse it, and a header must not be broken by it
            self._refused += len(latest.lines)
            self._note(f"SENTINEL stores nothing for a tenant named {latest.source.tenant[:80]!r}")
            return True
        return self._delivered(_packed(latest.source.stream, latest.lines), latest.source.tenant, len(latest.lines))

    def _lost(self) -> list[ShippedLine]:
        """A line in the place of those that were dropped since the last time."""
        dropped = self.counts.dropped
        missing, self._reported_dropped = dropped - self._reported_dropped, dropped
        if not missing:
            return []
        now_ns = round(self._clock.now().timestamp() * 1e9)
        return [
            ShippedLine(
                now_ns, f"{missing} lines or pushes of this process were dropped: spool full", ((LEVEL, "warn"),)
            )
        ]

    def _delivered(self, body: bytes, tenant: str, lines: int) -> bool:
        """True if the push need not be kept: it was taken, or refused for good."""
        try:
            status = self._post(body, tenant)
        except (OSError, ValueError) as problem:
            self._note(f"cannot send lines to SENTINEL: {problem}")
            return False
        if status in _TRY_LATER or status >= 500:
            self._note(f"SENTINEL returned status {status}")
            return False
        if status >= 400:
            self._refused += lines or 1
            self._note(f"SENTINEL refused lines with status {status}")
        else:
            self._sent += lines
            self._failing = False
        return True

    def _note(self, text: str) -> None:
        """Once per trouble, and into the process's own log alone."""
        if not self._failing:
            _log.warning("%s; queued on disk (%d pushes)", text, len(self._spool))
            self._failing = True


def _packed(stream: Labels, lines: list[ShippedLine]) -> bytes:
    return bytes(cramjam.snappy.compress_raw(push_body([(stream, lines)])))
