"""What does one line of the audit chain say? Who decided what about which data, where, by which policy.

An entry is written as canonical JSON (RFC 8785), so that its hash does not depend on who writes it down. To be
canonical without a slow encoder, entries keep to text, whole numbers, booleans and lists of text, the fields below
stand in alphabetical order, and the names in `details` are plain ASCII; tests compare every byte with the reference
encoder.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

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
TELEMETRY_TOLD = "telemetry.told"
TELEMETRY_REFUSED = "telemetry.refused"


class Draft(Struct, frozen=True, gc=False):
    """An entry before it has its place in the chain. Secrets are named, never told; free text of users stays out."""

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
