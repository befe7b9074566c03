"""How is a cut tail noticed, and which key speaks for a hub?

Signed checkpoints; Ed25519 keys, each introduced by a statement that the key before it has signed.
"""

# harch: pure

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from msgspec import Struct

from harch.base.errors import HarchError
from harch.sovereignty.audit.chain import KEY_SUBJECT, SIGNING_KEY, AuditEntry, ChainHead, Draft, encode
from harch.wire import audit
from harch.wire.audit import Checkpoint

# Which key speaks for a hub? Ed25519 keys, each introduced by a statement that the key before it has signed.
#
# The first key of a chain signs for itself: whoever wants to rely on a chain has to know that key, or a checkpoint that
# a peer has kept. Every later key is only as good as the signature of its predecessor.


class KeyStatement(Struct, frozen=True, kw_only=True):
    """`by` says that `key` signs for `hub` from now on. Keys and signatures are lower-case hexadecimal."""

    by: str
    hub: str
    key: str
    signature: str

    @property
    def holds(self) -> bool:
        return signature_holds(self.by, self.signature, _key_message(self.by, self.hub, self.key))


def public_hex(key: Ed25519PrivateKey) -> str:
    return key.public_key().public_bytes_raw().hex()


def introduce(hub: str, key: Ed25519PrivateKey, *, by: Ed25519PrivateKey) -> KeyStatement:
    signer, new = public_hex(by), public_hex(key)
    return KeyStatement(by=signer, hub=hub, key=new, signature=by.sign(_key_message(signer, hub, new)).hex())


def draft_of(statement: KeyStatement, *, actor: str = "hub") -> Draft:
    details = {"by": statement.by, "key": statement.key, "signature": statement.signature}
    return Draft(SIGNING_KEY, KEY_SUBJECT, "done", actor=actor, details={**details})


def statement_in(entry: AuditEntry) -> KeyStatement:
    """What an entry of kind `audit.key` says; what is missing stays empty, and then nothing holds."""
    by, key, signature = (str(entry.details.get(name, "")) for name in ("by", "key", "signature"))
    return KeyStatement(by=by, hub=entry.hub, key=key, signature=signature)


def signature_holds(key: str, signature: str, message: bytes) -> bool:
    try:
        # The exact text is compared too: hexadecimal has two spellings, a proof must have one.
        raw, sealed = bytes.fromhex(key), bytes.fromhex(signature)
        if raw.hex() != key or sealed.hex() != signature:
            return False
        Ed25519PublicKey.from_public_bytes(raw).verify(sealed, message)
    except (ValueError, InvalidSignature):
        return False
    return True


def _key_message(by: str, hub: str, key: str) -> bytes:
    # The first word keeps a signature of one purpose from being shown for another.
    return encode({"by": by, "hub": hub, "key": key, "purpose": "harch audit key"})


# How is a cut tail noticed? Signed checkpoints: "at that moment my chain was so long, and ended in this hash".
#
# A chain that lost its end is still a chain. So hubs sign where they are, and peers keep copies: whoever cuts or
# rewrites
# a chain would have to reach every one of them, and to have the key.


CHECKPOINTS_MAX = 1_000_000  # in one file


class SignedCheckpoint(audit.SignedCheckpoint, frozen=True, kw_only=True):
    """What goes over the wire, with what its signature says and how it stands in a file."""

    @property
    def holds(self) -> bool:
        """Whether the key that it names has signed it; whose key that is, the chain or the peers know."""
        return signature_holds(self.checkpoint.key, self.signature, _message(self.checkpoint))

    @property
    def line(self) -> bytes:
        return encode(self) + b"\n"


def sign(head: ChainHead, *, hub: str, at: str, key: Ed25519PrivateKey) -> SignedCheckpoint:
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
            f"not checkpoints: {error}",
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
        raise HarchError("E0201", f"the signature of the checkpoint of {new.hub} is not valid", field="signature")
    keys: set[str] = set()
    for one in known:
        old = one.checkpoint
        keys.add(old.key)
        if old.seq == new.seq and old.hash != new.hash:
            raise HarchError(
                "E0920",
                f"hub {new.hub} signed a different hash for entry {new.seq}",
                hint="one of its two histories is false: keep both checkpoints and request an audit",
                meta={"kept": old.hash, "offered": new.hash},
            )
        if new.seq < old.seq and new.at > old.at:
            raise HarchError(
                "E0920",
                f"hub {new.hub} had {old.seq} entries on {old.at}, and has {new.seq} now",
                hint="the end of its chain was lost: `harch audit verify` shows more",
                meta={"kept_seq": old.seq, "offered_seq": new.seq},
            )
    for statement in statements:
        if statement.hub == new.hub and statement.by in keys and statement.holds:
            keys.add(statement.key)
    if keys and new.key not in keys:
        raise HarchError(
            "E0920",
            f"hub {new.hub} signs with a key that its known keys have not certified",
            hint="also send the statements of its `audit.key` entries as `keys`",
        )


class _Page(Struct):
    items: list[SignedCheckpoint]


_decode = msgspec.json.Decoder(SignedCheckpoint).decode
_decode_page = msgspec.json.Decoder(_Page).decode


def _message(checkpoint: Checkpoint) -> bytes:
    return encode({"checkpoint": checkpoint, "purpose": "harch audit checkpoint"})
