"""What does one line of the audit chain say, and how does it get its place?

Who decided what about which data; each entry carries the hash of the one before.
"""

# harch: pure

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import sha256

import msgspec
from msgspec import Struct

# What does one line of the audit chain say? Who decided what about which data, where, by which policy.
#
# An entry is written as canonical JSON (RFC 8785), so that its hash does not depend on who writes it down. To be
# canonical without a slow encoder, entries keep to text, whole numbers, booleans and lists of text, the fields below
# stand in alphabetical order, and the names in `details` are plain ASCII; tests compare every byte with the reference
# encoder.


Detail = str | int | bool | tuple[str, ...]

POLICY_BUILTIN = "builtin-1"  # the hard rules in the code, while no bundle is loaded
KEY_SUBJECT = "audit-key"  # the subject of every entry that introduces a signing key
LOSS_SUBJECT = "audit-chain"  # the subject of every entry that admits a loss

# Kinds. Later capabilities add theirs; a verifier takes any.
ADMITTED = "workload.admitted"
REFUSED = "workload.refused"
PLACED = "workload.placed"
REQUEUED = "workload.requeued"
ENDED = "workload.ended"
MOVED = "data.moved"
DATA_ADDED = "data.added"
DATA_TAGGED = "data.tagged"
DATA_DERIVED = "data.derived"
DATA_REMOVED = "data.removed"
DATA_REFUSED = "data.refused"
DECLASSIFIED = "data.declassified"
SCRUBBED = "data.scrubbed"
VIOLATION = "sovereignty.violation"
LOAD_REFUSED = "workload.load_refused"
OFFERED = "workload.offered"
LENT = "workload.lent"
BORROWED = "workload.borrowed"
AUTHORITY_ADDED = "authority.added"
AUTHORITY_REMOVED = "authority.removed"
KEY_CREATED = "key.created"
KEY_REVOKED = "key.revoked"
KEY_BOUND = "key.bound"
KEY_RELEASED = "key.released"
SECRET_STORED = "secret.stored"  # noqa: S105 - a kind of entry
SECRET_REMOVED = "secret.removed"  # noqa: S105
AGENT_JOINED = "agent.joined"
AGENT_REFUSED = "agent.refused"
SIGNING_KEY = "audit.key"
LOSS_ACCEPTED = "audit.loss"
TELEMETRY_DISCLOSED = "telemetry.told"
TELEMETRY_REFUSED = "telemetry.refused"


class Draft(Struct, frozen=True, gc=False):
    """An entry before it has its place in the chain. Secrets are named, never shown; free text of users stays out."""

    kind: str
    subject: str
    verdict: str  # allowed, refused, done, accepted
    actor: str = "hub"  # who did it: an API key, an agent, or the hub itself
    authority: str = ""  # in whose name: a tenant, a declassification
    policy_version: str = POLICY_BUILTIN
    data: tuple[str, ...] = ()  # ids of the data that was read, written or moved
    countries: tuple[str, ...] = ()  # where; for a movement every country of the path, in order
    details: dict[str, Detail] = {}


class AuditEntry(Struct, frozen=True, kw_only=True, gc=False):
    """One line of the chain. `prev` is the hash of the line before; fields in alphabetical order, see above."""

    actor: str
    at: str  # UTC, ISO 8601, as the hub's clock said; `seq` tells the order
    authority: str
    countries: tuple[str, ...]
    data: tuple[str, ...]
    details: dict[str, Detail]
    hub: str
    kind: str
    policy_version: str
    prev: str
    seq: int
    subject: str
    verdict: str

    def concerns(self, ref: str) -> bool:
        """Whether this is about the data or the workload of that id."""
        return ref in self.data or ref == self.subject


# `deterministic` sorts the names in `details`; those of the struct are sorted by its definition.
encode = msgspec.json.Encoder(order="deterministic").encode
decode_entry = msgspec.json.Decoder(AuditEntry).decode


def moved(
    data: tuple[str, ...],
    *,
    origin: str,
    destination: str,
    countries: tuple[str, ...],
    actor: str,
    authority: str,
    policy_version: str,
    bytes_count: int,
) -> Draft:
    """Data went from one hub to another, over these countries."""
    return Draft(
        MOVED,
        data[0],
        "done",
        actor=actor,
        authority=authority,
        policy_version=policy_version,
        data=data,
        countries=countries,
        details={"bytes": bytes_count, "from": origin, "to": destination},
    )


# How does an entry get its place? Each carries the hash of the one before; its own hash stands beside it.
#
# A line of an export is `{"entry":ENTRY,"hash":"HASH"}` with HASH = SHA-256 of exactly the bytes ENTRY. The hash can be
# checked with any tool, and a line that was changed in a single byte, even in its frame, is no line any more.


NO_HASH = "0" * 64  # what the first entry has as `prev`
LINE_BYTES_MAX = 1024 * 1024  # longer ones are taken for damage

_HEAD, _MIDDLE, _TAIL = b'{"entry":', b',"hash":"', b'"}\n'
_HASH_AT = -len(_TAIL) - len(NO_HASH)
_MIDDLE_AT = _HASH_AT - len(_MIDDLE)


class ChainHead(Struct, frozen=True, gc=False):
    """The end of a chain."""

    seq: int = 0
    hash: str = NO_HASH


class Linked(Struct, frozen=True, gc=False):
    """An entry in its place: its canonical bytes and their hash."""

    entry: AuditEntry
    body: bytes
    hash: str

    @property
    def head(self) -> ChainHead:
        return ChainHead(self.entry.seq, self.hash)


def link(head: ChainHead, draft: Draft, *, hub: str, at: str) -> Linked:
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
