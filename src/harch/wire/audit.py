"""What does a hub answer about its audit chain? Where it ends, who signs, and what was lost."""

# harch: pure

from __future__ import annotations

from msgspec import Struct

from harch.base.integers import Natural64


class Checkpoint(Struct, frozen=True, kw_only=True):
    """What is signed. Fields in alphabetical order, as in an entry."""

    at: str
    hash: str
    hub: str
    key: str
    seq: Natural64


class SignedCheckpoint(Struct, frozen=True, kw_only=True):
    checkpoint: Checkpoint
    signature: str


class AcceptedLoss(Struct, frozen=True, kw_only=True):
    """What an entry of kind `audit.loss` says."""

    seq: int
    at: str
    actor: str
    found_seq: int
    lost_seq: int
    lost_hash: str = ""
    source: str = ""
    why: str = ""

    @property
    def is_consistent(self) -> bool:
        """Whether the entry stands where such an entry has to stand."""
        return self.seq == max(self.found_seq, self.lost_seq) + 1 and self.found_seq > 0

    @property
    def sentence(self) -> str:
        if self.lost_seq > self.found_seq:
            what = f"entries {self.found_seq + 1} to {self.lost_seq} are lost"
        else:
            what = f"entries up to {self.lost_seq} have been replaced"
        return f"{what}; accepted by {self.actor} at {self.at}: {self.why}"


class AuditLoss(Struct, frozen=True, kw_only=True):
    """`held`: the hub takes no work because of it. `source` is who knows: its head file, or another hub."""

    held: bool
    sentence: str = ""
    found_seq: int = 0
    lost_seq: int = 0
    lost_hash: str = ""
    source: str = ""
    accepted: tuple[AcceptedLoss, ...] = ()


class SigningKey(Struct, frozen=True, kw_only=True):
    """The public half of the key that is in force now."""

    key: str
