"""What is a template made of? The tree that the parser builds and the runner walks."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Literal:
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
class Call:
    """A function's name; its arguments are the rest of the command."""

    name: str


@dataclass(frozen=True, slots=True)
class Chain:
    """`(pipeline).A.B`."""

    start: Pipeline
    names: tuple[str, ...]


Operand = Literal | Nil | Dot | Fields | Variable | Call | Chain


@dataclass(frozen=True, slots=True)
class Command:
    operands: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class Pipeline:
    commands: tuple[Command, ...]
    variables: tuple[str, ...] = ()
    declares: bool = False  # `:=`, otherwise `=`


@dataclass(frozen=True, slots=True)
class Text:
    text: str


@dataclass(frozen=True, slots=True)
class Action:
    pipeline: Pipeline


@dataclass(frozen=True, slots=True)
class If:
    pipeline: Pipeline
    body: Block
    otherwise: Block


@dataclass(frozen=True, slots=True)
class With:
    pipeline: Pipeline
    body: Block
    otherwise: Block


@dataclass(frozen=True, slots=True)
class Range:
    pipeline: Pipeline
    body: Block
    otherwise: Block


@dataclass(frozen=True, slots=True)
class Include:
    """`template "name" pipeline`."""

    name: str
    pipeline: Pipeline | None


@dataclass(frozen=True, slots=True)
class Break:
    pass


@dataclass(frozen=True, slots=True)
class Continue:
    pass


Statement = Text | Action | If | With | Range | Include | Break | Continue
Block = tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class Template:
    body: Block
    defined: dict[str, Block] = field(default_factory=dict)
