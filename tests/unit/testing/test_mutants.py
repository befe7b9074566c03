"""Does the mutation suite make the mutants that it says, draw them by their seed, and report who survives?"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from mutants import scope
from mutants.hits import count_blocks
from mutants.operators import draw, mutants_of, mutate

TESTS = Path(__file__).resolve().parents[2]


def _changes(body: str, *, returns: str = "int") -> list[tuple[str, str, str]]:
    """Operator, before, after of each mutant of a function with this body."""
    source = f"def rule(a, b) -> {returns}:\n" + textwrap.indent(textwrap.dedent(body), "    ")
    return [(one.id.split(":")[2], one.before, one.after) for one in mutants_of(source, "rules.py")]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("x = a < b", ("compare", "a < b", "a <= b")),
        ("x = a >= b", ("compare", "a >= b", "a > b")),
        ("x = a == b", ("compare", "a == b", "a != b")),
        ("x = a is None", ("compare", "a is None", "a is not None")),
        ("x = a in b", ("compare", "a in b", "a not in b")),
        ("x = 0 < a < b", ("compare", "0 < a < b", "0 < a <= b")),
        ("x = a and b", ("boolean", "a and b", "a or b")),
        ("x = a + b", ("arithmetic", "a + b", "a - b")),
        ("x = a / b", ("arithmetic", "a / b", "a * b")),
        ("a += b", ("arithmetic", "a += b", "a -= b")),
        ("x = min(a, b)", ("call name", "min(a, b)", "max(a, b)")),
        ("x = any(a)", ("call name", "any(a)", "all(a)")),
        ("x = 7", ("constant", "7", "8")),
        ("x = True", ("constant", "True", "False")),
        ("x = a if b else 0", ("condition", "b", "not b")),
        ("x = [one for one in a if one.free]", ("condition", "one.free", "not one.free")),
        ("while a:\n    b()", ("condition", "a", "not a")),
        ("if not a:\n    b()\nelse:\n    b(a)", ("condition", "not a", "a")),
        ("if a:\n    raise Refused", ("guard", "if a: raise Refused", "pass")),
        ("for x in a:\n    if x:\n        continue\n    b()", ("guard", "if x: continue", "pass")),
        ("a.free(b)", ("call", "a.free(b)", "pass")),
        ("a.epoch = b", ("assignment", "a.epoch = b", "pass")),
        ("return a", ("return", "return a", "return None")),
        ("try:\n    a()\nexcept ValueError:\n    b()", ("call", "b()", "pass")),
        ("match a:\n    case x if x > b:\n        pass", ("compare", "x > b", "x >= b")),
        ("def inner():\n    return a", ("return", "return a", "return None")),
    ],
)
def test_a_mutant_is_made_of(body: str, expected: tuple[str, str, str]) -> None:
    assert expected in _changes(body)


@pytest.mark.parametrize(
    "body",
    [
        '"""Docstring."""',
        'log.warning("late", 3)',
        'if a % 64 == 0:\n    progress("judging", a)',
        'raise Refused(f"{a + 1} of {b}", 3)',
        'x = f"{a + 1}"',
        "x = zip(a, b, strict=True)",
        'x = f"at most {a}" if a > b else "less"',
        'x = Rejection(detail=str(a + 1), hint="b" if a else "c")',
        "x: Literal[3]",
        'x = "text"',
        "x = a",
        "from harch import base",
    ],
)
def test_what_no_decision_depends_on_is_not_mutated(body: str) -> None:
    assert _changes(body) == []


def test_declarations_are_not_mutated() -> None:
    source = """
    from typing import TYPE_CHECKING, Protocol

    __all__ = ["LIMIT"]
    LIMIT = 3
    if TYPE_CHECKING:
        def only_for_types() -> int:
            return 1

    class Store(Protocol):
        def size(self) -> int:
            return 1

    class Box:
        size: int = 3

        def __repr__(self) -> str:
            return "box" + str(1 + 1)

        def empty(self) -> int:
            raise NotImplementedError
    """
    assert mutants_of(textwrap.dedent(source), "box.py") == []


def test_the_answer_of_a_rule_is_turned_around_once() -> None:
    assert _changes("return a.fits(b)", returns="bool") == [("return", "a.fits(b)", "not a.fits(b)")]
    assert _changes("return a == b", returns="bool") == [("compare", "a == b", "a != b")]
    assert _changes("return True", returns="bool") == [("constant", "True", "False")]


def test_a_reason_that_may_be_absent_goes_absent_and_a_message_stays() -> None:
    assert _changes('return f"{a} is full"', returns="str | None") == [
        ("return", "return f'{a} is full'", "return None")
    ]
    assert _changes('return f"{a} is full"', returns="str") == []


def test_a_mutant_changes_one_place_and_no_line_number() -> None:
    source = "def rule(a, b):\n    if a < b:\n        return 1\n    return 2\n"
    trees = {one.id: ast.unparse(mutate(source, "m.py", one.id)) for one in mutants_of(source, "m.py")}
    assert len(set(trees.values())) == len(trees)
    assert trees["m:rule:compare:1"] == source.replace("<", "<=").strip()
    assert [node.lineno for node in mutate(source, "m.py", "m:rule:guard:1").body[0].body] == [2, 4]  # type: ignore[attr-defined]


def test_the_name_of_a_mutant_survives_edits_elsewhere() -> None:
    rule = "def rule(a):\n    return a + 1\n"
    names = {one.id for one in mutants_of(rule, "m.py")}
    assert names <= {one.id for one in mutants_of(f"def other(b):\n    return b + 2\n\n\n{rule}", "m.py")}


def test_the_same_seed_draws_the_same_mutants_in_whatever_order_they_come() -> None:
    everything = mutants_of("def rule(a):\n" + "".join(f"    a.f{number}()\n" for number in range(100)), "m.py")
    drawn = draw(everything, 20, seed=7)
    assert len({one.id for one in drawn}) == 20
    assert draw(list(reversed(everything)), 20, seed=7) == drawn
    assert draw(everything, 20, seed=8) != drawn
    assert len(draw(everything, 1_000, seed=7)) == 100


def test_a_block_begins_with_a_body_and_after_a_branch() -> None:
    source = "def rule(a):\n    x = 1\n    y = 2\n    if a:\n        return x\n    return y\n"
    tree = ast.parse(source)
    assert count_blocks(tree, first=5) == {(2, 4): 5, (3, 4): 5, (4, 4): 5, (5, 8): 7, (6, 4): 6}
    array = bytearray(10)
    names: dict[str, object] = {"_mutant_hits": array}
    exec(compile(tree, "m.py", "exec"), names)
    assert names["rule"](True) == 1  # type: ignore[operator]
    assert [place for place, hit in enumerate(array) if hit] == [5, 7]


def test_a_group_whose_modules_have_all_moved_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "rules.py").write_text("")
    found = scope.modules(tmp_path, {"rules": ("old/*.py", "*.py"), "again": ("rules.py",)})
    assert found == {"rules.py": "rules"}
    with pytest.raises(scope.EmptyGroup, match="moved"):
        scope.modules(tmp_path, {"moved": ("old/*.py", "rules.py", "!rules.py")})


def test_every_group_has_modules_and_every_mutant_can_be_made() -> None:
    groups = scope.modules()
    assert set(groups.values()) == set(scope.GROUPS)
    path = next(path for path, group in groups.items() if group == "ACT ledger")
    source = (scope.SOURCE / path).read_text("utf-8")
    for mutant in mutants_of(source, path):
        compile(mutate(source, path, mutant.id), path, "exec")


_PROJECT = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
sys.path.insert(0, "src")
from mutants.run import Project, main
root = Path.cwd()
sys.exit(main(sys.argv[2:], Project(root, root / "src" / "planted", {"rules": ("*.py",)}, ("tests",))))
"""


