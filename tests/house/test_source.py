"""Is the source in order: few and full modules, no cycles, folders that a reader can take in?"""

from __future__ import annotations

from pathlib import Path

import pytest

from house.purity import is_marked
from house.source import Module, crowded_folders, import_graph, module_cycles, read_modules, sibling_cycles

MODULES_MAX = 1000


@pytest.fixture(scope="module")
def modules() -> dict[str, Module]:
    return read_modules()


def test_there_are_no_more_modules_than_a_house_can_have(modules: dict[str, Module]) -> None:
    assert sum(not module.is_package for module in modules.values()) <= MODULES_MAX
    assert crowded_folders(modules.values()) == {}


def test_no_modules_and_no_siblings_import_each_other(modules: dict[str, Module]) -> None:
    graph = import_graph(modules)
    assert module_cycles(graph) == []
    assert sibling_cycles(graph) == []


def written(folder: Path, sources: dict[str, str]) -> dict[str, Module]:
    for name, text in sources.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return read_modules(folder)


def test_a_cycle_through_imports_for_types_or_inside_functions_counts(tmp_path: Path) -> None:
    found = written(
        tmp_path,
        {
            "p/__init__.py": "",
            "p/a.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from p.b import B\n",
            "p/b.py": "def late():\n    from p import c\n",
            "p/c.py": "import p.a\n",
        },
    )
    assert module_cycles(import_graph(found)) == [["p.a", "p.b", "p.c"]]


def test_siblings_in_a_circle_are_found_even_where_no_two_modules_are(tmp_path: Path) -> None:
    found = written(
        tmp_path,
        {
            "p/__init__.py": "",
            "p/x/__init__.py": "",
            "p/x/one.py": "from p.y.one import A\n",
            "p/x/two.py": "",
            "p/y/__init__.py": "",
            "p/y/one.py": "",
            "p/y/two.py": "from p.x import two\n",
        },
    )
    graph = import_graph(found)
    assert module_cycles(graph) == []
    assert sibling_cycles(graph) == ["p: x, y"]


def test_a_folder_is_crowded_above_its_limit(tmp_path: Path) -> None:
    found = written(tmp_path, {"p/__init__.py": "", "p/a.py": "", "p/b.py": ""})
    assert crowded_folders(found.values(), files_max=2) == {}
    assert crowded_folders(found.values(), files_max=1) == {"p": 2}


def test_a_module_is_pure_by_a_line_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text('"""What?"""\n\n# harch: pure\n')
    assert is_marked(path)
    path.write_text('"""What? Not `# harch: pure`."""\n')
    assert not is_marked(path)


def test_deciding_packages_are_marked(modules: dict[str, Module]) -> None:
    """A decision that loses its mark would lose its check: whole packages of decisions are named here."""
    for package in ("harch.carbon.planning", "harch.federation.gossip", "harch.hub.jobs.lending", "harch.wire"):
        inside = [
            module for name, module in modules.items() if name.startswith(f"{package}.") and not module.is_package
        ]
        assert [module.name for module in inside if not is_marked(module.path)] == []
