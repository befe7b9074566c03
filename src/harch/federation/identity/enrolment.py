"""How does a new hub get in?

By an invitation for one hub, once, for a limited time, which the authority's hub redeems. The new hub makes its keys
itself; keys never travel.
"""

from __future__ import annotations

import base64
import binascii
import logging
import secrets
import ssl
from collections.abc import Awaitable, Callable, Iterable
from datetime import datetime, timedelta
from hashlib import sha256

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from msgspec import Struct, structs

from harch.base.clock import Clock, iso
from harch.base.errors import REGISTRY, HarchError
from harch.base.seal import LINE
from harch.base.state_files import read_sealed
from harch.federation.identity import hub_identity
from harch.federation.identity.authority import FederationAuthority
from harch.federation.identity.certificates import (
    authority_key,
    fingerprint,
    is_signed_by,
    make_request,
    read_certificate,
)
from harch.federation.identity.folder import IdentityFolder, write_private
from harch.federation.identity.hub_identity import HubIdentity
from harch.federation.identity.members import Address, HubName, Roster, SignedMember, hub_name

# What lets a new hub in? An invitation: for one hub, once, for a limited time. No file and no clock here.
#
# The text that people pass on holds a secret; the authority keeps only its digest. 192 random bits need no slow hash.


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


# How does a new hub get its identity? It makes its keys itself and shows its invitation; keys never travel.
#
# The conversation is two questions and two answers, each on a connection of its own (`Ask` is how to have one):
#
# 1. Which authority? Anybody may ask. The guest compares the answer with the fingerprint in its invitation.
# 2. May I join? Over TLS that only the hub which sent the invitation can answer, so the secret reaches nobody else.


_PURPOSE = b"harch join request 1\0"

# Address, TLS, whom its certificate must name (None: anybody), question -> answer
SendQuestion = Callable[[Address, ssl.SSLContext, HubName | None, bytes], Awaitable[bytes]]


class WhichAuthority(Struct, frozen=True, tag="which_authority"):
    pass


class TheAuthority(Struct, frozen=True, tag="the_authority"):
    certificate: bytes


class JoinRequest(Struct, frozen=True, kw_only=True, tag="join"):
    """`proof` is a signature of the state key over everything else: whoever joins with a key has it."""

    hub_id: str
    secret: bytes
    request: bytes
    state_key: bytes
    address: Address
    proof: bytes

    def __repr__(self) -> str:
        return f"JoinRequest(hub_id={self.hub_id!r})"  # never the secret

    @property
    def is_proved(self) -> bool:
        try:
            signed = _statement(self.hub_id, self.secret, self.request, self.address)
            Ed25519PublicKey.from_public_bytes(self.state_key).verify(self.proof, signed)
        except (InvalidSignature, ValueError):
            return False
        return True


class Joined(Struct, frozen=True, tag="joined"):
    certificate: bytes
    records: tuple[SignedMember, ...]


class NotJoined(Struct, frozen=True, tag="not_joined"):
    code: str
    message: str
    hint: str


Question = WhichAuthority | JoinRequest
Answer = TheAuthority | Joined | NotJoined

_encode = msgspec.msgpack.Encoder().encode
_questions: msgspec.msgpack.Decoder[Question] = msgspec.msgpack.Decoder(WhichAuthority | JoinRequest)
_answers: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(TheAuthority | Joined | NotJoined)


def encode_answer(answer: Answer) -> bytes:
    return _encode(answer)


def decode_question(body: bytes) -> Question:
    """Raises `msgspec.DecodeError` for anything else."""
    return _questions.decode(body)


async def join(
    folder: IdentityFolder, invitation: Invitation, address: tuple[str, int], *, send: SendQuestion, now: datetime
) -> HubIdentity:
    """The identity of the new hub, on disk. A member that was away for too long may join again and keeps its key.

    Raises E0112 for an invitation that does not hold, E0114 if the hub belongs to another federation.
    """
    _check_folder(folder, invitation, now)
    answer = _read(await send(invitation.address, _unverified_context(), None, _encode(WhichAuthority())))
    if not isinstance(answer, TheAuthority) or fingerprint(answer.certificate) != invitation.authority:
        raise HarchError(
            "E0112",
            f"the hub at {invitation.address} is not of the federation that sent this invitation",
            hint="request a new invitation; the connection may be intercepted",
        )
    authority, state_key, hub_key = answer.certificate, folder.ensure_state_key(), Ed25519PrivateKey.generate()
    question = _question(invitation, Address(*address), state_key, make_request(invitation.name, hub_key))
    context = hub_identity.client_context(authority, None)
    answer = _read(await send(invitation.address, context, invitation.host, _encode(question)))
    if not isinstance(answer, Joined):
        raise _strange(invitation)
    certificate = read_certificate(answer.certificate)
    fits = certificate.name == invitation.name and certificate.is_for(hub_key)
    if not fits or not is_signed_by(answer.certificate, authority):
        raise _strange(invitation)
    Roster(invitation.trust_domain, authority_key(authority), answer.records)  # raises if one is not signed
    folder.write_authority_certificate(authority)
    folder.write_members(answer.records)
    folder.write_hub(answer.certificate, hub_key)
    return HubIdentity(folder)


def _question(invitation: Invitation, address: Address, state_key: Ed25519PrivateKey, request: bytes) -> JoinRequest:
    return JoinRequest(
        hub_id=invitation.hub_id,
        secret=invitation.secret,
        request=request,
        state_key=state_key.public_key().public_bytes_raw(),
        address=address,
        proof=state_key.sign(_statement(invitation.hub_id, invitation.secret, request, address)),
    )


