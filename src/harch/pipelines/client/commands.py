"""What do we say to the message engine? Every command as bytes, with subjects checked before they can break a line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

from harch.pipelines.client.errors import NatsError
from harch.pipelines.client.protocol import SUBJECT_BYTES_MAX

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
        raise InvalidSubject(f"`{subject[:64]}` has a wildcard, and a message goes to one subject")
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
            raise NatsError(f"header `{name[:32]}` holds a line end or a colon")
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
