"""What does a template make of a line? Go's templates over labels, with the functions of Loki."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from harch.sentinel.logql.texts.moments import moment_of
from harch.sentinel.logql.texts.template_functions import LINE_FUNCTION_NAMES, LINE_FUNCTIONS
from harch.sentinel.rules.templates import nodes
from harch.sentinel.rules.templates.functions import Function
from harch.sentinel.rules.templates.parser import parse_template
from harch.sentinel.rules.templates.running import LAZY_FUNCTIONS, run_template


@dataclass(frozen=True, slots=True)
class LineTemplate:
    """`pieces` holds texts and, at odd places, names of labels: most templates are no more than that."""

    template: nodes.Template
    pieces: tuple[str, ...] | None
    labels: frozenset[str] | None  # which labels it may read; None: any

    def written(self, labels: Mapping[str, str], line: str, time_ns: int, now_ns: int) -> str:
        """Raises E0641 when the template fails on this line."""
        if self.pieces is not None:
            filled = (labels.get(piece, "") if at % 2 else piece for at, piece in enumerate(self.pieces))
            return "".join(filled)
        functions = {
            **LINE_FUNCTIONS,
            "__line__": Function.of(lambda: line, 0),
            "__timestamp__": Function.of(lambda: moment_of(time_ns), 0),
            "now": Function.of(lambda: moment_of(now_ns), 0),
        }
        return run_template(self.template, dict(labels), functions=functions)


@lru_cache(maxsize=256)
def compiled_template(text: str) -> LineTemplate:
    """Raises E0641 for what is wrong before any line is known."""
    template = parse_template(text, functions=frozenset({*LINE_FUNCTION_NAMES, *LAZY_FUNCTIONS}))
    pieces = _pieces(template)
    return LineTemplate(template, pieces, None if pieces is None else frozenset(pieces[1::2]))


def _pieces(template: nodes.Template) -> tuple[str, ...] | None:
    """Texts and labels in turn; None where the template does anything else."""
    pieces = [""]
    for statement in template.body:
        match statement:
            case nodes.Text(text):
                pieces[-1] += text
            case nodes.Action(nodes.Pipeline((nodes.Command((nodes.Fields((name,)),)),), ())):
                pieces += [name, ""]
            case _:
                return None
    return tuple(pieces)
