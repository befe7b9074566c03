"""Which key speaks for a hub? Ed25519 keys, each introduced by a statement that the key before it has signed.

The first key of a chain signs for itself: whoever wants to rely on a chain has to know that key, or a checkpoint that
a peer has kept. Every later key is only as good as the signature of its predecessor.
"""

from __future__ import annotations

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from msgspec import Struct

from harch.sovereignty.audit.entry import KEY_SUBJECT, SIGNING_KEY, AuditEntry, Draft, encode


class KeyStatement(Struct, frozen=True, kw_only=True):
    """`by` says that `key` signs for `hub` from now on. Keys and signatures are lower-case hexadecimal."""

    by: str
    hub: str
    key: str
    signature: str

    @property
    def holds(self) -> bool:
        return signature_holds(self.by, self.signature, _message(self.by, self.hub, self.key))


def public_hex(key: Ed25519PrivateKey) -> str:
    return key.public_key().public_bytes_raw().hex()


def introduce(hub: str, key: Ed25519PrivateKey, *, by: Ed25519PrivateKey) -> KeyStatement:
    signer, new = public_hex(by), public_hex(key)
    return KeyStatement(by=signer, hub=hub, key=new, signature=by.sign(_message(signer, hub, new)).hex())


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


def _message(by: str, hub: str, key: str) -> bytes:
    # The first word keeps a signature of one purpose from being shown for another.
    return encode({"by": by, "hub": hub, "key": key, "purpose": "harch audit key"})
