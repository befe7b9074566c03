"""Does a retired hub stay retired? Until it has joined anew: then it has a member record that is newer."""

from __future__ import annotations

from harch.federation.identity.folder import write_private
from harch.federation.identity.identity import HubIdentity


class Retirement:
    """Remembers under which member record this hub has left; on disk when `note` returns."""

    def __init__(self, identity: HubIdentity) -> None:
        self._identity = identity
        self._file = identity.folder.path / "retired"

    def note(self) -> None:
        write_private(self._file, f"{self._identity.member.serial}\n".encode())

    @property
    def is_over(self) -> bool:
        """It left, and was let in again since."""
        member = self._identity.member
        try:
            left_under = int(self._file.read_text())
        except (FileNotFoundError, ValueError):
            return False
        return not member.retired and member.serial > left_under

    def forget(self) -> None:
        self._file.unlink(missing_ok=True)
