"""What is a template made of?

The tokens of its text, and the tree that the parser builds of them and the interpreter walks.
"""

# harch: pure

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import Enum, auto

from harch.base.errors import HarchError

TEMPLATE_CHARS_MAX = 65_536


class TemplateTokenKind(Enum):
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
class TemplateToken:
    kind: TemplateTokenKind
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


def tokens(template: str) -> list[TemplateToken]:
    """Raises E0641 when an action is not closed or holds something that is no token."""
    if len(template) > TEMPLATE_CHARS_MAX:
        raise HarchError("E0641", f"the template is longer than {TEMPLATE_CHARS_MAX} characters", hint="shorten it")
    found: list[TemplateToken] = []
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
        found.append(TemplateToken(TemplateTokenKind.OPEN, "{{"))
        at, trim_next = _action(template, opening.end(), found)
    found.append(TemplateToken(TemplateTokenKind.END, ""))
    return found


def _add_text(found: list[TemplateToken], text: str) -> None:
    if text:
        found.append(TemplateToken(TemplateTokenKind.TEXT, text))


def _action(template: str, at: int, found: list[TemplateToken]) -> tuple[int, bool]:
    """Adds the tokens of one action; answers where it ends, and whether the text after it is trimmed."""
    while at < len(template):
        closing = _CLOSE.match(template, at)
        if closing is not None:
            found.append(TemplateToken(TemplateTokenKind.CLOSE, "}}"))
            return closing.end(), len(closing.group()) > len("}}")
        match = _TOKEN.match(template, at)
        if match is None or match.lastgroup is None:
            raise HarchError("E0641", f"`{template[at : at + 10]}` is not expected in an action", hint=_HINT)
        found.append(_token(match.lastgroup, match.group()))
        at = match.end()
    raise HarchError("E0641", "an action is not closed", hint="end it with `}}`")


def _token(group: str, text: str) -> TemplateToken:
    match group:
        case "space":
            return TemplateToken(TemplateTokenKind.SPACE, " ")
        case "quoted":
            return TemplateToken(TemplateTokenKind.STRING, text, unquoted(text[1:-1]))
        case "raw":
            return TemplateToken(TemplateTokenKind.STRING, text, text[1:-1])
        case "char":
            return TemplateToken(TemplateTokenKind.NUMBER, text, ord(unquoted(text[1:-1])[:1] or "\0"))
        case "number":
            return TemplateToken(TemplateTokenKind.NUMBER, text, _number(text))
        case "field":
            return TemplateToken(TemplateTokenKind.FIELD, text[1:])
        case "variable":
            return TemplateToken(TemplateTokenKind.VARIABLE, text)
        case "word":
            return TemplateToken(TemplateTokenKind.WORD, text)
        case "dot":
            return TemplateToken(TemplateTokenKind.DOT, text)
        case _:
            return TemplateToken(TemplateTokenKind.MARK, text)


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


# What is a template made of? The tree that the parser builds and the runner walks.


@dataclass(frozen=True, slots=True)
class LiteralNode:
    value: object


@dataclass(frozen=True, slots=True)
class Nil:
    """`nil`, which is only compared and never called."""


@dataclass(frozen=True, slots=True)
class Dot:
    pass


@dataclass(frozen=True, slots=True)
class Fields:
    """`.A.B` of the dot."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Variable:
    """`$name.A.B`; `$` alone is what the template was given."""

    name: str
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FunctionNode:
    """A function's name; its arguments are the rest of the command."""

    name: str


@dataclass(frozen=True, slots=True)
class Chain:
    """`(pipeline).A.B`."""

    start: PipeNode
    names: tuple[str, ...]


Operand = LiteralNode | Nil | Dot | Fields | Variable | FunctionNode | Chain


@dataclass(frozen=True, slots=True)
class CommandNode:
    operands: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class PipeNode:
    commands: tuple[CommandNode, ...]
    variables: tuple[str, ...] = ()
    declares: bool = False  # `:=`, otherwise `=`


@dataclass(frozen=True, slots=True)
class Text:
    text: str


@dataclass(frozen=True, slots=True)
class ActionNode:
    pipeline: PipeNode


@dataclass(frozen=True, slots=True)
class If:
    pipeline: PipeNode
    body: Block
    otherwise: Block


@dataclass(frozen=True, slots=True)
class With:
    pipeline: PipeNode
    body: Block
    otherwise: Block


@dataclass(frozen=True, slots=True)
class Range:
    pipeline: PipeNode
    body: Block
    otherwise: Block


@dataclass(frozen=True, slots=True)
class Include:
    """`template "name" pipeline`."""

    name: str
    pipeline: PipeNode | None


@dataclass(frozen=True, slots=True)
class Break:
    pass


@dataclass(frozen=True, slots=True)
class Continue:
    pass


Statement = Text | ActionNode | If | With | Range | Include | Break | Continue
Block = tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class ParsedTemplate:
    body: Block
    defined: dict[str, Block] = field(default_factory=dict)
