"""How is a cut tail of the ledger noticed? Its head is written into the audit chain, whose checkpoints peers keep.

So one signature and one set of kept copies cover both chains, and nobody can shorten the ledger without also rewriting
an audit chain that other hubs have signed copies of.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from harch.carbon.ledger.chain import LedgerHead
from harch.sovereignty.audit.entry import AuditEntry, Draft

LEDGER_HEAD = "carbon.ledger"  # the kind of entry


class LedgerCheckpoint(Struct, frozen=True, kw_only=True):
    """At that moment the ledger of that hub was so long, and ended in this hash."""

    hub: str
    seq: int
    hash: str
    at: str


def checkpoint_draft(hub: str, head: LedgerHead) -> Draft:
    """What the hub writes into its audit chain, e.g. once an hour and before every export."""
    return Draft(LEDGER_HEAD, hub, "done", details={"hash": head.hash, "rows": head.seq})


def checkpoint_in(entry: AuditEntry) -> LedgerCheckpoint | None:
    """The checkpoint that an audit entry holds, if it is one."""
    seq, hash_ = entry.details.get("rows"), entry.details.get("hash")
    if entry.kind != LEDGER_HEAD or not isinstance(seq, int) or not isinstance(hash_, str) or seq < 1:
        return None
    return LedgerCheckpoint(hub=entry.hub, seq=seq, hash=hash_, at=entry.at)


def checkpoints_in(entries: Iterable[AuditEntry]) -> list[LedgerCheckpoint]:
    return [found for entry in entries if (found := checkpoint_in(entry)) is not None]
