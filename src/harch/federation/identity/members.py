"""Which hubs belong to the federation, what are they called, with which keys, and where?

Records that the authority has signed, `spiffe://TRUST-DOMAIN/hub/HUB-ID`, and the messages about them.
"""

# harch: pure

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from msgspec import Struct

from harch.base.errors import HarchError

# Which hubs belong to the federation, with which keys, and where? Records that the authority has signed.
#
# A record can come from anybody, for instance from the hub that it is about: what counts is the signature. Of two
# records
# about one hub the one with the higher serial holds, so a retirement cannot be undone by showing an older record.


MEMBERS_MAX = 1_000

_PURPOSE = b"harch member record 1\0"  # a signature for this can never be taken for one about something else


class Address(NamedTuple):
    """Where a hub accepts links from its peers."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Member(Struct, frozen=True, kw_only=True):
    """What the authority says about one hub. `state_key` checks the signature of everything the hub gossips."""

    trust_domain: str
    hub_id: str
    serial: int
    state_key: bytes
    address: Address
    retired: bool = False

    @property
    def public_key(self) -> Ed25519PublicKey:
        return Ed25519PublicKey.from_public_bytes(self.state_key)


class SignedMember(Struct, frozen=True):
    """`body` is the msgpack form of a `Member`: signed as the bytes that travel, so nothing has to be re-encoded."""

    body: bytes
    signature: bytes


_encode = msgspec.msgpack.Encoder().encode
_decode_member = msgspec.msgpack.Decoder(Member).decode
_decode_signed = msgspec.msgpack.Decoder(SignedMember).decode


def sign_member(member: Member, key: Ed25519PrivateKey) -> SignedMember:
    body = _encode(member)
    return SignedMember(body, key.sign(_PURPOSE + body))


def encode_signed(record: SignedMember) -> bytes:
    return _encode(record)


def decode_signed(data: bytes) -> SignedMember:
    """Raises E0111 for anything else."""
    try:
        return _decode_signed(data)
    except msgspec.DecodeError as error:
        raise _not_signed() from error


class Roster:
    """All members that a hub knows of, each by the newest record it has seen."""

    def __init__(self, trust_domain: str, authority: Ed25519PublicKey, records: Iterable[SignedMember] = ()) -> None:
        self._trust_domain = trust_domain
        self._authority = authority
        self._known: dict[str, tuple[Member, SignedMember]] = {}
        self.merge(records)

    def merge(self, records: Iterable[SignedMember]) -> list[Member]:
        """Takes over what is new; answers the members that changed. Raises E0111 at a record that does not hold."""
        changed = []
        for record in records:
            known = self._known_with(record)
            if known is not None:
                continue
            member = self._verified(record)
            older = self._known.get(member.hub_id)
            if older is not None and older[0].serial >= member.serial:
                continue
            if older is None and len(self._known) >= MEMBERS_MAX:
                raise HarchError("E0401", f"a federation has at most {MEMBERS_MAX} hubs", hint="retire some first")
            self._known[member.hub_id] = (member, record)
            changed.append(member)
        return changed

    def get(self, hub_id: str) -> Member | None:
        known = self._known.get(hub_id)
        return known[0] if known else None

    def record(self, hub_id: str) -> SignedMember | None:
        known = self._known.get(hub_id)
        return known[1] if known else None

    def records(self) -> tuple[SignedMember, ...]:
        return tuple(record for _, record in self._known.values())

    def refusal(self, hub_id: str) -> str:
        """Why this hub is not to be talked to; empty if it may be."""
        member = self.get(hub_id)
        if member is None:
            return f"{hub_id} is not known as a member"
        return f"{hub_id} has been retired" if member.retired else ""

    def __iter__(self) -> Iterator[Member]:
        """Retired members too."""
        return iter([member for member, _ in self._known.values()])

    def _known_with(self, record: SignedMember) -> Member | None:
        """The member, if exactly this record was verified before: records are repeated at every new link."""
        return next((member for member, known in self._known.values() if known == record), None)

    def _verified(self, record: SignedMember) -> Member:
        try:
            self._authority.verify(record.signature, _PURPOSE + record.body)
            member = _decode_member(record.body)
        except (InvalidSignature, msgspec.DecodeError) as error:
            raise _not_signed() from error
        if member.trust_domain != self._trust_domain or len(member.state_key) != 32:
            raise _not_signed()
        return member


def _not_signed() -> HarchError:
    return HarchError(
        "E0111", "a member record is not signed by this federation's authority", hint="let the hub join again"
    )


# What is a hub called? `spiffe://TRUST-DOMAIN/hub/HUB-ID`, the name that its certificate carries.


TRUST_DOMAIN_DEFAULT = "harch.internal"

_TRUST_DOMAIN = re.compile(r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?")
_HUB_ID = re.compile(r"[a-z0-9]([a-z0-9_-]{0,61}[a-z0-9])?")
_URI = re.compile(rf"spiffe://({_TRUST_DOMAIN.pattern})/hub/({_HUB_ID.pattern})")


class HubName(NamedTuple):
    """One hub of one federation. Two federations may each have a `dakar`; their trust domains tell them apart."""

    trust_domain: str
    hub_id: str

    @property
    def uri(self) -> str:
        return f"spiffe://{self.trust_domain}/hub/{self.hub_id}"


def hub_name(trust_domain: str, hub_id: str) -> HubName:
    """A checked name. Raises E0201 for what cannot stand in a certificate, a folder name and a URI alike."""
    if not _TRUST_DOMAIN.fullmatch(trust_domain):
        raise HarchError(
            "E0201", f"`{trust_domain}` is not a trust domain", hint="use a name like `gpu.example.org`, lower case"
        )
    if not _HUB_ID.fullmatch(hub_id):
        raise HarchError(
            "E0201", f"`{hub_id}` is not a hub id", hint="use lower-case letters, digits, `-` and `_`, e.g. `dakar`"
        )
    return HubName(trust_domain, hub_id)


def parse_uri(uri: str) -> HubName | None:
    """The name that a URI says; None for any other URI."""
    match = _URI.fullmatch(uri)
    return HubName(match[1], match[3]) if match else None


# What do hubs tell each other about identities? Messages that travel over the links, beside gossip and offers.


AUTHORITY_FEATURE = "authority"  # what the hub that holds the authority says of itself in its greeting


class Members(Struct, frozen=True, tag="identity.members"):
    """Member records: all of them when a link comes up, later those that are new to the sender."""

    records: tuple[SignedMember, ...]


class RenewRequest(Struct, frozen=True, tag="identity.renew"):
    """To a hub that holds the authority. The link says who asks; `address` is where that hub accepts links now."""

    request: bytes
    address: Address


class CertificateRenewed(Struct, frozen=True, tag="identity.renewed"):
    certificate: bytes


class RenewalRefused(Struct, frozen=True, tag="identity.not_renewed"):
    code: str
    message: str


IdentityMessage = Members | RenewRequest | CertificateRenewed | RenewalRefused
