"""Small chains to play with: built as a hub builds them, with keys that are the same in every run."""

from __future__ import annotations

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from harch.sovereignty.audit.chain import PLACED, ChainHead, Draft, Linked, line_of, link
from harch.sovereignty.audit.checkpoints import SignedCheckpoint, draft_of, introduce, sign

HUB = "dakhla"
AT = "2026-11-15T09:00:00.000Z"


def key(number: int) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32)


class Chain:
    """A chain in memory, and the key that signs for it."""

    def __init__(self, signer: Ed25519PrivateKey | None = None, hub: str = HUB) -> None:
        self.hub, self.key = hub, signer or key(1)
        self.linked: list[Linked] = []
        self.add(draft_of(introduce(hub, self.key, by=self.key)))

    @property
    def head(self) -> ChainHead:
        return self.linked[-1].head if self.linked else ChainHead()

    def add(self, draft: Draft, at: str = AT) -> None:
        self.linked.append(link(self.head, draft, hub=self.hub, at=at))

    def fill(self, count: int) -> Chain:
        for number in range(count):
            data = (f"ds_{number % 3}",) if number % 2 else ()
            self.add(Draft(PLACED, f"wl_{number}", "allowed", data=data, countries=("MA",), details={"gpus": number}))
        return self

    def rotate(self, new: Ed25519PrivateKey) -> None:
        self.add(draft_of(introduce(self.hub, new, by=self.key)))
        self.key = new

    def checkpoint(self) -> SignedCheckpoint:
        return sign(self.head, hub=self.hub, at=AT, key=self.key)

    def lines(self) -> list[bytes]:
        return [*(line_of(one.body, one.hash) for one in self.linked), self.checkpoint().line]


def chain_of(count: int) -> Chain:
    """`count` entries, the signing key's among them."""
    return Chain().fill(count - 1)
