"""Which tests run a block, and how long do they take? Measured once, and again for what has changed.

Kept in `.mutants/`, one file per file of tests, named by a digest of all that it depends on.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

KEPT_MAX = 4_000  # entries of older sources go first


@dataclass(frozen=True, slots=True)
class Measured:
    """One test that passed."""

    test: str
    cpu_s: float
    blocks: tuple[int, ...]


class TestsMap:
    __test__ = False  # for pytest: not a test

    def __init__(self, root: Path, folder: Path, scope: Iterable[Path]) -> None:
        self._root, self._folder = root, folder
        shared = [*(root / "src").rglob("*.py"), *(root / "tests").rglob("*.py"), *(root / "src").rglob("*.yaml")]
        tooling = root / "tests" / "mutants"
        self._base = hashlib.sha256(
            "".join(
                f"{path.relative_to(root)}:{hashlib.sha256(path.read_bytes()).hexdigest()}\n"
                for path in sorted(shared)
                if not path.name.startswith("test_") and (tooling not in path.parents or path.stem in ("hits", "judge"))
            ).encode()
            + "".join(f"{path.relative_to(root)}\n" for path in sorted(scope)).encode()
        ).hexdigest()

    def known(self, file: str) -> list[Measured] | None:
        """What was measured of this file of tests, as it is now; None if it was not."""
        try:
            rows = json.loads(self._entry(file).read_text("utf-8"))
        except FileNotFoundError:
            return None
        return [Measured(test, cpu_s, tuple(blocks)) for test, cpu_s, blocks in rows]

    def keep(self, file: str, measured: Iterable[Measured]) -> None:
        self._folder.mkdir(exist_ok=True)
        entry = self._entry(file)
        partial = entry.with_suffix(".partial")
        partial.write_text(json.dumps([[one.test, one.cpu_s, one.blocks] for one in measured]), "utf-8")
        partial.replace(entry)
        entries = sorted(self._folder.glob("*.json"), key=lambda path: path.stat().st_mtime, reverse=True)
        for old in entries[KEPT_MAX:]:
            old.unlink(missing_ok=True)

    def _entry(self, file: str) -> Path:
        content = (self._root / file).read_bytes()
        return self._folder / (hashlib.sha256(f"{self._base}:{file}:".encode() + content).hexdigest()[:32] + ".json")


def tests_by_block(measured: Iterable[Measured]) -> Mapping[int, list[Measured]]:
    """Fastest first: most mutants die by any test that runs them."""
    found: defaultdict[int, list[Measured]] = defaultdict(list)
    for one in sorted(measured, key=lambda one: (one.cpu_s, one.test)):
        for block in one.blocks:
            found[block].append(one)
    return found
