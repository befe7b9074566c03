"""What did the message engine say, and what do we say to it?

The NATS protocol as a pure state machine: bytes in, messages and events out, commands as bytes.
"""

# harch: pure

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, NoReturn

import msgspec
from msgspec import Struct

from harch.pipelines.client.errors import NatsError, ProtocolError

# What did the message engine say? The NATS protocol as a pure state machine: bytes in, messages and events out.
#
# Bytes are received straight into one large buffer (`writable`, `wrote`), and payloads are views into it, so nothing is
# copied. A view is valid until the next call of `writable`; who wants to keep it copies it. Frames may arrive in pieces
# of any size. Bytes that are no NATS, and frames beyond the limits, raise `ProtocolError`, once and for good.


BUFFER_BYTES = 1 << 20  # at first; grows with the largest message that comes
PAYLOAD_BYTES_MAX = 8 << 20  # as in the generated configuration of the engine
LINE_BYTES_MAX = 64 << 10  # INFO lists every server of a cluster; other lines are far shorter
SUBJECT_BYTES_MAX = 4096
CACHED_MAX = 4096  # subjects and numbers of subscriptions seen before
READ_BYTES_MIN = 256 << 10  # less room than this at the end of the buffer: move what is left to its start

_CRLF = b"\r\n"
_MSG, _HMSG = b"MSG", b"HMSG"


class Message(Struct, gc=False):
    """One message. `payload` and `header` are views until `kept` copies them; `status` is set by the engine itself."""

    subject: str
    sid: int
    reply: str
    payload: memoryview | bytes
    header: memoryview | bytes = b""

    @property
    def status(self) -> int:
        """The code of a message without a sender, such as 503 for a request that nobody answers; 0 for all others."""
        line = bytes(self.header[:12])
        code = line[9:12]
        return int(code) if line.startswith(b"NATS/1.0 ") and code.isdigit() else 0

    def headers(self) -> dict[str, str]:
        """The header's fields; of repeated ones the last."""
        found: dict[str, str] = {}
        for line in bytes(self.header).split(_CRLF)[1:]:
            name, colon, value = line.partition(b":")
            if colon:
                found[name.decode("utf-8", "replace")] = value.strip().decode("utf-8", "replace")
        return found

    def kept(self) -> Message:
        """A copy that outlives the buffer."""
        return Message(self.subject, self.sid, self.reply, bytes(self.payload), bytes(self.header))


class ServerPing(Struct, frozen=True):
    """The engine wants to know whether we live; answer with PONG."""


class ServerPong(Struct, frozen=True):
    """The answer to our oldest unanswered PING: all that was sent before it has been processed."""


class Ok(Struct, frozen=True):
    """Only in verbose mode, which we do not use; harmless."""


class ServerRefusal(Struct, frozen=True):
    """`-ERR`: the engine says no, and mostly hangs up afterwards."""

    text: str

    @property
    def is_permission(self) -> bool:
        return "permissions violation" in self.text.lower()

    @property
    def is_authorization(self) -> bool:
        words = self.text.lower()
        return "authorization" in words or "authentication" in words

    @property
    def is_fatal(self) -> bool:
        """All but these end the connection, as the engine's documentation says."""
        return not self.is_permission and "invalid subject" not in self.text.lower()


class Info(Struct, frozen=True):
    """What the engine tells of itself, at the start and when its cluster changes."""

    fields: dict[str, Any]

    @property
    def payload_bytes_max(self) -> int:
        value = self.fields.get("max_payload")
        return value if isinstance(value, int) and value > 0 else PAYLOAD_BYTES_MAX

    @property
    def nonce(self) -> str:
        value = self.fields.get("nonce")
        return value if isinstance(value, str) else ""

    @property
    def tls_required(self) -> bool:
        return self.fields.get("tls_required") is True

    @property
    def is_leaving(self) -> bool:
        """`ldm`: the server shuts down and asks its clients to go elsewhere."""
        return self.fields.get("ldm") is True


Event = Message | ServerPing | ServerPong | Ok | ServerRefusal | Info
_PING, _PONG, _OK = ServerPing(), ServerPong(), Ok()


