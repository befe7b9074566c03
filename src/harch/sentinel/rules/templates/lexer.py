"""Where does text end and an action begin? The tokens of a template."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, auto

from harch.base.errors import HarchError

TEMPLATE_CHARS_MAX = 65_536


class Kind(Enum):
    TEXT = auto()
    OPEN = auto()
    CLOSE = auto()
    SPACE = auto()
    STRING = auto()
    NUMBER = auto()
    FIELD = auto()  # `.Name`; its text is the name
    DOT = auto()
    VARIABLE = auto()
    WORD = auto()
    MARK = auto()  # ( ) | , = :=
    END = auto()


@dataclass(frozen=True, slots=True)
class Token:
    kind: Kind
    text: str
    value: object = None  # of strings and numbers


_TOKEN = re.compile(
    r"""(?P<space>[ \t\r\n]+)
    |(?P<quoted>"(?:[^"\\\n]|\\.)*")
    |(?P<raw>`[^`]*`)
    |(?P<char>'(?:[^'\\\n]|\\.){1,9}')
    |(?P<number>[+-]?(?:0[xX][0-9a-fA-F_]+|(?:\d[\d_]*\.?[\d_]*|\.\d[\d_]*)(?:[eE][+-]?\d+)?))(?![\w.])
    |(?P<field>\.[^\W\d]\w*)
    |(?P<variable>\$\w*)
    |(?P<word>[^\W\d]\w*)
    |(?P<mark>:=|[()|,=])
    |(?P<dot>\.)""",
    re.VERBOSE,
)
_COMMENT = re.compile(r"\{\{(?P<left>-[ \t\r\n]+)?/\*.*?\*/(?P<right>[ \t\r\n]+-)?\}\}", re.DOTALL)
_OPEN = re.compile(r"\{\{(?:-(?=[ \t\r\n]))?")
_CLOSE = re.compile(r"(?:[ \t\r\n]-)?\}\}")
_SIMPLE_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([0-7]{3})|(.))", re.DOTALL)


def tokens(template: str) -> list[Token]:
    """Raises E0641 when an action is not closed or holds something that is no token."""
    if len(template) > TEMPLATE_CHARS_MAX:
        raise HarchError("E0641", f"the template is longer than {TEMPLATE_CHARS_MAX} characters", hint="shorten it")
    found: list[Token] = []
    at, trim_next = 0, False
    while at <= len(template):
        opening = _OPEN.search(template, at)
        text = template[at : opening.start() if opening else len(template)]
        if trim_next:
            text = text.lstrip(" \t\r\n")
        if opening is None:
            _add_text(found, text)
            break
        if opening.group().endswith("-"):
            text = text.rstrip(" \t\r\n")
        _add_text(found, text)
        comment = _COMMENT.match(template, opening.start())
        if comment is not None:
            at, trim_next = comment.end(), comment["right"] is not None
            continue
        found.append(Token(Kind.OPEN, "{{"))
        at, trim_next = _action(template, opening.end(), found)
    found.append(Token(Kind.END, ""))
    return found


def _add_text(found: list[Token], text: str) -> None:
    if text:
        found.append(Token(Kind.TEXT, text))


def _action(template: str, at: int, found: list[Token]) -> tuple[int, bool]:
    """Adds the tokens of one action; answers where it ends, and whether the text after it is trimmed."""
    while at < len(template):
        closing = _CLOSE.match(template, at)
        if closing is not None:
            found.append(Token(Kind.CLOSE, "}}"))
            return closing.end(), len(closing.group()) > len("}}")
        match = _TOKEN.match(template, at)
        if match is None or match.lastgroup is None:
            raise HarchError("E0641", f"`{template[at : at + 10]}` is not expected in an action", hint=_HINT)
        found.append(_token(match.lastgroup, match.group()))
        at = match.end()
    raise HarchError("E0641", "an action is not closed", hint="end it with `}}`")


def _token(group: str, text: str) -> Token:
    match group:
        case "space":
            return Token(Kind.SPACE, " ")
        case "quoted":
            return Token(Kind.STRING, text, unquoted(text[1:-1]))
        case "raw":
            return Token(Kind.STRING, text, text[1:-1])
        case "char":
            return Token(Kind.NUMBER, text, ord(unquoted(text[1:-1])[:1] or "\0"))
        case "number":
            return Token(Kind.NUMBER, text, _number(text))
        case "field":
            return Token(Kind.FIELD, text[1:])
        case "variable":
            return Token(Kind.VARIABLE, text)
        case "word":
            return Token(Kind.WORD, text)
        case "dot":
            return Token(Kind.DOT, text)
        case _:
            return Token(Kind.MARK, text)


def _number(text: str) -> object:
    plain = text.replace("_", "")
    try:
        return int(plain, 0) if re.fullmatch(r"[+-]?(0[xX][0-9a-fA-F]+|0|[1-9]\d*)", plain) else float(plain)
    except ValueError as error:
        raise HarchError("E0641", f"`{text[:40]}` is not a number", hint=_HINT) from error


def unquoted(text: str) -> str:
    """The text that Go's escapes stand for."""

    def replace(match: re.Match[str]) -> str:
        for digits, base in zip(match.groups()[:4], (16, 16, 16, 8), strict=True):
            if digits is not None:
                code = int(digits, base)
                return character(code)
        return _SIMPLE_ESCAPES.get(match[5], match[5])

    return _ESCAPE.sub(replace, text)


def character(code: int) -> str:
    """What has no place in UTF-8 becomes the sign for that."""
    return chr(code) if 0 <= code < 0x110000 and not 0xD800 <= code < 0xE000 else "\ufffd"


_HINT = "actions are e.g. `{{ $labels.instance }}` or `{{ $value | humanize }}`"
