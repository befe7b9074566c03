"""Who lets new hubs in? The hub that holds the authority: it writes invitations and redeems them, each once."""

from __future__ import annotations

import logging
import secrets
from datetime import datetime, timedelta

import msgspec

from harch.base.clock import Clock
from harch.base.errors import HarchError
from harch.base.seal import LINE
from harch.base.sealed import read_sealed
from harch.federation.identity.authority import Authority
from harch.federation.identity.certificates import fingerprint
from harch.federation.identity.folder import IdentityFolder, write_private
from harch.federation.identity.identity import HubIdentity
from harch.federation.identity.invitations import (
    LIFE_DEFAULT,
    LIFE_MAX,
    OPEN_MAX,
    SECRET_BYTES,
    Invitation,
    StoredInvitation,
    redeem,
    store,
    without_old,
)
from harch.federation.identity.joining import (
    Answer,
    Joined,
    JoinRequest,
    NotJoined,
    TheAuthority,
    decode_question,
    encode_answer,
)
from harch.federation.identity.names import hub_name

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
            "E0114", f"{hub_id} is a member already", hint="`--again` lets it join anew, e.g. after its disk was lost"
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


class JoinDesk:
    """Answers hubs that have no certificate yet; `answer` is the mesh's `on_stranger`."""

    def __init__(self, authority: Authority, clock: Clock) -> None:
        self._authority = authority
        self._clock = clock

    def answer(self, body: bytes) -> bytes:
        try:
            question = decode_question(body)
            if isinstance(question, JoinRequest):
                return encode_answer(self._join(question))
            return encode_answer(TheAuthority(self._authority.identity.authority))
        except msgspec.DecodeError:
            return encode_answer(NotJoined("E0201", "this is not a question of a hub that wants to join", ""))
        except HarchError as error:
            _log.warning("a hub was not let in: %s", error.message)
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
