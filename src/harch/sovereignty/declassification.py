"""Who said that this tag may be loosened? A signed statement about one object, one old tag and one new tag.

Storage and the list of authorities are elsewhere; here is what is signed, and when a statement holds.
"""

# harch: pure

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from msgspec import Meta, Struct

from harch.base.errors import HarchError
from harch.base.integers import Natural64
from harch.base.rejection import Rejection
from harch.sovereignty.tags import DataObject, Tag, loosens

_DOMAIN = b"harch.declassification.v1\n"  # a signature for this purpose is valid for no other

Moment = Annotated[datetime, Meta(tz=True)]


class Declassification(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An authority lets one object go from its present tag to a looser one. Used once: the revision moves on."""

    object_id: str
    tag_revision: Natural64
    old: Tag
    new: Tag
    reason: str
    authority: str  # the name under which its public key is known
    issued_at: Moment
    valid_until: Moment
    signature: bytes = b""  # base64 in JSON


def canonical_bytes(statement: Declassification) -> bytes:
    """What is signed: every field but the signature, in one spelling."""
    unsigned = msgspec.structs.replace(statement, signature=b"")
    return _DOMAIN + msgspec.json.encode(unsigned, order="deterministic")


def sign(statement: Declassification, private_key: bytes) -> Declassification:
    """`private_key`: 32 raw bytes of Ed25519."""
    key = Ed25519PrivateKey.from_private_bytes(private_key)
    return msgspec.structs.replace(statement, signature=key.sign(canonical_bytes(statement)))


def verify(
    statement: Declassification, target: DataObject, new: Tag, authorities: Mapping[str, bytes], *, now: datetime
) -> Rejection | None:
    """None if the statement lets `target` have the tag `new`; `authorities` maps names to raw public keys."""
    public_key = authorities.get(statement.authority)
    if public_key is None:
        return _no(target, "authority", f"`{statement.authority[:64]}` is not an authority of this hub")
    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(statement.signature, canonical_bytes(statement))
    except (InvalidSignature, ValueError):  # ValueError: the stored key is not one
        return _no(target, "signature", f"is not signed by {statement.authority}")
    if statement.object_id != target.id or statement.tag_revision != target.tag_revision or statement.old != target.tag:
        return _no(target, "subject", "was signed for another object or an earlier tag")
    if statement.new != new:
        return _no(target, "new_tag", "was signed for a different new tag")
    if not statement.issued_at <= now <= statement.valid_until:
        return _no(target, "validity", "is not valid at this time")
    if not statement.reason.strip():
        return _no(target, "reason", "gives no reason")
    return None


def retag(
    target: DataObject,
    new: Tag,
    *,
    authorities: Mapping[str, bytes],
    now: datetime,
    declassification: Declassification | None = None,
) -> DataObject:
    """The object with its new tag. Tightening is free; loosening raises E0908 or E0909 without a valid statement."""
    if loosens(target.tag, new):
        if declassification is None:
            raise HarchError(
                "E0908",
                f"the new tag of {target.name} permits more than its current one",
                hint="have an authority of this hub sign a declassification",
            )
        rejection = verify(declassification, target, new, authorities, now=now)
        if rejection is not None:
            raise HarchError("E0909", f"{rejection.rule}: the declassification {rejection.detail}")
    return msgspec.structs.replace(target, tag=new, tag_revision=target.tag_revision + 1)


def _no(target: DataObject, rule: str, detail: str) -> Rejection:
    return Rejection(target.id, f"declassification.{rule}", detail, "have an authority sign a new declassification")
