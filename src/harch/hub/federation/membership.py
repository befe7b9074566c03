"""Whose signature is it? The keys of the members, as the federation's authority has signed them."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from msgspec import Struct

from harch.base.errors import HarchError
from harch.base.seal import LINE
from harch.base.state_files import read_sealed
from harch.federation.identity.folder import write_private
from harch.federation.identity.hub_identity import HubIdentity
from harch.federation.identity.members import Roster


class MemberKeys:
    """The gossip's verifier. A member record that changes is seen by the next question."""

    def __init__(self, roster: Roster) -> None:
        self._roster = roster
        self._keys: dict[bytes, Ed25519PublicKey] = {}

    def verify(self, hub: str, statement: bytes, signature: bytes) -> bool:
        member = self._roster.get(hub)
        if member is None or member.retired:
            return False
        key = self._keys.get(member.state_key)
        if key is None:
            key = self._keys[member.state_key] = member.public_key
        try:
            key.verify(signature, statement)
        except InvalidSignature:
            return False
        return True


# Which life of this hub is it? A number that grows with every start, also if the clock went back.


class _Stored(Struct, frozen=True):
    """What the file says; in older releases, a number alone."""

    generation: int


def next_generation(file: Path, now: datetime) -> int:
    """Above every earlier one; on disk when this returns."""
    try:
        stored = msgspec.json.decode(read_sealed(file), type=_Stored | int) if file.exists() else 0
    except (OSError, msgspec.MsgspecError) as error:
        raise HarchError("E1005", f"{file} cannot be read", hint="remove it; the clock takes its place") from error
    last = stored if isinstance(stored, int) else stored.generation
    generation = max(last + 1, int(now.timestamp() * 1000))
    write_private(file, LINE.seal(msgspec.json.encode(_Stored(generation))))
    return generation


# Does a retired hub stay retired? Until it has joined anew: then it has a member record that is newer.


class _Left(Struct, frozen=True):
    """What the file says; in older releases, a number alone."""

    serial: int


class Retirement:
    """Remembers under which member record this hub has left; on disk when `note` returns."""

    def __init__(self, identity: HubIdentity) -> None:
        self._identity = identity
        self._file = identity.folder.path / "retired"

    def note(self) -> None:
        write_private(self._file, LINE.seal(msgspec.json.encode(_Left(self._identity.member.serial))))

    @property
    def is_over(self) -> bool:
        """It left, and was let in again since."""
        member = self._identity.member
        try:
            left = msgspec.json.decode(read_sealed(self._file), type=_Left | int)
        except (FileNotFoundError, msgspec.MsgspecError, HarchError):
            return False
        return not member.retired and member.serial > (left if isinstance(left, int) else left.serial)

    def forget(self) -> None:
        self._file.unlink(missing_ok=True)
