"""How does a hub's identity stay good while it runs? Certificates renewed, members known, the retired left out."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Protocol

from harch.base.clock import Clock
from harch.base.errors import HarchError
from harch.federation.identity.authority import FederationAuthority
from harch.federation.identity.hub_identity import HubIdentity
from harch.federation.identity.members import (
    AUTHORITY_FEATURE,
    Address,
    CertificateRenewed,
    IdentityMessage,
    Member,
    Members,
    RenewalRefused,
    RenewRequest,
)

CHECK_EVERY_S = 60.0

_EXPIRED = "the certificate has expired, so no hub accepts links: join again with a new invitation"

_log = logging.getLogger("harch.identity")


class Links(Protocol):
    """The part of `links.Mesh` that is needed here."""

    def send(self, hub_id: str, message: IdentityMessage) -> bool: ...

    def up(self) -> tuple[str, ...]: ...

    def features(self, hub_id: str) -> tuple[str, ...]: ...

    def add_peer(self, hub_id: str, address: tuple[str, int]) -> None: ...

    def remove_peer(self, hub_id: str, why: str) -> None: ...


class IdentityRenewal:
    """Makes every member a peer, passes on what is new about members, and renews the certificate.

    The owner of the links calls `on_up` and `on_message`, and runs `run` beside them. `address` is where this hub
    accepts links; the authority is told with the next renewal if it has changed.
    """

    def __init__(self, identity: HubIdentity, links: Links, clock: Clock, *, address: tuple[str, int]) -> None:
        self.trouble = ""  # why the certificate could not be renewed at the last attempt
        self._identity = identity
        self._links = links
        self._clock = clock
        self._address = Address(*address)
        self.authority = FederationAuthority(identity) if identity.folder.has_authority else None
        self._requests_sent = 0
        identity.watch(self._changed)
        self._make_peers(identity.roster)

    def on_up(self, hub_id: str) -> None:
        self._links.send(hub_id, Members(self._identity.roster.records()))

    def on_message(self, hub_id: str, message: IdentityMessage) -> None:
        """Never raises for what a peer says: at worst it is not believed."""
        try:
            match message:
                case Members(records):
                    self._identity.learn(records)
                case RenewRequest():
                    self._links.send(hub_id, self._renewal(hub_id, message))
                case CertificateRenewed(certificate):
                    self._identity.install(certificate)
                    self.trouble = ""
                    _log.info("certificate renewed until %s", self._identity.certificate.not_after)
                case RenewalRefused(_, reason):
                    self._note(f"{hub_id} does not renew the certificate: {reason}")
        except HarchError as error:
            _log.warning("%s sent an invalid reply: %s", hub_id, error.message)

    async def run(self) -> None:
        while True:
            self.check()
            await self._clock.sleep(CHECK_EVERY_S)

    def check(self) -> None:
        """Asks for a new certificate if one is due; an answer that does not come is asked for again next time."""
        member, now = self._identity.member, self._clock.now()
        if member.retired or not (self._identity.certificate.is_due(now) or member.address != self._address):
            return
        if self.authority is not None:
            request = RenewRequest(self._identity.request_certificate(), self._address)
            self.on_message(self._identity.hub_id, self._renewal(self._identity.hub_id, request))
            return
        holders = [hub_id for hub_id in self._links.up() if AUTHORITY_FEATURE in self._links.features(hub_id)]
        if not holders:
            lost = not self._identity.certificate.is_valid(now)
            self._note(_EXPIRED if lost else "no hub that holds the authority can be reached")
            return
        self._requests_sent += 1
        request = RenewRequest(self._identity.request_certificate(), self._address)
        self._links.send(holders[self._requests_sent % len(holders)], request)

    def _renewal(self, hub_id: str, message: RenewRequest) -> CertificateRenewed | RenewalRefused:
        if self.authority is None:
            return RenewalRefused("E0113", f"{self._identity.hub_id} does not hold the authority")
        now = self._clock.now()
        try:
            certificate = self.authority.certify(hub_id, message.request, now=now)
            member = self._identity.roster.get(hub_id)
            if member is not None:
                self.authority.admit(hub_id, member.state_key, message.address, now=now)
        except HarchError as error:
            return RenewalRefused(error.code, error.message)
        return CertificateRenewed(certificate)

    def _changed(self, members: list[Member]) -> None:
        records = tuple(record for m in members if (record := self._identity.roster.record(m.hub_id)))
        for hub_id in self._links.up():
            self._links.send(hub_id, Members(records))
        self._make_peers(members)

    def _make_peers(self, members: Iterable[Member]) -> None:
        for member in members:
            if member.hub_id == self._identity.hub_id:
                continue
            if member.retired:
                self._links.remove_peer(member.hub_id, f"{member.hub_id} has been retired")
            else:
                self._links.add_peer(member.hub_id, member.address)

    def _note(self, trouble: str) -> None:
        if trouble != self.trouble:  # the same reason every minute would fill the log
            self.trouble = trouble
            _log.warning("%s (certificate until %s)", trouble, self._identity.certificate.not_after)
