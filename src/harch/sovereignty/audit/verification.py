"""Is this chain what the hub once wrote, and has its end been lost?

Reads an export line by line and compares it with what is known elsewhere.
"""

# harch: pure

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from msgspec import Struct

from harch.sovereignty.audit.chain import (
    LOSS_ACCEPTED,
    LOSS_SUBJECT,
    SIGNING_KEY,
    AuditEntry,
    ChainHead,
    Draft,
    Linked,
    read_line,
)
from harch.sovereignty.audit.checkpoints import SignedCheckpoint, read_checkpoint, statement_in
from harch.wire.audit import AcceptedLoss

# Has the end of a chain been lost? Compares it with what is known of it elsewhere; a loss can be admitted, not hidden.
#
# A chain that lost its end is still a chain. What knows better: the hub's head file, and signed checkpoints at peers. A
# person may accept a loss. Then the chain goes on with an entry that says so, and with a number above everything that
# was
# lost, so that no number is ever given twice.


WHY_LENGTH_MAX = 500
WAY_OUT = "harch audit accept-loss"  # what a person can say to it


class Loss(Struct, frozen=True, kw_only=True):
    """`found` is where the chain ends, `lost` an end that it had, and `source` who knows of it."""

    found: ChainHead
    lost: ChainHead
    source: str
    lost_events: int = 0  # the number of the last event, if that is known too

    @property
    def sentence(self) -> str:
        if self.lost.seq > self.found.seq:
            what = f"its audit chain ends at entry {self.found.seq}, but it had {self.lost.seq}"
        else:
            what = f"entry {self.lost.seq} of its audit chain has changed"
        return f"{what}, by {self.source}"

    @property
    def entries(self) -> int:
        """How many are known to be missing; one that is not the same counts as one."""
        return max(1, self.lost.seq - self.found.seq)

    @property
    def next_seq(self) -> int:
        """Of the entry that accepts it: above everything that was ever given."""
        return max(self.found.seq, self.lost.seq) + 1


