"""Who may say which hubs belong to the federation?

The hub that holds the authority's key; `harch up` founds one for all hubs of a machine at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from harch.base.config import Home
from harch.base.errors import HarchError
from harch.federation.identity.certificates import authority_key, issue, make_authority, make_request
from harch.federation.identity.folder import IdentityFolder, identity_folder
from harch.federation.identity.hub_identity import HubIdentity
from harch.federation.identity.members import (
    TRUST_DOMAIN_DEFAULT,
    Address,
    HubName,
    Member,
    Roster,
    SignedMember,
    hub_name,
    sign_member,
)

# Who may say which hubs belong to the federation? The hub that holds the authority's key.
#
# It signs certificates and member records. That takes its key, and therefore its machine: the daily renewal asks it
# over
# the links, and certificates outlive a cut of days (ADR 22).


class FederationAuthority:
    """The authority, at the hub that holds it. Raises E0113 at any other, E1005 if the key is of another federation."""

    def __init__(self, identity: HubIdentity) -> None:
        self.identity = identity
        self._key = identity.folder.authority_key()
        if self._key.public_key() != authority_key(identity.authority):
            raise HarchError(
                "E1005",
                f"the authority in {identity.folder.path} is not that of its federation",
                hint="restore the folder `authority` from the hub that ran `harch hub init`, or remove it here",
            )

    def admit(self, hub_id: str, state_key: bytes, address: Address, *, now: datetime) -> SignedMember:
        """The record of a member, new or with a new address or key. Whether it may be is the caller's question."""
        return self._record(hub_id, state_key, address, retired=False, now=now)

    def retire(self, hub_id: str, *, now: datetime) -> SignedMember:
        """From now on nobody who has seen this record links with that hub. Raises E0111 for a hub nobody knows."""
        member = self.identity.roster.get(hub_id)
        if member is None:
            raise HarchError("E0111", f"{hub_id} is not a member", hint="`harch hubs` lists the members")
        if hub_id == self.identity.hub_id:
            raise HarchError(
                "E0111", f"{hub_id} holds the authority", hint="copy its `authority` folder to another hub"
            )
        return self._record(hub_id, member.state_key, member.address, retired=True, now=now)

    def certify(self, hub_id: str, request: bytes, *, now: datetime) -> bytes:
        """A certificate for a member. Raises E0111 for hubs that are none, or no more."""
        refusal = self.identity.roster.refusal(hub_id)
        if refusal:
            raise HarchError("E0111", refusal, hint="let it join with a new invitation")
        name = HubName(self.identity.trust_domain, hub_id)
        return issue(name, request, authority=self.identity.authority, key=self._key, now=now)

    def _record(self, hub_id: str, state_key: bytes, address: Address, *, retired: bool, now: datetime) -> SignedMember:
        roster = self.identity.roster
        old, old_record = roster.get(hub_id), roster.record(hub_id)
        if old and old_record and (old.state_key, old.address, old.retired) == (state_key, address, retired):
            return old_record
        member = Member(
            trust_domain=self.identity.trust_domain,
            hub_id=hub_id,
            serial=_serial(roster, hub_id, now),
            state_key=state_key,
            address=address,
            retired=retired,
        )
        record = sign_member(member, self._key)
        self.identity.learn([record])
        return record


def found(folder: IdentityFolder, name: HubName, address: Address, *, now: datetime) -> FederationAuthority:
    """A new federation with this hub as its first member and holder of the authority. Raises E0114 if it has one."""
    if folder.is_complete:
        raise HarchError(
            "E0114", f"{folder.path} holds an identity already", hint="remove the folder if it is to be forgotten"
        )
    key, hub_key = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
    state_key = folder.ensure_state_key()
    authority = make_authority(name.trust_domain, key, now=now)
    member = Member(
        trust_domain=name.trust_domain,
        hub_id=name.hub_id,
        serial=_milliseconds(now),
        state_key=state_key.public_key().public_bytes_raw(),
        address=address,
    )
    folder.write_authority(authority, key)
    folder.write_members([sign_member(member, key)])
    folder.write_hub(issue(name, make_request(name, hub_key), authority=authority, key=key, now=now), hub_key)
    return FederationAuthority(HubIdentity(folder))


