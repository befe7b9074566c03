"""What goes over the wire is defined once: no struct of the client repeats one of the packages that answer it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from house.source import read_modules

FIELDS_MIN = 3  # fewer have too little to repeat
ALIKE_MIN = 0.8  # share of the field names of both that both have


class Shape(NamedTuple):
    """A class that declares fields."""

    module: str
    name: str
    fields: frozenset[str]


def _shapes(module: str, tree: ast.Module) -> Iterator[Shape]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            declared = (each for each in node.body if isinstance(each, ast.AnnAssign))
            fields = frozenset(each.target.id for each in declared if isinstance(each.target, ast.Name))
            if len(fields) >= FIELDS_MIN:
                yield Shape(module, node.name, fields)


def _is_in(shape: Shape, package: str) -> bool:
    return f"{shape.module}.".startswith(f"harch.{package}.")


def repeated(shapes: list[Shape]) -> list[str]:
    """Pairs of a struct of the client and one elsewhere, outside `wire`, that have nearly the same fields."""
    client = [shape for shape in shapes if _is_in(shape, "sdk")]
    others = [shape for shape in shapes if not _is_in(shape, "sdk") and not _is_in(shape, "wire")]
    return [
        f"{one.module}.{one.name} repeats {other.module}.{other.name}: define it once, in harch.wire"
        for one in client
        for other in others
        if len(one.fields & other.fields) >= ALIKE_MIN * len(one.fields | other.fields)
    ]


@pytest.fixture(scope="module")
def shapes() -> list[Shape]:
    return [shape for module in read_modules().values() for shape in _shapes(module.name, module.tree)]


def test_no_struct_of_the_client_repeats_one_of_the_packages_that_answer_it(shapes: list[Shape]) -> None:
    assert repeated(shapes) == []


def test_the_shapes_that_are_compared_are_those_of_the_source(shapes: list[Shape]) -> None:
    found = {(shape.module, shape.name) for shape in shapes}
    assert {("harch.wire.workloads", "Workload"), ("harch.sdk.settings", "Settings")} <= found


def test_a_struct_that_is_defined_twice_is_found() -> None:
    fields = frozenset({"id", "name", "state", "tenant"})
    here, there = Shape("harch.sdk.types", "Job", fields), Shape("harch.hub.views", "JobView", fields | {"at"})
    assert len(repeated([here, there])) == 1
    assert repeated([here, there._replace(module="harch.wire.jobs")]) == []
    assert repeated([here, there._replace(fields=fields | {"at", "by"})]) == []
