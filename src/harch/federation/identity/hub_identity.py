"""Who is this hub, while it runs, and how strict are its connections?

Its name, keys, certificate and the members it knows, kept in step with its files; TLS 1.3 only, with certificates on
both sides.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterable
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from harch.base.errors import HarchError
from harch.federation.identity.certificates import (
    Certificate,
    authority_key,
    is_signed_by,
    make_request,
    read_certificate,
)
from harch.federation.identity.folder import IdentityFolder
from harch.federation.identity.members import (
    AUTHORITY_FEATURE,
    HubName,
    Member,
    Roster,
    SignedMember,
    decode_signed,
    encode_signed,
)

# How strict are the connections? TLS 1.3 only, both sides show a certificate of the federation's authority.
#
# Host names are not compared: a hub is who its certificate names as a URI, wherever it stands. The links do that check.


def server_context(authority: bytes, hub_file: Path, *, admits_unknown_peers: bool) -> ssl.SSLContext:
    """`admits_unknown_peers`: hubs that want to join have no certificate yet. One that is shown must be valid."""
    context = _context(ssl.PROTOCOL_TLS_SERVER, authority)
    context.verify_mode = ssl.CERT_OPTIONAL if admits_unknown_peers else ssl.CERT_REQUIRED
    context.num_tickets = 0  # a resumed session would skip the check of the certificate
    _load(context, hub_file)
    return context


def client_context(authority: bytes, hub_file: Path | None) -> ssl.SSLContext:
    """Without `hub_file`: for a hub that is about to join and has no certificate yet."""
    context = _context(ssl.PROTOCOL_TLS_CLIENT, authority)
    if hub_file is not None:
        _load(context, hub_file)
    return context


def _load(context: ssl.SSLContext, hub_file: Path) -> None:
    """Raises E1005 for a key and a certificate that do not fit together."""
    try:
        context.load_cert_chain(hub_file)
    except (ssl.SSLError, OSError) as error:
        hint = "restore it, or remove the folder and join again"
        raise HarchError("E1005", f"{hub_file} cannot be used", hint=hint) from error


def _context(protocol: int, authority: bytes) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_STRICT
    context.load_verify_locations(cadata=authority)
    return context


# Who is this hub, while it runs? Its name, keys, certificate and the members it knows, kept in step with its files.


class HubIdentity:
    """Raises E0113 if the folder holds no identity, E0110 or E0111 if what it holds does not fit together."""

    def __init__(self, folder: IdentityFolder) -> None:
        self.folder = folder
        self.authority = folder.authority()
        self.certificate = self._checked(folder.certificate())
        self.state_key = folder.state_key()
        self.roster = Roster(self.name.trust_domain, authority_key(self.authority), folder.members())
        self.generation = 0  # counts new certificates; links that were made with an older one are replaced
        self._server: ssl.SSLContext | None = None
        self._client: ssl.SSLContext | None = None
        self._wanted: Ed25519PrivateKey | None = None
        self._watchers: list[Callable[[list[Member]], None]] = []
        if self.member.state_key != self.state_key.public_key().public_bytes_raw():
            raise HarchError("E0111", f"{folder.path} holds another key than the member record says", hint=_JOIN_ANEW)

    @property
    def name(self) -> HubName:
        return self.certificate.name

    @property
    def hub_id(self) -> str:
        return self.certificate.name.hub_id

    @property
    def trust_domain(self) -> str:
        return self.certificate.name.trust_domain

    @property
    def member(self) -> Member:
        """What the authority says about this hub itself."""
        member = self.roster.get(self.hub_id)
        if member is None:
            raise HarchError("E0111", f"{self.folder.path} has no member record of {self.hub_id}", hint=_JOIN_ANEW)
        return member

    @property
    def features(self) -> tuple[str, ...]:
        """What this hub can do for others, as the links announce it."""
        return (AUTHORITY_FEATURE,) if self.folder.has_authority else ()

    # What the links need

    def server_context(self) -> ssl.SSLContext:
        """One object for life: a new certificate is loaded into it, and the listening socket need not be reopened."""
        if self._server is None:
            self._server = server_context(
                self.authority, self.folder.hub_file, admits_unknown_peers=self.folder.has_authority
            )
        return self._server

    def client_context(self) -> ssl.SSLContext:
        if self._client is None:
            self._client = client_context(self.authority, self.folder.hub_file)
        return self._client

    def introduction(self) -> bytes:
        """What a hub shows besides its certificate: its member record, so a newcomer is known wherever it turns up."""
        record = self.roster.record(self.hub_id)
        return encode_signed(record) if record else b""

    def refusal(self, hub_id: str, introduction: bytes) -> str:
        """Why the hub that a certificate names is not welcome; empty if it is. Learns from its introduction."""
        try:
            if introduction:
                self.learn([decode_signed(introduction)])
        except HarchError as error:
            return error.message
        return self.roster.refusal(hub_id)

    # What changes over time

    def learn(self, records: Iterable[SignedMember]) -> list[Member]:
        """Takes over newer member records, also on disk; answers those that changed. Raises E0111."""
        changed = self.roster.merge(records)
        if changed:
            self.folder.write_members(self.roster.records())
            for watcher in self._watchers:
                watcher(changed)
        return changed

    def watch(self, watcher: Callable[[list[Member]], None]) -> None:
        """Calls `watcher` with the members that changed, whichever way their records came."""
        self._watchers.append(watcher)

    def request_certificate(self) -> bytes:
        """A signing request for a fresh key. The key is kept in memory until `install` brings its certificate."""
        self._wanted = Ed25519PrivateKey.generate()
        return make_request(self.name, self._wanted)

    def install(self, certificate: bytes) -> None:
        """The answer to the last request. Every connection from now on uses it. Raises E0110 if it does not fit."""
        renewed = self._checked(certificate)
        if self._wanted is None or renewed.name != self.name or not renewed.is_for(self._wanted):
            raise HarchError("E0110", "the new certificate is not the requested one", hint="try again")
        self.folder.write_hub(certificate, self._wanted)
        self._wanted = None
        self.certificate = renewed
        self.generation += 1
        for context in (self._server, self._client):
            if context is not None:
                context.load_cert_chain(self.folder.hub_file)

    def _checked(self, certificate: bytes) -> Certificate:
        if not is_signed_by(certificate, self.authority):
            raise HarchError("E0110", "the certificate is not signed by the federation's authority", hint=_JOIN_ANEW)
        return read_certificate(certificate)


_JOIN_ANEW = "remove the folder and join again with a new invitation"