class Parser:
    """Owns the receive buffer. Drive it with `writable` / `wrote` / `next`, or `feed` where a copy does not matter."""

    def __init__(self, *, buffer_bytes: int = BUFFER_BYTES, payload_bytes_max: int = PAYLOAD_BYTES_MAX) -> None:
        self._buffer = bytearray(max(buffer_bytes, LINE_BYTES_MAX + READ_BYTES_MIN))
        self._view = memoryview(self._buffer)
        self._payload_bytes_max = payload_bytes_max
        self._start = self._end = 0  # what was received and not yet returned
        self._wanted = 0  # do not look again before so many bytes are there
        self._broken = ""
        self._subjects: dict[bytes, str] = {}
        self._sids: dict[bytes, int] = {}

    def writable(self) -> memoryview:
        """Room for the next bytes. Ends the life of every view handed out before."""
        left = self._end - self._start
        if not left:
            self._start = self._end = 0
        elif len(self._buffer) - self._end < max(READ_BYTES_MIN, self._wanted - left):
            self._make_room(left)
        return self._view[self._end :]

    def _make_room(self, left: int) -> None:
        """Moves what is left to the start, in a larger buffer if the frame that is coming needs one. It never needs
        more than the largest message and its line, for larger ones are refused at their first line."""
        kept = bytes(self._view[self._start : self._end])
        needed = max(self._wanted, left) + READ_BYTES_MIN
        if needed > len(self._buffer):
            self._buffer = bytearray(max(needed, 2 * len(self._buffer)))
            self._view = memoryview(self._buffer)
        self._view[:left] = kept
        self._start, self._end = 0, left

    def wrote(self, count: int) -> None:
        """So many bytes were put into what `writable` gave."""
        self._end += count

    def feed(self, data: bytes) -> list[Event]:
        """Takes bytes in and returns what they complete, with messages copied. For tests and slow lanes."""
        found: list[Event] = []
        left = memoryview(data)
        while len(left):
            room = self.writable()
            count = min(len(room), len(left))
            room[:count], left = left[:count], left[count:]
            self.wrote(count)
            found += [event.kept() if isinstance(event, Message) else event for event in self.complete()]
        return found

    def complete(self) -> Iterator[Event]:
        """Every frame that is whole by now. Their views stay valid together, until the next `writable`."""
        while (event := self.next()) is not None:
            yield event

    @property
    def pending_bytes(self) -> int:
        return self._end - self._start

    def next(self) -> Event | None:
        """The next whole frame, or None until more bytes come."""
        if self._broken:
            raise ProtocolError(self._broken)
        start, end = self._start, self._end
        if end - start < self._wanted or start == end:
            return None
        line_end = self._buffer.find(_CRLF, start, min(end, start + LINE_BYTES_MAX))
        if line_end < 0:
            if end - start >= LINE_BYTES_MAX:
                self._fail("a line without an end")
            self._check_beginning(start)
            return None
        first = self._buffer[start]
        if first == 77 or first == 72:  # M, H: by far the most frequent
            return self._message(start, line_end, end)
        self._start, self._wanted = line_end + 2, 0
        return self._control(bytes(self._view[start:line_end]))

    def _message(self, start: int, line_end: int, end: int) -> Message | None:
        """The hot path: few calls, and a subject is checked and decoded once, not once per message."""
        fields = bytes(self._view[start:line_end]).split()
        word, count = fields[0], len(fields)
        header_bytes = 0
        if word == _HMSG and (count == 5 or count == 6):
            header_bytes = self._number(fields[-2], self._payload_bytes_max)
        elif word != _MSG or (count != 4 and count != 5):
            self._fail("a malformed message line")
        total = self._number(fields[-1], self._payload_bytes_max)
        if header_bytes > total:
            self._fail("a header longer than its message")
        body = line_end + 2
        tail = body + total
        if end < tail + 2:
            self._wanted = tail + 2 - start
            return None
        if self._buffer[tail] != 13 or self._buffer[tail + 1] != 10:
            self._fail("a message of the wrong length")
        self._start, self._wanted = tail + 2, 0
        subject = self._subjects.get(fields[1]) or self._subject(fields[1])
        sid = self._sids.get(fields[2])
        if sid is None:
            sid = self._sid(fields[2])
        reply = self._text(fields[3]) if count == 5 + (word == _HMSG) else ""
        view = self._view
        if not header_bytes:
            return Message(subject, sid, reply, view[body:tail])
        return Message(subject, sid, reply, view[body + header_bytes : tail], view[body : body + header_bytes])

    def _control(self, line: bytes) -> Event:
        if line == b"PING":
            return _PING
        if line == b"PONG":
            return _PONG
        if line.startswith(b"+OK"):
            return _OK
        if line.startswith(b"-ERR"):
            return ServerRefusal(line[4:].strip().strip(b"'").decode("utf-8", "replace"))
        if not line.startswith(b"INFO "):
            self._fail(f"an unknown operation {line[:16]!r}")
        try:
            return Info(msgspec.json.decode(line[5:], type=dict[str, Any]))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self._fail("an INFO that is not JSON")

    def _check_beginning(self, start: int) -> None:
        """Refuses nonsense at its first byte instead of waiting for a line that may never end."""
        if self._buffer[start] not in b"MHPI+-":
            self._fail(f"an unknown operation {bytes(self._view[start : start + 1])!r}")

    def _subject(self, raw: bytes) -> str:
        if len(self._subjects) >= CACHED_MAX:
            self._subjects.clear()
        text = self._subjects[raw] = self._text(raw)
        return text

    def _sid(self, raw: bytes) -> int:
        if len(self._sids) >= CACHED_MAX:
            self._sids.clear()
        number = self._sids[raw] = self._number(raw, 10**9)
        return number

    def _text(self, raw: bytes) -> str:
        if len(raw) > SUBJECT_BYTES_MAX:
            self._fail("a subject that is too long")
        try:
            return raw.decode()
        except UnicodeDecodeError:
            self._fail("a subject that is not UTF-8")

    def _number(self, raw: bytes, largest: int) -> int:
        number = int(raw) if raw.isdigit() and len(raw) <= 10 else -1
        if not 0 <= number <= largest:
            self._fail(f"a number {raw[:16]!r} that is invalid or above {largest}")
        return number

    def _fail(self, what: str) -> NoReturn:
        self._broken = f"the message engine sent {what}"
        raise ProtocolError(self._broken)


