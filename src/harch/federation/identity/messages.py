"""What do hubs tell each other about identities? Messages that travel over the links, beside gossip and offers."""

from __future__ import annotations

from msgspec import Struct

from harch.federation.identity.members import Address, SignedMember

AUTHORITY_FEATURE = "authority"  # what the hub that holds the authority says of itself in its greeting


class Members(Struct, frozen=True, tag="identity.members"):
    """Member records: all of them when a link comes up, later those that are new to the sender."""

    records: tuple[SignedMember, ...]


class RenewRequest(Struct, frozen=True, tag="identity.renew"):
    """To a hub that holds the authority. The link says who asks; `address` is where that hub accepts links now."""

    request: bytes
    address: Address


class Renewed(Struct, frozen=True, tag="identity.renewed"):
    certificate: bytes


class RenewalRefused(Struct, frozen=True, tag="identity.not_renewed"):
    code: str
    message: str


IdentityMessage = Members | RenewRequest | Renewed | RenewalRefused