def test_a_planted_survivor_is_reported_and_what_tests_notice_is_not(tmp_path: Path) -> None:
    package = tmp_path / "src" / "planted"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    rules = (
        "def fits(free: int, wanted: int) -> bool:\n"
        "    return free >= wanted\n\n\n"
        "def rest(free: int, wanted: int) -> int:\n"
        "    while free > wanted:\n"
        "        free -= wanted\n"
        "    return free\n\n\n"
        "def never() -> int:\n"
        "    return 5\n"
    )
    (package / "rules.py").write_text(rules)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_planted.py").write_text(
        "from planted.rules import fits, rest\n\n"
        "def test_fits():\n"
        "    assert fits(2, 1) and not fits(1, 2)  # the border is not tested\n\n"
        "def test_rest():\n"
        "    assert rest(7, 2) == 1 and rest(4, 2) == 2\n\n"
        "def test_broken():\n"
        "    assert fits(1, 1) is None\n"
    )
    command = [sys.executable, "-c", _PROJECT, str(TESTS), "--json", "--seed", "3", "--goal", "0.9"]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST")}
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100, env=environment)
    assert done.returncode == 1, done.stderr
    verdict = json.loads(done.stdout)
    kinds = {fate["change"]: fate["kind"] for fate in verdict["fates"]}
    assert kinds["rules.py:2  free >= wanted -> free > wanted"] == "survived"
    assert kinds["rules.py:7  free -= wanted -> free += wanted"] == "timeout"
    assert kinds["rules.py:6  free > wanted -> free >= wanted"] == "killed"
    assert kinds["rules.py:12  5 -> 6"] == "unreached"
    assert "judges nothing, because it fails without a mutant: tests/test_planted.py::test_broken" in done.stderr
    assert verdict["seed"] == 3
    assert verdict["killed"] < 0.9
    assert (package / "rules.py").read_text() == rules, "nothing is written into the tree"
