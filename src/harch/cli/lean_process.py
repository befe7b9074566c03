"""How does a server stay small? Packages that others load in case somebody needs them are not there for it.

Numba loads SciPy for linear algebra, and Arrow loads pandas with the first list that it converts: 45 MB that SENTINEL,
which uses neither, would hold at every hub.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


class _Absent(MetaPathFinder):
    def __init__(self, names: frozenset[str]) -> None:
        self._names = names

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname in self._names:
            raise ModuleNotFoundError(f"{fullname} is kept out of this process", name=fullname)
        return None


def keep_out(*names: str) -> None:
    """From now on these packages cannot be imported in this process; what is loaded stays."""
    sys.meta_path.insert(0, _Absent(frozenset(names)))