def _serial(roster: Roster, hub_id: str, now: datetime) -> int:
    """Grows, also if the authority was restored from a backup that lacks its last records."""
    old = roster.get(hub_id)
    return max(_milliseconds(now), old.serial + 1 if old else 0)


def _milliseconds(now: datetime) -> int:
    return int(now.timestamp() * 1000)


# How do all hubs of one machine become a federation at once? `harch up` needs no invitations: one owner, one disk.


def make_federation(
    home: Home, hubs: Mapping[str, tuple[str, int]], *, now: datetime, trust_domain: str = TRUST_DOMAIN_DEFAULT
) -> dict[str, HubIdentity]:
    """An identity for every hub, by hub id; `hubs` says where each accepts links. The first holds the authority.

    A second start keeps all keys. It renews certificates that are due, so a machine that was off for a month starts
    again, and notes addresses that changed; a retired hub stays retired. No hub of `home` may be running. Raises E0114
    if the identities that are there belong to a federation whose authority is not.
    """
    folders = {hub_id: identity_folder(home, hub_id) for hub_id in hubs}
    addresses = {hub_id: Address(*address) for hub_id, address in hubs.items()}
    authority = _authority(folders, addresses, now=now, trust_domain=trust_domain)
    records = [_enter(authority, folders[hub_id], hub_id, addresses[hub_id], now=now) for hub_id in hubs]
    return {hub_id: _renewed(authority, folder, records, now=now) for hub_id, folder in folders.items()}


def _authority(
    folders: Mapping[str, IdentityFolder], addresses: Mapping[str, Address], *, now: datetime, trust_domain: str
) -> FederationAuthority:
    for folder in folders.values():
        if folder.is_complete and folder.has_authority:
            return FederationAuthority(HubIdentity(folder))
    for hub_id, folder in folders.items():
        if folder.is_complete:
            raise HarchError(
                "E0114",
                f"hub {hub_id} belongs to a federation with its authority on another machine",
                hint="serve it with `harch hub serve`, or use another HARCH_HOME",
            )
    first = next(iter(folders))
    return found(folders[first], hub_name(trust_domain, first), addresses[first], now=now)


def _enter(
    authority: FederationAuthority, folder: IdentityFolder, hub_id: str, address: Address, *, now: datetime
) -> SignedMember:
    if folder.is_complete and folder.authority() != authority.identity.authority:
        raise HarchError("E0114", f"hub {hub_id} belongs to another federation", hint="use another HARCH_HOME")
    hub_name(authority.identity.trust_domain, hub_id)
    known = authority.identity.roster.get(hub_id), authority.identity.roster.record(hub_id)
    if known[0] is not None and known[1] is not None and known[0].retired:
        return known[1]  # a restart does not bring back what an operator has retired
    state_key = folder.ensure_state_key().public_key().public_bytes_raw()
    return authority.admit(hub_id, state_key, address, now=now)


def _renewed(
    authority: FederationAuthority, folder: IdentityFolder, records: list[SignedMember], *, now: datetime
) -> HubIdentity:
    if folder.path == authority.identity.folder.path:
        identity = authority.identity
    else:
        if not folder.is_complete:
            _write_first(authority, folder, records, now=now)
        identity = HubIdentity(folder)
        identity.learn(records)
    if identity.certificate.is_due(now) and not identity.member.retired:
        identity.install(authority.certify(identity.hub_id, identity.request_certificate(), now=now))
    return identity


def _write_first(
    authority: FederationAuthority, folder: IdentityFolder, records: list[SignedMember], *, now: datetime
) -> None:
    hub_id, key = folder.path.parent.name, Ed25519PrivateKey.generate()
    name = hub_name(authority.identity.trust_domain, hub_id)
    folder.write_authority_certificate(authority.identity.authority)
    folder.write_members(records)
    folder.write_hub(authority.certify(hub_id, make_request(name, key), now=now), key)
