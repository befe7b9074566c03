"""Which words does the product speak? The trade's, listed in `docs/glossary.md`; retired ones do not come back.

The glossary has two tables that are read here: terms with the module each one stands in, and retired words. A retired
word marked `everywhere` may not stand in help, messages and metrics either; the others are words of ordinary English
that only names must do without.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from house.source import Module

GLOSSARY = Path(__file__).parent.parent.parent / "docs" / "glossary.md"

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_TEXT_WORD = re.compile(r"[a-z]+")


@dataclass(frozen=True)
class Term:
    name: str
    meaning: str
    module: str


@dataclass(frozen=True)
class RetiredWord:
    word: str
    instead: str
    everywhere: bool


@dataclass(frozen=True)
class Finding:
    """A retired word, where it came back."""

    module: str
    line: int
    word: str
    place: str

    def __str__(self) -> str:
        return f"{self.module}:{self.line}  {self.word}  in {self.place}"


def read_terms(glossary: Path = GLOSSARY) -> list[Term]:
    """Every row of the tables under `## Terms`: the word, its meaning, the module in backticks."""
    return [
        Term(cells[0].strip("*` "), cells[1], cells[2].strip("` "))
        for cells in _rows(glossary.read_text(encoding="utf-8"), "## Terms")
    ]


def read_retired(glossary: Path = GLOSSARY) -> list[RetiredWord]:
    """Every row of the table under `## Retired words`; forms of one word share a row."""
    return [
        RetiredWord(word.strip("` "), cells[1], cells[2] == "everywhere")
        for cells in _rows(glossary.read_text(encoding="utf-8"), "## Retired words")
        for word in cells[0].split(",")
    ]


def _rows(text: str, heading: str) -> Iterator[list[str]]:
    """The cells of all table rows between a heading and the next one of its level."""
    _, _, section = text.partition(heading + "\n")
    for line in section.partition("\n## ")[0].splitlines():
        if line.startswith("|") and not re.match(r"\|\s*(-|word\b|term\b)", line):
            yield [cell.strip() for cell in line.strip().strip("|").split("|")]


def words_of(name: str) -> list[str]:
    """`SpanAttributes`, `span_attributes` and `SPAN_ATTRIBUTES` are all `span`, `attributes`."""
    return [word.lower() for word in _WORD.findall(name)]


def retired_names(modules: Iterable[Module], retired: Iterable[RetiredWord]) -> list[Finding]:
    """Retired words in names of modules, classes, functions, parameters, variables and attributes."""
    banned = _forms(each.word for each in retired)
    found = []
    for module in modules:
        for line, name in [(1, module.name.rpartition(".")[2]), *_defined_names(module.tree)]:
            found += [Finding(module.name, line, word, name) for word in words_of(name) if word in banned]
    return found


def _forms(words: Iterable[str]) -> set[str]:
    """Each word, and its plural."""
    return {form for word in words for form in (word, f"{word}s")}


def _defined_names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Names where they are given; whoever uses one has it from there."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.lineno, node.name
            case ast.arg():
                yield node.lineno, node.arg
            case ast.Name(ctx=ast.Store()):
                yield node.lineno, node.id
            case ast.Attribute(ctx=ast.Store()):
                yield node.lineno, node.attr
            case ast.alias(asname=str(name)):
                yield node.lineno, name
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                yield node.lineno, name


def retired_texts(modules: Iterable[Module], retired: Iterable[RetiredWord]) -> list[Finding]:
    """Retired words in what users read: messages, help of the CLI, names and descriptions of metrics."""
    banned = _forms(each.word for each in retired if each.everywhere)
    found = []
    for module in modules:
        internal = {id(node) for node in _docstrings(module.tree)}
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in internal:
                is_prose = " " in node.value
                if is_prose or node.value.startswith("harch_"):
                    words = _TEXT_WORD.findall(node.value.lower().replace("_", " "))
                    found += [
                        Finding(module.name, node.lineno, word, node.value[:60]) for word in words if word in banned
                    ]
    return found


def _docstrings(tree: ast.Module) -> Iterator[ast.Constant]:
    """What only readers of the source see: the docstring of a command is its help."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
            match node.body[0]:
                case ast.Expr(value=ast.Constant(value=str()) as text) if not _is_command(node):
                    yield text


def _is_command(node: ast.AST) -> bool:
    decorators = getattr(node, "decorator_list", [])
    return any(
        isinstance(each, ast.Call) and isinstance(each.func, ast.Attribute) and each.func.attr in {"command", "group"}
        for each in decorators
    )