def _statement(hub_id: str, secret: bytes, request: bytes, address: Address) -> bytes:
    return _PURPOSE + _encode((hub_id, digest(secret), request, address))


def _check_folder(folder: IdentityFolder, invitation: Invitation, now: datetime) -> None:
    if now >= invitation.expires_at:
        raise HarchError("E0112", "the invitation has expired", hint=f"`harch hub invite {invitation.hub_id}`")
    if folder.is_complete and fingerprint(folder.authority()) != invitation.authority:
        raise HarchError(
            "E0114",
            f"{folder.path} belongs to another federation",
            hint="remove the folder if that federation is to be forgotten",
        )
    if folder.has_authority:
        raise HarchError("E0114", f"{folder.path} holds the authority", hint="it renews its own certificate")


def _unverified_context() -> ssl.SSLContext:
    """For the first question only: it is public, and its answer is checked by its fingerprint."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _read(body: bytes) -> Answer:
    try:
        answer = _answers.decode(body)
    except msgspec.DecodeError as error:
        raise HarchError("E0802", "the answer is not one of a HarchOS hub", hint="check the address") from error
    if isinstance(answer, NotJoined):
        raise HarchError(answer.code if answer.code in REGISTRY else "E0112", answer.message, hint=answer.hint)
    return answer


def _strange(invitation: Invitation) -> HarchError:
    return HarchError("E0112", f"{invitation.address} issued a certificate that was not requested", hint="see its log")


# Who lets new hubs in? The hub that holds the authority: it writes invitations and redeems them, each once.


_log = logging.getLogger("harch.identity")


def invite(
    identity: HubIdentity, hub_id: str, *, now: datetime, life: timedelta = LIFE_DEFAULT, again: bool = False
) -> Invitation:
    """A new invitation. `again`: for a hub that is a member already, or was one.

    Raises E0113 if this hub does not hold the authority, E0114 for a member that is not invited again on purpose.
    """
    hub_name(identity.trust_domain, hub_id)
    if not identity.folder.has_authority:
        raise HarchError(
            "E0113",
            f"{identity.hub_id} does not hold the authority",
            hint="invite where `harch hub init` was run",
        )
    if not timedelta(0) < life <= LIFE_MAX:
        raise HarchError("E0201", "an invitation lasts at most 7 days", hint="choose fewer hours")
    if hub_id == identity.hub_id or (identity.roster.get(hub_id) is not None and not again):
        raise HarchError(
            "E0114", f"{hub_id} is a member already", hint="`--again` lets it join again, e.g. after its disk was lost"
        )
    invitation = Invitation(
        trust_domain=identity.trust_domain,
        hub_id=hub_id,
        host_id=identity.hub_id,
        address=identity.member.address,
        authority=fingerprint(identity.authority),
        secret=secrets.token_bytes(SECRET_BYTES),
        expires_at=now + life,
    )
    with identity.folder.lock():
        kept = without_old(_stored(identity.folder), now=now)
        if len(kept) >= OPEN_MAX:
            raise HarchError("E0401", f"there are {OPEN_MAX} invitations", hint="wait until some have expired")
        _write(identity.folder, [*kept, store(invitation)])
    return invitation


class EnrolmentService:
    """Answers hubs that have no certificate yet; `answer` is the mesh's `on_stranger`."""

    def __init__(self, authority: FederationAuthority, clock: Clock) -> None:
        self._authority = authority
        self._clock = clock

    def answer(self, body: bytes) -> bytes:
        try:
            question = decode_question(body)
            if isinstance(question, JoinRequest):
                return encode_answer(self._join(question))
            return encode_answer(TheAuthority(self._authority.identity.authority))
        except msgspec.DecodeError:
            return encode_answer(NotJoined("E0201", "this is not a join request", ""))
        except HarchError as error:
            _log.warning("a hub was refused: %s", error.message)
            return encode_answer(NotJoined(error.code, error.message, error.hint))

    def _join(self, question: JoinRequest) -> Answer:
        if not question.is_proved:
            raise HarchError("E0112", "the request is not signed by the key that it brings", hint="join again")
        identity, now = self._authority.identity, self._clock.now()
        with identity.folder.lock():
            kept = redeem(
                _stored(identity.folder),
                hub_id=question.hub_id,
                secret=question.secret,
                state_key=question.state_key,
                now=now,
            )
            _write(identity.folder, kept)  # used before anybody has the certificate: a crash cannot make it good twice
        self._authority.admit(question.hub_id, question.state_key, question.address, now=now)
        certificate = self._authority.certify(question.hub_id, question.request, now=now)
        _log.info("hub %s has joined, at %s", question.hub_id, question.address)
        return Joined(certificate, identity.roster.records())


def _stored(folder: IdentityFolder) -> list[StoredInvitation]:
    try:
        return msgspec.json.decode(read_sealed(folder.invitations_file), type=list[StoredInvitation])
    except FileNotFoundError:
        return []
    except (OSError, msgspec.DecodeError) as error:
        raise HarchError(
            "E1005", f"{folder.invitations_file} cannot be used", hint="remove it; open invitations are void then"
        ) from error


def _write(folder: IdentityFolder, stored: list[StoredInvitation]) -> None:
    write_private(folder.invitations_file, LINE.seal(msgspec.json.encode(stored)))
