"""How does a new hub get its identity? It makes its keys itself and shows its invitation; keys never travel.

The conversation is two questions and two answers, each on a connection of its own (`Ask` is how to have one):

1. Which authority? Anybody may ask. The guest compares the answer with the fingerprint in its invitation.
2. May I join? Over TLS that only the hub which sent the invitation can answer, so the secret reaches nobody else.
"""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable
from datetime import datetime

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from msgspec import Struct

from harch.base.errors import REGISTRY, HarchError
from harch.federation.identity import tls
from harch.federation.identity.certificates import (
    authority_key,
    fingerprint,
    is_signed_by,
    make_request,
    read_certificate,
)
from harch.federation.identity.folder import IdentityFolder
from harch.federation.identity.identity import HubIdentity
from harch.federation.identity.invitations import Invitation, digest
from harch.federation.identity.members import Address, Roster, SignedMember
from harch.federation.identity.names import HubName

_PURPOSE = b"harch join request 1\0"

# Address, TLS, whom its certificate must name (None: anybody), question -> answer
Ask = Callable[[Address, ssl.SSLContext, HubName | None, bytes], Awaitable[bytes]]


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
    folder: IdentityFolder, invitation: Invitation, address: tuple[str, int], *, ask: Ask, now: datetime
) -> HubIdentity:
    """The identity of the new hub, on disk. A member that was away for too long may join again and keeps its key.

    Raises E0112 for an invitation that does not hold, E0114 if the hub belongs to another federation.
    """
    _check_folder(folder, invitation, now)
    answer = _read(await ask(invitation.address, _unverified_context(), None, _encode(WhichAuthority())))
    if not isinstance(answer, TheAuthority) or fingerprint(answer.certificate) != invitation.authority:
        raise HarchError(
            "E0112",
            f"the hub at {invitation.address} is not of the federation that sent this invitation",
            hint="ask for a new invitation; somebody may be listening in between",
        )
    authority, state_key, hub_key = answer.certificate, folder.ensure_state_key(), Ed25519PrivateKey.generate()
    question = _question(invitation, Address(*address), state_key, make_request(invitation.name, hub_key))
    context = tls.client_context(authority, None)
    answer = _read(await ask(invitation.address, context, invitation.host, _encode(question)))
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
    return HarchError("E0112", f"{invitation.address} gave a certificate that was not asked for", hint="see its log")
