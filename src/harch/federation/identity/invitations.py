"""What lets a new hub in? An invitation: for one hub, once, for a limited time. No file and no clock here.

The text that people pass on holds a secret; the authority keeps only its digest. 192 random bits need no slow hash.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable
from datetime import datetime, timedelta
from hashlib import sha256

import msgspec
from msgspec import Struct, structs

from harch.base.clock import iso
from harch.base.errors import HarchError
from harch.federation.identity.members import Address
from harch.federation.identity.names import HubName, hub_name

PREFIX = "hinv_"
SECRET_BYTES = 24
LIFE_DEFAULT, LIFE_MAX = timedelta(hours=24), timedelta(days=7)
OPEN_MAX = 1_000
KEPT_AFTER_END = timedelta(days=30)  # so that a late guest hears "used" or "expired" and not "not known"

_INVITE_AGAIN = "`harch hub invite {}` at the hub that holds the authority makes a new one"


class Invitation(Struct, frozen=True, kw_only=True):
    """`authority` is the fingerprint of the federation's certificate, `host_id` the hub that holds its key.

    The guest checks both before it shows the secret: no other member can pick it up on the way.
    """

    trust_domain: str
    hub_id: str
    host_id: str
    address: Address
    authority: bytes
    secret: bytes
    expires_at: datetime

    def __repr__(self) -> str:
        return f"Invitation(hub_id={self.hub_id!r}, address={self.address!r})"  # never the secret

    @property
    def name(self) -> HubName:
        return HubName(self.trust_domain, self.hub_id)

    @property
    def host(self) -> HubName:
        return HubName(self.trust_domain, self.host_id)

    def text(self) -> str:
        return PREFIX + base64.urlsafe_b64encode(msgspec.msgpack.encode(self)).decode().rstrip("=")


class StoredInvitation(Struct, frozen=True, kw_only=True):
    """What the authority remembers. `used_by` is the state key that came with it."""

    hub_id: str
    digest: str
    expires_at: datetime
    used_by: str = ""


def parse_invitation(text: str) -> Invitation:
    """Raises E0112 for anything that is not an invitation."""
    encoded = text.strip().removeprefix(PREFIX)
    try:
        raw = base64.b64decode(encoded + "=" * (-len(encoded) % 4), altchars=b"-_", validate=True)
        invitation = msgspec.msgpack.decode(raw, type=Invitation)
        hub_name(invitation.trust_domain, invitation.hub_id)
        hub_name(invitation.trust_domain, invitation.host_id)
    except (binascii.Error, ValueError, HarchError):
        raise HarchError(
            "E0112", "this is not an invitation", hint=f"it starts with {PREFIX} and is one line; copy all of it"
        ) from None
    return invitation


def store(invitation: Invitation) -> StoredInvitation:
    return StoredInvitation(
        hub_id=invitation.hub_id, digest=digest(invitation.secret), expires_at=invitation.expires_at
    )


def redeem(
    stored: Iterable[StoredInvitation], *, hub_id: str, secret: bytes, state_key: bytes, now: datetime
) -> list[StoredInvitation]:
    """What is stored afterwards. Raises E0112 unless the secret opens an invitation for exactly this hub, now.

    The same hub with the same key may come twice: it did not hear the first answer.
    """
    kept, wanted, key = list(stored), digest(secret), state_key.hex()
    at = next((i for i, one in enumerate(kept) if one.digest == wanted and one.hub_id == hub_id), None)
    if at is None:
        raise _refused(hub_id, f"no invitation of this kind is known for {hub_id}")
    found = kept[at]
    if now >= found.expires_at:
        raise _refused(hub_id, f"the invitation expired at {iso(found.expires_at)}")
    if found.used_by not in {"", key}:
        raise _refused(hub_id, "the invitation has been used")
    kept[at] = structs.replace(found, used_by=key)
    return kept


def without_old(stored: Iterable[StoredInvitation], *, now: datetime) -> list[StoredInvitation]:
    return [invitation for invitation in stored if now < invitation.expires_at + KEPT_AFTER_END]


def digest(secret: bytes) -> str:
    return sha256(secret).hexdigest()


def _refused(hub_id: str, message: str) -> HarchError:
    return HarchError("E0112", message, hint=_INVITE_AGAIN.format(hub_id))
