"""Does every module of `src` have a way in, and does the measure notice one that has none?"""

from __future__ import annotations

from pathlib import Path

from house.reach import entry_points, references, unreached, unreached_of_repository

ROOT = Path(__file__).resolve().parents[2]
PROJECT = '[project]\nname = "p"\n[project.scripts]\np = "p.main:main"\n'
SOURCES = {
    "p": "",
    "p.__main__": "import p.main",
    "p.main": 'def verb(name):\n    from p import lazy\n    import_module(f"p.verbs.{name}")\nNAMES = ("run",)',
    "p.lazy": 'ARGUMENTS = ["-m", "p.process", "supervisor.py"]\nfrom .near import part',
    "p.near": "",
    "p.process": "",
    "p.supervisor": "",
    "p.verbs": "",
    "p.verbs.run": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import p.types",
    "p.types": "",
    "p.verbs.walk": "import p.behind",
    "p.behind": "",
    "p.testing": "",
    "p.testing.tool": "import p.testing.part",
    "p.testing.part": "import p.only_for_tests",
    "p.testing.unused": "",
    "p.only_for_tests": "",
}


def test_every_module_is_reached_from_an_entry_point_or_is_a_test_tool_that_a_test_uses() -> None:
    assert unreached_of_repository(ROOT) == []


def test_what_no_entry_point_reaches_is_listed_with_all_that_stands_behind_it() -> None:
    roots = entry_points(SOURCES, PROJECT)
    assert roots == {"p.main", "p.__main__"}
    tests = {"test_it": "from p.testing.tool import Tool\nimport p.behind"}
    assert unreached(SOURCES, roots, tests, tools="p.testing") == [
        "p.behind",
        "p.only_for_tests",
        "p.testing.unused",
        "p.verbs.walk",
    ]


def test_imports_in_functions_names_of_processes_and_files_beside_a_module_count() -> None:
    assert references("p.lazy", SOURCES) == {"p.near", "p.process", "p.supervisor"}
    assert references("p.main", SOURCES) == {"p", "p.lazy", "p.verbs.run"}
