"""How are strings written? The escapes of Go, which PromQL took over, in both directions.

`\\xNN` may name bytes that are no UTF-8. They are kept as Python keeps such bytes in file names (surrogateescape), so
they can be printed again and refused where text is needed.
"""

from __future__ import annotations

import re

_NAMED = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "\\": "\\"}
_NAMES = {character: f"\\{name}" for name, character in _NAMED.items() if name != "\\"}
_ESCAPE = re.compile(
    r"\\(?:(?P<named>[abfnrtv\\'\"`])|(?P<octal>[0-7]{3})|x(?P<hex>[0-9a-fA-F]{2})"
    r"|u(?P<short>[0-9a-fA-F]{4})|U(?P<long>[0-9a-fA-F]{8}))"
)


class BadEscape(ValueError):
    """The sentence says what is wrong; `offset` is the place in the quoted text."""

    def __init__(self, reason: str, offset: int) -> None:
        super().__init__(reason)
        self.offset = offset


def unquote(quoted: str) -> str:
    """The text that a literal with its quotes stands for; backticks take everything as it is."""
    quote, inside = quoted[0], quoted[1:-1]
    if quote == "`":
        return inside
    if "\\" not in inside:
        return inside
    pieces: list[bytes] = []
    position = 0
    while True:
        found = inside.find("\\", position)
        if found < 0:
            break
        pieces.append(inside[position:found].encode("utf-8", "surrogateescape"))
        escape = _ESCAPE.match(inside, found)
        if escape is None:
            raise BadEscape("unknown escape sequence", found + 1)
        pieces.append(_meaning(escape, quote, found + 1))
        position = escape.end()
    pieces.append(inside[position:].encode("utf-8", "surrogateescape"))
    return b"".join(pieces).decode("utf-8", "surrogateescape")


def _meaning(escape: re.Match[str], quote: str, offset: int) -> bytes:
    if named := escape["named"]:
        if named in "'\"`" and named != quote:
            raise BadEscape("unknown escape sequence", offset)
        return _NAMED.get(named, named).encode()
    if octal := escape["octal"]:
        if int(octal, 8) > 0xFF:
            raise BadEscape("escape sequence is an invalid Unicode code point", offset)
        return bytes([int(octal, 8)])
    if digits := escape["hex"]:
        return bytes([int(digits, 16)])
    code = int(escape["short"] or escape["long"], 16)
    if code > 0x10FFFF or 0xD800 <= code < 0xE000:
        raise BadEscape("escape sequence is an invalid Unicode code point", offset)
    return chr(code).encode()


def as_text(value: str) -> str:
    """The value with bytes that are no UTF-8 replaced, so that it can be a label's value and travel as JSON."""
    return value if value.isascii() else value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def quote(text: str) -> str:
    """The text as a literal in double quotes; what cannot be seen is escaped."""
    return '"' + "".join(map(_written, text)) + '"'


def _written(character: str) -> str:
    if character in ('"', "\\"):
        return "\\" + character
    if character in _NAMES:
        return _NAMES[character]
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:  # a byte that was no UTF-8
        return f"\\x{code - 0xDC00:02x}"
    if character == " " or character.isprintable():
        return character
    if code < 0x80:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
