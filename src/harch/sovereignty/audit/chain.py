"""How does an entry get its place? Each carries the hash of the one before; its own hash stands beside it.

A line of an export is `{"entry":ENTRY,"hash":"HASH"}` with HASH = SHA-256 of exactly the bytes ENTRY. The hash can be
checked with any tool, and a line that was changed in a single byte, even in its frame, is no line any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import sha256

import msgspec
from msgspec import Struct

from harch.sovereignty.audit.entry import AuditEntry, Draft, decode_entry, encode

NO_HASH = "0" * 64  # what the first entry has as `prev`
LINE_BYTES_MAX = 1024 * 1024  # longer ones are taken for damage

_HEAD, _MIDDLE, _TAIL = b'{"entry":', b',"hash":"', b'"}\n'
_HASH_AT = -len(_TAIL) - len(NO_HASH)
_MIDDLE_AT = _HASH_AT - len(_MIDDLE)


class Head(Struct, frozen=True, gc=False):
    """The end of a chain."""

    seq: int = 0
    hash: str = NO_HASH


class Linked(Struct, frozen=True, gc=False):
    """An entry in its place: its canonical bytes and their hash."""

    entry: AuditEntry
    body: bytes
    hash: str

    @property
    def head(self) -> Head:
        return Head(self.entry.seq, self.hash)


def link(head: Head, draft: Draft, *, hub: str, at: str) -> Linked:
    """The entry that follows `head`."""
    entry = AuditEntry(
        actor=draft.actor,
        at=at,
        authority=draft.authority,
        countries=draft.countries,
        data=draft.data,
        details=draft.details,
        hub=hub,
        kind=draft.kind,
        policy_version=draft.policy_version,
        prev=head.hash,
        seq=head.seq + 1,
        subject=draft.subject,
        verdict=draft.verdict,
    )
    body = encode(entry)
    return Linked(entry, body, sha256(body).hexdigest())


def line_of(body: bytes, hash_: str) -> bytes:
    """A line of an export."""
    return b"".join((_HEAD, body, _MIDDLE, hash_.encode(), _TAIL))


def read_line(line: bytes) -> Linked | None:
    """The entry of a line, or None if the line is not exactly what a hub once wrote."""
    if not (line.startswith(_HEAD) and line[_MIDDLE_AT:_HASH_AT] == _MIDDLE and line.endswith(_TAIL)):
        return None
    body = line[len(_HEAD) : _MIDDLE_AT]
    hash_ = sha256(body).hexdigest()
    if line[_HASH_AT : -len(_TAIL)] != hash_.encode():
        return None
    try:
        return Linked(decode_entry(body), body, hash_)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def split_lines(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The lines of a file or a stream that comes in pieces, each with its newline; the last one as it is."""
    rest = b""
    for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            yield line + b"\n"
        if len(rest) > LINE_BYTES_MAX:
            yield rest
            rest = b""
    if rest:
        yield rest
