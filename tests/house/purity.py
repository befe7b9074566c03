"""Which modules decide without doing I/O? Those with the line `# harch: pure`, checked by import-linter.

A marked module, and whatever it imports directly or through others, reads no clock, opens no file and speaks to nobody:
`now` and seeds come in as arguments. The marker stands in the module itself, so that moving a file moves its promise.
"""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

from grimp import ImportGraph
from importlinter import ContractCheck, fields
from importlinter.contracts.forbidden import ForbiddenContract
from importlinter.domain.imports import ModuleExpression

MARKER = re.compile(r"^# harch: pure$", re.MULTILINE)


class PureContract(ForbiddenContract):
    """A forbidden contract whose sources are the marked modules; all modules of `pure_packages` must be marked."""

    type_name = "pure"

    source_modules = fields.SetField(subfield=fields.ModuleExpressionField(), required=False)
    pure_packages = fields.ListField(subfield=fields.StringField(), required=False)

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        marked = {name for name in graph.modules if name.startswith("harch.") and is_marked(_path(name))}
        if not marked:
            raise ValueError("no module is marked `# harch: pure`")
        for package in self.pure_packages or []:
            inside = {name for name in graph.modules if name.startswith(f"{package}.") and not _is_package(name)}
            if unmarked := sorted(inside - marked):
                raise ValueError(f"{package} is pure, and these are not marked `# harch: pure`: {', '.join(unmarked)}")
        self.source_modules = {ModuleExpression(name) for name in marked}
        return super().check(graph, verbose)


def is_marked(path: Path) -> bool:
    return MARKER.search(path.read_text(encoding="utf-8")) is not None


def _path(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise ValueError(f"{name} has no file")
    return Path(spec.origin)


def _is_package(name: str) -> bool:
    return _path(name).name == "__init__.py"
