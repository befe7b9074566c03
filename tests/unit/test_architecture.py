"""Rules of the house that the import checker cannot express. Its own rules are in `.importlinter`."""

from __future__ import annotations

import ast
import configparser
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "harch"
LINES_MAX = 600  # the aim is 300; above this a module holds more than one idea
_ROOMS_FOR_EVERYTHING = {"utils", "util", "helpers", "helper", "common", "misc", "manager", "managers"}
_MODULES = sorted(SOURCE.rglob("*.py"))


def _name(path: Path) -> str:
    return path.relative_to(SOURCE).as_posix()


def test_a_package_exists_only_when_it_has_content() -> None:
    for package in {path.parent for path in _MODULES}:
        content = [path for path in package.iterdir() if path.name not in {"__init__.py", "__pycache__"}]
        assert content, f"{package} is empty"


@pytest.mark.parametrize("module", _MODULES, ids=_name)
def test_a_module_says_which_question_it_answers_and_holds_one_idea(module: Path) -> None:
    text = module.read_text("utf-8")
    assert ast.get_docstring(ast.parse(text)), "the first line of a module says what it is for"
    assert module.stem not in _ROOMS_FOR_EVERYTHING, "name it after what it holds"
    assert text.count("\n") <= LINES_MAX


@pytest.mark.parametrize("module", _MODULES, ids=_name)
def test_what_must_never_happen_is_raised_and_not_asserted(module: Path) -> None:
    asserts = [node.lineno for node in ast.walk(ast.parse(module.read_text("utf-8"))) if isinstance(node, ast.Assert)]
    assert asserts == [], "`assert` vanishes under -O: raise InvariantBroken"


def _listens_by_itself(node: ast.AST) -> bool:
    """A server of asyncio's, uvicorn's or the standard library's own; binding a socket is not listening yet."""
    if isinstance(node, ast.Import):
        return any(name.name.split(".")[0] in _OTHER_SERVERS or name.name in _OTHER_SERVERS for name in node.names)
    if isinstance(node, ast.ImportFrom):
        return node.module is not None and (
            node.module.split(".")[0] in _OTHER_SERVERS or node.module in _OTHER_SERVERS
        )
    if isinstance(node, ast.Attribute) and node.attr == "create_server":
        return not (isinstance(node.value, ast.Name) and node.value.id == "socket")
    return isinstance(node, ast.Attribute) and node.attr in {"start_server", "start_unix_server", "create_unix_server"}


_OTHER_SERVERS = {"uvicorn", "http.server", "socketserver", "wsgiref", "websockets.server", "websockets.asyncio.server"}


@pytest.mark.parametrize("module", _MODULES, ids=_name)
def test_every_port_of_the_product_is_listened_on_in_the_same_way(module: Path) -> None:
    if module.parent == SOURCE / "base" / "listen" or SOURCE / "testing" in module.parents:
        return
    found = [node for node in ast.walk(ast.parse(module.read_text("utf-8"))) if _listens_by_itself(node)]
    assert [node.lineno for node in found] == [], "use harch.base.listen: its gate has the limits"


def test_the_rooms_on_paper_are_the_rooms_that_exist() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    table = page.split("<!-- house -->", 1)[1].split("\n## ", 1)[0]
    state = dict(re.findall(r"^\| `(\w+)` \|.*\| (here|planned) \|$", table, re.MULTILINE))
    assert {room for room, word in state.items() if word == "here"} == {
        path.parent.name for path in SOURCE.glob("*/__init__.py")
    }


def test_the_layers_on_paper_are_the_layers_that_are_checked() -> None:
    config = configparser.ConfigParser()
    config.read(ROOT / ".importlinter")
    checked = [
        sorted(part.strip(" ()") for part in line.split("|"))
        for line in config["importlinter:contract:layers"]["layers"].split("\n")
        if line.strip()
    ]
    page = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    drawn = re.search(r"<!-- layers -->\s*```text\n(.*?)```", page, re.DOTALL)
    assert drawn, "docs/architecture.md draws the layers under <!-- layers -->"
    on_paper = [sorted(part.strip(" ()") for part in line.split("|")) for line in drawn[1].splitlines() if line.strip()]
    assert on_paper == checked
