"""How do all hubs of one machine become a federation at once? `harch up` needs no invitations: one owner, one disk."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from harch.base.config import Home
from harch.base.errors import HarchError
from harch.federation.identity.authority import Authority, found
from harch.federation.identity.certificates import make_request
from harch.federation.identity.folder import IdentityFolder, identity_folder
from harch.federation.identity.identity import HubIdentity
from harch.federation.identity.members import Address, SignedMember
from harch.federation.identity.names import TRUST_DOMAIN_DEFAULT, hub_name


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
) -> Authority:
    for folder in folders.values():
        if folder.is_complete and folder.has_authority:
            return Authority(HubIdentity(folder))
    for hub_id, folder in folders.items():
        if folder.is_complete:
            raise HarchError(
                "E0114",
                f"hub {hub_id} belongs to a federation whose authority is not on this machine",
                hint="serve it with `harch hub serve`, or use another HARCH_HOME",
            )
    first = next(iter(folders))
    return found(folders[first], hub_name(trust_domain, first), addresses[first], now=now)


def _enter(
    authority: Authority, folder: IdentityFolder, hub_id: str, address: Address, *, now: datetime
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
    authority: Authority, folder: IdentityFolder, records: list[SignedMember], *, now: datetime
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


def _write_first(authority: Authority, folder: IdentityFolder, records: list[SignedMember], *, now: datetime) -> None:
    hub_id, key = folder.path.parent.name, Ed25519PrivateKey.generate()
    name = hub_name(authority.identity.trust_domain, hub_id)
    folder.write_authority_certificate(authority.identity.authority)
    folder.write_members(records)
    folder.write_hub(authority.certify(hub_id, make_request(name, key), now=now), key)