# What do we say to the message engine? Every command as bytes, with subjects checked before they can break a line.


CRLF = b"\r\n"
PING, PONG = b"PING\r\n", b"PONG\r\n"
HEADER_BYTES_MAX = 16 << 10
# One search in place of a look at every character: replies are checked with each request.
_UNSAFE, _UNSAFE_NAME, _LINE_END = re.compile(r"[\s\x00-\x1f\x7f]"), re.compile(r"[\r\n:]"), re.compile(r"[\r\n]")


class InvalidSubject(NatsError):
    """A subject that would be read as something else."""


def checked_subject(subject: str, *, wildcards: bool = False) -> bytes:
    """The subject, encoded. Raises `InvalidSubject` for blanks, line ends, empty words, and wildcards in a publish."""
    words = subject.split(".")
    raw = subject.encode()
    if len(raw) > SUBJECT_BYTES_MAX or "" in words:
        raise InvalidSubject(f"`{subject[:64]}` is not a subject: empty words, or too long")
    if _UNSAFE.search(subject):
        raise InvalidSubject("a subject must not hold blanks or control characters")
    if not wildcards and ("*" in words or ">" in words):
        raise InvalidSubject(f"`{subject[:64]}` has a wildcard; a message needs one subject")
    if ">" in words[:-1]:
        raise InvalidSubject(f"`{subject[:64]}`: `>` may only be the last word")
    return raw


@lru_cache(maxsize=4096)  # a worker publishes on few subjects, millions of times
def subject_bytes(subject: str) -> bytes:
    return checked_subject(subject)


def publish_head(subject: str, payload_bytes: int, reply: str = "") -> bytes:
    """What stands before the payload; `CRLF` comes after it."""
    if reply:  # used once: not worth remembering
        return b"PUB %b %b %d\r\n" % (subject_bytes(subject), checked_subject(reply), payload_bytes)
    return b"PUB %b %d\r\n" % (subject_bytes(subject), payload_bytes)


def header_block(headers: Mapping[str, str]) -> bytes:
    """Headers as they travel. Line ends in a name or value would forge further headers, so they are refused."""
    lines = [b"NATS/1.0\r\n"]
    for name, value in headers.items():
        if not name or _UNSAFE_NAME.search(name) or _LINE_END.search(value):
            raise NatsError(f"header `{name[:32]}` contains a line break or a colon")
        lines.append(f"{name}: {value}\r\n".encode())
    lines.append(CRLF)
    block = b"".join(lines)
    if len(block) > HEADER_BYTES_MAX:
        raise NatsError(f"headers of {len(block)} bytes; at most {HEADER_BYTES_MAX}")
    return block


def publish_head_with_headers(subject: str, block: bytes, payload_bytes: int, reply: str = "") -> bytes:
    """The line and the headers; the payload and `CRLF` come after it."""
    words = b"%b %b" % (subject_bytes(subject), checked_subject(reply)) if reply else subject_bytes(subject)
    return b"HPUB %b %d %d\r\n%b" % (words, len(block), len(block) + payload_bytes, block)


def head_of(subject: str, payload_bytes: int, reply: str, headers: Mapping[str, str] | None) -> bytes:
    """Whichever of the two forms fits."""
    if not headers:
        return publish_head(subject, payload_bytes, reply)
    return publish_head_with_headers(subject, header_block(headers), payload_bytes, reply)


def subscribe(subject: str, sid: int, queue: str = "") -> bytes:
    raw = checked_subject(subject, wildcards=True)
    if queue:
        return b"SUB %b %b %d\r\n" % (raw, subject_bytes(queue), sid)
    return b"SUB %b %d\r\n" % (raw, sid)


def unsubscribe(sid: int, after: int = 0) -> bytes:
    return b"UNSUB %d %d\r\n" % (sid, after) if after else b"UNSUB %d\r\n" % sid
