"""Where is a password? In a file or a variable that the configuration names, or, not recommended, in its own text."""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

from harch.base.errors import HarchError

SECRET_CHARS_MAX = 16_384


class Secret(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A reference. What it refers to is read when it is used, so that a new password needs no restart."""

    file: str = ""
    variable: str = ""
    literal: str = ""

    def __repr__(self) -> str:
        return f"Secret({self.where})"

    __str__ = __repr__

    @property
    def where(self) -> str:
        if self.file:
            return f"file {self.file}"
        return f"variable {self.variable}" if self.variable else "the configuration"

    @property
    def is_set(self) -> bool:
        return bool(self.file or self.variable or self.literal)


class ReadSecrets(Protocol):
    """Looks up files and variables; None where there is none."""

    def file(self, path: str, /) -> str | None: ...

    def variable(self, name: str, /) -> str | None: ...


def revealed(secret: Secret, sources: ReadSecrets) -> str:
    """The secret itself. Raises E0651, without its content."""
    if secret.file:
        found = sources.file(secret.file)
    elif secret.variable:
        found = sources.variable(secret.variable)
    else:
        found = secret.literal
    text = (found or "").strip()
    if not text or len(text) > SECRET_CHARS_MAX:
        raise HarchError(
            "E0651", f"the secret in {secret.where} is missing, empty or too long", hint="write it there, in one line"
        )
    return text
