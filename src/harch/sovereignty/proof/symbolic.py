"""Is there any value of what is not known under which a tag breaks? Asked of a solver, z3, for worlds with unknowns.

Every step of `steps` is written as a formula over choices, failures and unknown values; the solver looks for one that
can be true. Ways are listed one by one here, up to a limit. Whatever the solver cannot decide is no proof.
"""

from __future__ import annotations

from enum import StrEnum
from types import ModuleType
from typing import Any

from msgspec import Struct

from harch.sovereignty.proof.book import Book, Choice
from harch.sovereignty.proof.conditions import WAYS_MAX, TooManyWaysError
from harch.sovereignty.proof.formulas import Formulas
from harch.sovereignty.proof.model import Kind, Names
from harch.sovereignty.proof.questions import Questions
from harch.sovereignty.proof.rule_formulas import Formula

TIMEOUT_MS = 30_000


class Reply(StrEnum):
    NEVER = "never"
    POSSIBLE = "possible"
    UNKNOWN = "unknown"


class Answer(Struct, frozen=True):
    """`values`: what would have to be the case of the unknown values, as `what=option` that are true."""

    reply: Reply
    happening: tuple[str, ...] = ()
    choice: Choice = {}
    values: Names = ()
    reason: str = ""


def load_solver() -> ModuleType | None:
    """z3, if it is installed; imported only when it is needed, because that takes long."""
    try:
        import z3
    except ImportError:
        return None
    module: ModuleType = z3
    return module


def solve(book: Book, z3: Any, actor: tuple[Kind, str] | None = None) -> Answer:
    """Whether some step of this actor, or of any, can happen, for any choice, failure and value."""
    questions = Questions(Formulas(book, z3), actor)
    try:
        cases = list(questions.cases())
    except TooManyWaysError:
        return Answer(Reply.UNKNOWN, reason=f"more than {WAYS_MAX} ways between two hubs")
    solver = z3.SolverFor("QF_FD")  # truth values only: much faster than with integers
    solver.set("timeout", TIMEOUT_MS)
    solver.add(questions.formulas.constraints)
    solver.add(z3.Or([when for when, _ in cases]))
    verdict = solver.check()
    if verdict == z3.unsat:
        return Answer(Reply.NEVER)
    if verdict != z3.sat:
        return Answer(Reply.UNKNOWN, reason=f"the solver gave up: {solver.reason_unknown()}")
    model = solver.model()

    def holds(formula: Formula) -> bool:
        return bool(z3.is_true(model.eval(formula, model_completion=True)))

    happening = next(what for when, what in cases if holds(when))
    choice = {
        number: next(stage for stage, option in enumerate(options) if holds(option))
        for number, options in enumerate(questions.formulas.chosen)
    }
    values = tuple(sorted(name for name, value in questions.formulas.unknowns.items() if holds(value)))
    return Answer(Reply.POSSIBLE, happening, {n: stage for n, stage in choice.items() if stage}, values)
