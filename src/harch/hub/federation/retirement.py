"""Does a retired hub stay retired? Until it has joined anew: then it has a member record that is newer."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from harch.base.errors import HarchError
from harch.base.seal import LINE
from harch.base.sealed import read_sealed
from harch.federation.identity.folder import write_private
from harch.federation.identity.identity import HubIdentity


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
