"""Which modules of `src` can a command, a route or a started process reach, and which none?

Pure: sources come in as text, names go out. A module reaches what it imports, inside functions too, and what it names:
`"harch.hub.kernels"` or `"harch.cli.main:main"` as a whole string, `"supervisor.py"` beside it, and the names that an
f-string such as `f"harch.cli.{verb}"` can become from the strings of the same module.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path

Sources = Mapping[str, str]  # module name -> its text; a package by its own name


def read_sources(folder: Path) -> dict[str, str]:
    """Every module below a folder such as `src`, by its dotted name."""
    found = {}
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path.read_text("utf-8")
    return found


def entry_points(sources: Sources, pyproject: str) -> set[str]:
    """What starts from outside: console scripts, plugins that the package offers, and `python -m PACKAGE`."""
    project = tomllib.loads(pyproject)["project"]
    tables = [project.get("scripts", {}), *project.get("entry-points", {}).values()]
    named = {target.partition(":")[0] for table in tables for target in table.values()}
    return {name for name in sources if name in named or (name.endswith(".__main__") and name.count(".") == 1)}


def references(name: str, sources: Sources) -> set[str]:
    """The modules that one module imports or names."""
    tree = ast.parse(sources[name])
    package = name if any(other.startswith(f"{name}.") for other in sources) else name.rpartition(".")[0]
    found: set[str] = set()
    strings: set[str] = set()
    prefixes: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(node, package)
            found.update((base, *(f"{base}.{alias.name}" for alias in node.names)))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            strings.add(node.value)
        elif isinstance(node, ast.JoinedStr) and isinstance(first := node.values[0], ast.Constant):
            prefixes.add(str(first.value))
    for text in strings:
        started = text.partition(":")[0]
        found.update((started, f"{started}.__main__"))  # `python -m package`
        if text.endswith(".py"):
            found.add(f"{package}.{text.removesuffix('.py')}")
        found.update(prefix + started for prefix in prefixes if prefix.endswith("."))
    found.discard(name)
    return found & sources.keys()


def reached(sources: Sources, roots: Iterable[str]) -> set[str]:
    """The roots and everything they reach; a module's packages are imported before it."""
    seen: set[str] = set()
    waiting = list(roots)
    while waiting:
        name = waiting.pop()
        if name in seen or name not in sources:
            continue
        seen.add(name)
        waiting.append(name.rpartition(".")[0])
        waiting.extend(references(name, sources))
    return seen


def unreached(sources: Sources, roots: Iterable[str], tests: Sources, *, tools: str = "harch.testing") -> list[str]:
    """Modules that neither a root reaches nor, for the shipped test tools, a test."""
    product = reached(sources, roots)
    by_tests = {name for test in tests for name in references(test, {**sources, test: tests[test]})}
    tested = {name for name in reached(sources, by_tests) if name == tools or name.startswith(f"{tools}.")}
    return sorted(sources.keys() - product - tested)


def _absolute(node: ast.ImportFrom, package: str) -> str:
    if not node.level:
        return node.module or ""
    parts = package.split(".")
    base = parts[: len(parts) - node.level + 1]
    return ".".join([*base, node.module] if node.module else base)


def unreached_of_repository(root: Path) -> list[str]:
    sources = read_sources(root / "src")
    roots = entry_points(sources, (root / "pyproject.toml").read_text("utf-8"))
    return unreached(sources, roots, read_sources(root / "tests"))


if __name__ == "__main__":
    print("\n".join(unreached_of_repository(Path(__file__).resolve().parents[2])))