def find_loss(
    known: ChainHead,
    *,
    stored: ChainHead,
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


# Is this chain what the hub once wrote? Reads an export line by line and tells the first bad entry and what was done.
#
# What each check can and cannot show: hashes and links show changes by somebody who did not recompute the rest of the
# chain. Somebody who did is shown by signed checkpoints: the closing one of the export, and above all the copies that
# peers have kept, because they also show a chain that was cut and signed anew with the hub's own key.


class Tampering(StrEnum):
    EDITED = "edited"  # a line is not what was hashed, or the next one was linked to something else
    REMOVED = "removed"
    REORDERED = "reordered"
    INSERTED = "inserted"
    TRUNCATED = "truncated"  # the end is missing
    REWRITTEN = "rewritten"  # whole in itself, but not what was signed
    BAD_CHECKPOINT = "bad checkpoint"  # a signature does not hold, or is by a key that does not speak for the hub
    BAD_KEY = "bad key"  # a signing key that the one before it has not introduced


class AuditFinding(Struct, frozen=True, kw_only=True):
    """The first thing that is wrong. `seq` is the first bad entry."""

    seq: int
    kind: Tampering
    detail: str


class VerificationOutcome(Struct, frozen=True, kw_only=True):
    """`entries` counts those that are proven good; `checkpoints` the peers' copies that agree with the chain.

    `losses` are what the hub once lost and admits: the chain is sound, and has a hole. `checkpoints_lost` speak of it.
    """

    hub: str
    entries: int
    head: str
    checkpoints: int
    finding: AuditFinding | None = None
    losses: tuple[AcceptedLoss, ...] = ()
    checkpoints_lost: int = 0

    @property
    def is_sound(self) -> bool:
        return self.finding is None


class ChainVerifier:
    """Takes the lines of an export in order (`take`), then tells (`finish`). Knows nothing of files and sockets."""

    def __init__(self, checkpoints: Iterable[SignedCheckpoint] = ()) -> None:
        self._offered = list(checkpoints)
        self._kept: dict[int, list[SignedCheckpoint]] = {}
        self._head = ChainHead()
        self._hub = ""
        self._key = ""
        self._agreed = 0
        self._agreed_at = 0  # the last entry that a peer's copy has confirmed
        self._closing: SignedCheckpoint | None = None
        self._gap: AuditFinding | None = None  # an entry is missing: removed, unless it turns up later
        self._finding: AuditFinding | None = None
        self._count = 0
        self._losses: list[AcceptedLoss] = []
        # Copies that contradict the chain, with what was good before; a loss that is admitted later explains them.
        self._contradictions: list[tuple[int, int, ChainHead, AuditFinding]] = []
        self._copies_lost = 0

    def take(self, line: bytes) -> AuditEntry | None:
        """The entry if it is good so far; None for a bad one and for all that follow."""
        if self._finding is not None:
            return None
        linked = read_line(line)
        if self._gap is not None:
            self._look_for_the_missing(linked)
            return None
        if linked is None:
            self._take_other(line)
            return None
        for check in (self._check_place, self._check_words):
            check(linked)
            if not self._is_good_so_far():
                return None
        self._head = linked.head
        self._count += 1
        return linked.entry

    def finish(self) -> VerificationOutcome:
        count, head = self._count, self._head
        if self._contradictions:
            _, count, head, self._finding = self._contradictions[0]
        elif self._finding is None:
            self._finding = self._gap or self._missing_end()
        return VerificationOutcome(
            hub=self._hub,
            entries=count,
            head=head.hash,
            checkpoints=self._agreed,
            finding=self._finding,
            losses=tuple(self._losses),
            checkpoints_lost=self._copies_lost,
        )

    def _check_place(self, linked: Linked) -> None:
        entry, expected = linked.entry, self._head.seq + 1
        if self._closing is not None:
            self._found(expected, Tampering.INSERTED, "entries follow the closing checkpoint")
        elif entry.seq < expected:
            self._found(entry.seq, Tampering.INSERTED, f"entry {entry.seq} is duplicated here")
        elif entry.kind == LOSS_ACCEPTED:
            self._check_loss(linked)
        elif entry.seq > expected:
            self._gap = AuditFinding(seq=expected, kind=Tampering.REMOVED, detail=f"entry {entry.seq} is in its place")
        elif entry.prev != self._head.hash:
            # The line is whole and says what came before it; so what came before it was changed.
            bad = max(1, expected - 1)
            self._found(
                bad, Tampering.EDITED, f"entry {expected} was linked to a different entry, or is not its successor"
            )

    def _check_loss(self, linked: Linked) -> None:
        """The one entry that may leave numbers out: it follows what was left, and says what is missing."""
        loss = loss_in(linked.entry)
        if not loss.is_consistent or loss.found_seq != self._head.seq or linked.entry.prev != self._head.hash:
            self._found(
                linked.entry.seq, Tampering.INSERTED, "it accepts a loss that does not match the entries before it"
            )
            return
        self._losses.append(loss)
        explained = [one for one in self._contradictions if one[0] <= loss.lost_seq]
        self._contradictions = self._contradictions[len(explained) :]
        gone = range(loss.found_seq + 1, loss.lost_seq + 1)
        self._copies_lost += len(explained) + sum(len(self._kept[seq]) for seq in self._kept if seq in gone)

    def _check_words(self, linked: Linked) -> None:
        entry = linked.entry
        if entry.seq == 1:
            self._begin(entry)
        elif entry.hub != self._hub:
            self._found(entry.seq, Tampering.INSERTED, f"belongs to hub {entry.hub}, the chain to {self._hub}")
        if entry.kind == SIGNING_KEY:
            statement = statement_in(entry)
            if not statement.holds or statement.by != (self._key or statement.key):
                self._found(entry.seq, Tampering.BAD_KEY, "not certified by the key before it")
            self._key = statement.key
        elif not self._key:
            self._found(entry.seq, Tampering.BAD_KEY, "the chain does not begin with the hub's signing key")
        for signed in self._kept.get(entry.seq, ()):
            self._compare(signed, linked.head)

    def _begin(self, entry: AuditEntry) -> None:
        self._hub = entry.hub
        for signed in self._offered:
            if signed.checkpoint.hub != self._hub:
                continue  # a peer keeps copies of many hubs
            if not signed.holds or signed.checkpoint.seq < 1:
                self._found(1, Tampering.BAD_CHECKPOINT, "the signature of a stored checkpoint is not valid")
                return
            self._kept.setdefault(signed.checkpoint.seq, []).append(signed)

    def _compare(self, signed: SignedCheckpoint, head: ChainHead) -> None:
        checkpoint = signed.checkpoint
        if checkpoint.hash != head.hash:
            first = self._agreed_at + 1
            detail = f"entries {first} to {head.seq} differ from those signed on {checkpoint.at}"
            finding = AuditFinding(seq=first, kind=Tampering.REWRITTEN, detail=detail)
            self._contradictions.append((head.seq, self._count, self._head, finding))
        elif checkpoint.key != self._key:
            self._found(
                head.seq, Tampering.BAD_CHECKPOINT, "a stored checkpoint is signed by a key that was not in force"
            )
        else:
            self._agreed += 1
            self._agreed_at = head.seq

    def _take_other(self, line: bytes) -> None:
        """A line that is no entry: the closing checkpoint, or damage."""
        expected = self._head.seq + 1
        if not line.endswith(b"\n"):
            self._found(expected, Tampering.TRUNCATED, "the last line is cut off")
            return
        signed = read_checkpoint(line)
        if signed is None:
            self._found(expected, Tampering.EDITED, "the line does not match its hash")
            return
        closing = signed.checkpoint
        if self._closing is not None:
            self._found(expected, Tampering.INSERTED, "entries follow the closing checkpoint")
        elif later := self._kept_of_later():
            # Before the key is judged: the entry that introduced it may be among those that were cut off.
            self._found(expected, Tampering.TRUNCATED, later)
        elif not signed.holds or closing.key != self._key or closing.hub != self._hub:
            self._found(expected, Tampering.BAD_CHECKPOINT, "the closing checkpoint is not signed by the hub's key")
        elif closing.seq != self._head.seq:
            kind = Tampering.TRUNCATED if closing.seq > self._head.seq else Tampering.INSERTED
            first = min(closing.seq, self._head.seq) + 1
            self._found(first, kind, f"the hub signed {closing.seq} entries, found {self._head.seq}")
        elif closing.hash != self._head.hash:
            self._found(self._agreed_at + 1, Tampering.REWRITTEN, "the hub signed a different hash for the last entry")
        self._closing = signed

    def _look_for_the_missing(self, linked: Linked | None) -> None:
        gap = self._gap
        if gap is not None and linked is not None and linked.entry.seq == gap.seq:
            self._found(gap.seq, Tampering.REORDERED, "found further down")

    def _is_good_so_far(self) -> bool:
        return self._finding is None and self._gap is None

    def _missing_end(self) -> AuditFinding | None:
        detail = self._kept_of_later() or ("the closing checkpoint is missing" if self._closing is None else "")
        return AuditFinding(seq=self._head.seq + 1, kind=Tampering.TRUNCATED, detail=detail) if detail else None

    def _kept_of_later(self) -> str:
        """Says so if peers hold a checkpoint beyond the last entry."""
        last = max(self._kept, default=0)
        return f"a stored checkpoint names entry {last}" if last > self._head.seq else ""

    def _found(self, seq: int, kind: Tampering, detail: str) -> None:
        if self._finding is None:
            self._finding = AuditFinding(seq=seq, kind=kind, detail=detail)


def verify(lines: Iterable[bytes], checkpoints: Iterable[SignedCheckpoint] = ()) -> VerificationOutcome:
    """All at once, for those who do not need the entries."""
    verifier = ChainVerifier(checkpoints)
    for line in lines:
        verifier.take(line)
    return verifier.finish()
