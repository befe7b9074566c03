"""Has the end of a chain been lost? Compares it with what is known of it elsewhere; a loss can be admitted, not hidden.

A chain that lost its end is still a chain. What knows better: the hub's head file, and signed checkpoints at peers. A
person may accept a loss. Then the chain goes on with an entry that says so, and with a number above everything that was
lost, so that no number is ever given twice.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from harch.sovereignty.audit.chain import Head
from harch.sovereignty.audit.entry import LOSS_ACCEPTED, LOSS_SUBJECT, AuditEntry, Draft

WHY_LENGTH_MAX = 500
WAY_OUT = "harch audit accept-loss"  # what a person can say to it


class Loss(Struct, frozen=True, kw_only=True):
    """`found` is where the chain ends, `lost` an end that it had, and `source` who knows of it."""

    found: Head
    lost: Head
    source: str
    lost_events: int = 0  # the number of the last event, if that is known too

    @property
    def sentence(self) -> str:
        if self.lost.seq > self.found.seq:
            what = f"its audit chain ends at entry {self.found.seq}, and it had {self.lost.seq}"
        else:
            what = f"entry {self.lost.seq} of its audit chain is not the one that it was"
        return f"{what}, by {self.source}"

    @property
    def entries(self) -> int:
        """How many are known to be missing; one that is not the same counts as one."""
        return max(1, self.lost.seq - self.found.seq)

    @property
    def next_seq(self) -> int:
        """Of the entry that accepts it: above everything that was ever given."""
        return max(self.found.seq, self.lost.seq) + 1


class AcceptedLoss(Struct, frozen=True, kw_only=True):
    """What an entry of kind `audit.loss` says."""

    seq: int
    at: str
    actor: str
    found_seq: int
    lost_seq: int
    lost_hash: str
    source: str
    why: str

    @property
    def is_consistent(self) -> bool:
        """Whether the entry stands where such an entry has to stand."""
        return self.seq == max(self.found_seq, self.lost_seq) + 1 and self.found_seq > 0

    @property
    def sentence(self) -> str:
        if self.lost_seq > self.found_seq:
            what = f"entries {self.found_seq + 1} to {self.lost_seq} are lost"
        else:
            what = f"entries up to {self.lost_seq} are not those that there were"
        return f"{what}; accepted by {self.actor} at {self.at}: {self.why}"


def find_loss(
    known: Head,
    *,
    stored: Head,
    hash_there: str | None,
    accepted: Iterable[AcceptedLoss],
    source: str,
    known_events: int = 0,
    stored_events: int = 0,
) -> Loss | None:
    """`hash_there` is what the chain has at the number of `known`, None if it has nothing there."""
    if known.seq < 1:
        return None
    if any(known.seq <= loss.lost_seq for loss in accepted):
        return None  # somebody knows that this is gone, or it is there
    if hash_there == known.hash and stored_events >= known_events:
        return None
    return Loss(found=stored, lost=known, source=source, lost_events=known_events)


def acceptance(loss: Loss, *, actor: str, why: str) -> Draft:
    """The entry that admits it. It must get the number `loss.next_seq`."""
    return Draft(
        LOSS_ACCEPTED,
        LOSS_SUBJECT,
        "accepted",
        actor=actor,
        details={
            "found_seq": loss.found.seq,
            "lost_hash": loss.lost.hash,
            "lost_seq": loss.lost.seq,
            "source": loss.source,
            "why": why[:WHY_LENGTH_MAX],
        },
    )


def loss_in(entry: AuditEntry) -> AcceptedLoss:
    """What is missing stays empty, and then it is not consistent."""
    details = entry.details

    def number(name: str) -> int:
        value = details.get(name, 0)
        return value if isinstance(value, int) else 0

    return AcceptedLoss(
        seq=entry.seq,
        at=entry.at,
        actor=entry.actor,
        found_seq=number("found_seq"),
        lost_seq=number("lost_seq"),
        lost_hash=str(details.get("lost_hash", "")),
        source=str(details.get("source", "")),
        why=str(details.get("why", "")),
    )
