"""Which test runs which statement? Modules in scope are loaded with a store into a byte array per block.

A tracer would call Python for every line of every module. This costs a store per block, in the modules in scope only.
A block is a run of statements that are reached together: it begins with a body and again after each statement that has
bodies of its own.
"""

from __future__ import annotations

import ast
import importlib.machinery
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

NAME = "_mutant_hits"
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
Statement = tuple[int, int]  # line and column


def count_blocks(tree: ast.Module, first: int) -> dict[Statement, int]:
    """Puts `_mutant_hits[n] = 1` before every block of every function. Returns the block of each statement."""
    blocks: dict[Statement, int] = {}
    number = first
    for function in [node for node in ast.walk(tree) if isinstance(node, _FUNCTIONS)]:
        for body in list(_bodies(function)):
            counted: list[ast.stmt] = []
            begins = True
            for statement in body:
                if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                    counted.append(statement)  # a docstring stays first
                    continue
                if begins:
                    counted.append(_store(number, statement))
                    number += 1
                blocks[statement.lineno, statement.col_offset] = number - 1
                counted.append(statement)
                begins = any(True for _ in _inner(statement))
            body[:] = counted
    ast.fix_missing_locations(tree)
    return blocks


def _bodies(function: ast.AST) -> Iterator[list[ast.stmt]]:
    """All lists of statements of a function, but not those of functions and classes inside of it."""
    for body in _inner(function):
        yield body
        for statement in list(body):
            if not isinstance(statement, (*_FUNCTIONS, ast.ClassDef)):
                yield from _bodies(statement)


def _inner(node: ast.AST) -> Iterator[list[ast.stmt]]:
    for _, value in ast.iter_fields(node):
        if not isinstance(value, list) or not value:
            continue
        if isinstance(value[0], ast.stmt):
            yield value
        elif isinstance(value[0], (ast.ExceptHandler, ast.match_case)):
            for part in value:
                yield part.body


def _store(number: int, at: ast.stmt) -> ast.stmt:
    target = ast.Subscript(ast.Name(NAME, ast.Load()), ast.Constant(number), ast.Store())
    return ast.copy_location(ast.Assign([target], ast.Constant(1)), at)


class Hits:
    """The byte array, and the finder that loads modules in scope so that they write into it."""

    def __init__(self, source: Path, paths: Sequence[str]) -> None:
        self.blocks: dict[str, dict[Statement, int]] = {}
        self._trees: dict[str, ast.Module] = {}
        total = 0
        for path in paths:
            tree = ast.parse((source / path).read_text("utf-8"))
            self.blocks[path] = count_blocks(tree, total)
            total += len(set(self.blocks[path].values()))
            self._trees[str(source / path)] = tree
        self._array = bytearray(total)
        self._package = source.name

    def install(self) -> None:
        """From now on; modules that are loaded already stay as they are."""
        sys.meta_path.insert(0, _Finder(f"{self._package}.", self._array, self._trees))

    def take(self) -> list[int]:
        """The blocks that ran since the last call."""
        found = [place for place, hit in enumerate(self._array) if hit] if any(self._array) else []
        self._array[:] = bytes(len(self._array))
        return found


class _Finder:
    def __init__(self, prefix: str, array: bytearray, trees: Mapping[str, ast.Module]) -> None:
        self._prefix, self._array, self._trees = prefix, array, trees

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not name.startswith(self._prefix):
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.origin in self._trees:
            spec.loader = _Loader(name, spec.origin, self._array, self._trees[spec.origin])
        return spec


class _Loader(importlib.machinery.SourceFileLoader):
    def __init__(self, name: str, path: str, array: bytearray, tree: ast.Module) -> None:
        super().__init__(name, path)
        self._array, self._tree = array, tree

    def get_code(self, fullname: str) -> CodeType:
        return compile(self._tree, self.path, "exec", dont_inherit=True)  # never from a .pyc, never into one

    def exec_module(self, module: ModuleType) -> None:
        scope: dict[str, Any] = vars(module)
        scope[NAME] = self._array
        super().exec_module(module)
