"""Who may say which hubs belong to the federation? The hub that holds the authority's key.

It signs certificates and member records. That takes its key, and therefore its machine: the daily renewal asks it over
the links, and certificates outlive a cut of days (ADR 22).
"""

from __future__ import annotations

from datetime import datetime

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from harch.base.errors import HarchError
from harch.federation.identity.certificates import authority_key, issue, make_authority, make_request
from harch.federation.identity.folder import IdentityFolder
from harch.federation.identity.identity import HubIdentity
from harch.federation.identity.members import Address, Member, Roster, SignedMember, sign_member
from harch.federation.identity.names import HubName


class Authority:
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


def found(folder: IdentityFolder, name: HubName, address: Address, *, now: datetime) -> Authority:
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
    return Authority(HubIdentity(folder))


def _serial(roster: Roster, hub_id: str, now: datetime) -> int:
    """Grows, also if the authority was restored from a backup that lacks its last records."""
    old = roster.get(hub_id)
    return max(_milliseconds(now), old.serial + 1 if old else 0)


def _milliseconds(now: datetime) -> int:
    return int(now.timestamp() * 1000)
