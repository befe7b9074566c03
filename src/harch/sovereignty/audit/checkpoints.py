"""How is a cut tail noticed? Signed checkpoints: "at that moment my chain was so long, and ended in this hash".

A chain that lost its end is still a chain. So hubs sign where they are, and peers keep copies: whoever cuts or rewrites
a chain would have to reach every one of them, and to have the key.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from msgspec import Struct

from harch.base.errors import HarchError
from harch.base.integers import Natural64
from harch.sovereignty.audit.chain import Head
from harch.sovereignty.audit.entry import encode
from harch.sovereignty.audit.keys import KeyStatement, public_hex, signature_holds

CHECKPOINTS_MAX = 1_000_000  # in one file


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

    @property
    def holds(self) -> bool:
        """Whether the key that it names has signed it; whose key that is, the chain or the peers know."""
        return signature_holds(self.checkpoint.key, self.signature, _message(self.checkpoint))

    @property
    def line(self) -> bytes:
        return encode(self) + b"\n"


def sign(head: Head, *, hub: str, at: str, key: Ed25519PrivateKey) -> SignedCheckpoint:
    checkpoint = Checkpoint(at=at, hash=head.hash, hub=hub, key=public_hex(key), seq=head.seq)
    return SignedCheckpoint(checkpoint=checkpoint, signature=key.sign(_message(checkpoint)).hex())


def read_checkpoint(line: bytes) -> SignedCheckpoint | None:
    """A checkpoint as one line of text, or None if it is not exactly what a hub would write."""
    try:
        signed = _decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return signed if signed.line == line else None


def read_checkpoints(text: bytes) -> list[SignedCheckpoint]:
    """A file of them: one per line, or a page of the API (`{"items": […]}`). Raises E0202."""
    try:
        if text.lstrip().startswith(b'{"items"'):
            found = _decode_page(text).items
        else:
            found = [_decode(line) for line in text.splitlines() if line.strip()]
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise HarchError(
            "E0202",
            f"these are no checkpoints: {error}",
            hint="one per line, as `harch audit head --json` prints them",
        ) from error
    if len(found) > CHECKPOINTS_MAX:
        raise HarchError("E0201", f"more than {CHECKPOINTS_MAX} checkpoints", hint="split the file")
    return found


def check_offer(
    offered: SignedCheckpoint, known: Iterable[SignedCheckpoint], statements: Iterable[KeyStatement] = ()
) -> None:
    """May a peer's checkpoint be kept beside the `known` ones of that hub? Raises E0201 or E0920 if not.

    The first key that a hub shows is believed, and from then on only that one and keys that it has introduced.
    """
    new = offered.checkpoint
    if not offered.holds:
        raise HarchError("E0201", f"the signature of the checkpoint of {new.hub} does not hold", field="signature")
    keys: set[str] = set()
    for one in known:
        old = one.checkpoint
        keys.add(old.key)
        if old.seq == new.seq and old.hash != new.hash:
            raise HarchError(
                "E0920",
                f"hub {new.hub} once signed another hash for entry {new.seq}",
                hint="one of its two histories is false: keep both checkpoints and ask for an audit",
                meta={"kept": old.hash, "offered": new.hash},
            )
        if new.seq < old.seq and new.at > old.at:
            raise HarchError(
                "E0920",
                f"hub {new.hub} had {old.seq} entries on {old.at}, and shows {new.seq} now",
                hint="the end of its chain was lost: `harch audit verify` tells more",
                meta={"kept_seq": old.seq, "offered_seq": new.seq},
            )
    for statement in statements:
        if statement.hub == new.hub and statement.by in keys and statement.holds:
            keys.add(statement.key)
    if keys and new.key not in keys:
        raise HarchError(
            "E0920",
            f"hub {new.hub} signs with a key that its known keys have not introduced",
            hint="send the statements of its `audit.key` entries along as `keys`",
        )


class _Page(Struct):
    items: list[SignedCheckpoint]


_decode = msgspec.json.Decoder(SignedCheckpoint).decode
_decode_page = msgspec.json.Decoder(_Page).decode


def _message(checkpoint: Checkpoint) -> bytes:
    return encode({"checkpoint": checkpoint, "purpose": "harch audit checkpoint"})
