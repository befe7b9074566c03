"""What does the source consist of? Its modules, who imports whom, cycles, and folders that grew too full."""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

SRC = Path(__file__).parent.parent.parent / "src"
FOLDER_FILES_MAX = 25

Graph = Mapping[str, frozenset[str]]


@dataclass(frozen=True)
class Module:
    """One file of the package, parsed."""

    name: str
    path: Path
    tree: ast.Module

    @property
    def is_package(self) -> bool:
        return self.path.name == "__init__.py"


def read_modules(src: Path = SRC) -> dict[str, Module]:
    """Every module below `src` by its dotted name."""
    modules = {}
    for path in sorted(src.rglob("*.py")):
        parts = path.relative_to(src).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        modules[name] = Module(name, path, ast.parse(path.read_text(encoding="utf-8")))
    return modules


def import_graph(modules: Mapping[str, Module]) -> dict[str, frozenset[str]]:
    """Who imports whom, wherever the import stands: in functions and for types only, too."""
    return {name: frozenset(_imported(module.tree, modules)) - {name} for name, module in modules.items()}


def _imported(tree: ast.AST, modules: Mapping[str, Module]) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                if inner in modules:
                    yield inner
                elif node.module in modules:
                    yield node.module


def module_cycles(graph: Graph) -> list[list[str]]:
    """Groups of modules that import each other, directly or through others."""
    return [sorted(group) for group in _strong_components(graph) if len(group) > 1]


def sibling_cycles(graph: Graph) -> list[str]:
    """Packages whose children import each other, even where no two modules do; each as `package: a, b`."""
    children: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for importer, imported in graph.items():
        for other in imported:
            parent, first, second = _fork(importer, other)
            if first and second:
                children[parent][first].add(second)
    return [
        f"{parent}: {', '.join(sorted(group))}"
        for parent, links in sorted(children.items())
        for group in _strong_components({name: frozenset(to) for name, to in links.items()})
        if len(group) > 1
    ]


def _fork(one: str, other: str) -> tuple[str, str, str]:
    """The package that both stand in, and the child of it that each belongs to (empty: the package itself)."""
    left, right = one.split("."), other.split(".")
    shared = 0
    while shared < min(len(left), len(right)) and left[shared] == right[shared]:
        shared += 1
    return ".".join(left[:shared]), "".join(left[shared : shared + 1]), "".join(right[shared : shared + 1])


def _strong_components(graph: Graph) -> list[list[str]]:
    """Tarjan's algorithm, without recursion: the graph is deeper than Python's stack."""
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    path: list[str] = []
    on_path: set[str] = set()
    found: list[list[str]] = []
    for root in graph:
        if root in order:
            continue
        work = [(root, iter(sorted(graph.get(root, ()))))]
        order[root] = lowest[root] = len(order)
        path.append(root)
        on_path.add(root)
        while work:
            name, rest = work[-1]
            for other in rest:
                if other not in order:
                    order[other] = lowest[other] = len(order)
                    path.append(other)
                    on_path.add(other)
                    work.append((other, iter(sorted(graph.get(other, ())))))
                    break
                if other in on_path:
                    lowest[name] = min(lowest[name], order[other])
            else:
                work.pop()
                if work:
                    lowest[work[-1][0]] = min(lowest[work[-1][0]], lowest[name])
                if lowest[name] == order[name]:
                    at = path.index(name)
                    found.append(path[at:])
                    on_path.difference_update(path[at:])
                    del path[at:]
    return found


def crowded_folders(modules: Iterable[Module], files_max: int = FOLDER_FILES_MAX) -> dict[str, int]:
    """Folders with more modules than a reader can take in, `__init__` not counted."""
    counts = Counter(module.name.rpartition(".")[0] for module in modules if not module.is_package)
    return {folder: count for folder, count in sorted(counts.items()) if count > files_max}
