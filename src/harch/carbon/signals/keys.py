"""Where is the key of a web API, and how does it stay out of logs? A key prints as stars whatever prints it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from harch.base.errors import HarchError

KEY_CHARS_MAX = 4096


class Key:
    """A secret text. Only `reveal` gives it away, so that every use can be found by its name."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return "Key(***)"

    __str__ = __repr__

    def __reduce__(self) -> str:
        raise TypeError("a key is not to be pickled")


def read_key(what: str, *, variable: str = "", path: str = "", environment: Mapping[str, str]) -> Key:
    """The key from an environment variable or a file. Raises HarchError E0220, which names the place only."""
    if variable:
        text, place = environment.get(variable, ""), f"environment variable {variable}"
    else:
        place = f"file {path}"
        try:
            with Path(path).open("r", encoding="utf-8") as file:
                text = file.read(KEY_CHARS_MAX + 1)
        except (OSError, ValueError) as error:
            raise HarchError(
                "E0220", f"{what}: the {place} cannot be read ({type(error).__name__})", hint="write the key into it"
            ) from None  # the cause of a decoding error would quote the bytes
    text = text.strip()
    if not text or len(text) > KEY_CHARS_MAX or not text.isprintable():
        raise HarchError("E0220", f"{what}: the {place} holds no key", hint="put the key there, on one line")
    return Key(text)
