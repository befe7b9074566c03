"""How are SENTINEL's kernels compiled? As all others; an edit of any module with kernels renews the code of all."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from harch.base.compiling import Kernel, compile_kernel, source_stamp
from harch.base.errors import HarchError

if find_spec("numba") is None:
    raise HarchError("E0601", "numba")

_FOLDER = Path(__file__).parent
SOURCES = source_stamp(_FOLDER, _FOLDER.rglob("*kernels*.py"))  # kernels live in modules with `kernels` in their names


def kernel(function: Kernel) -> Kernel:
    return compile_kernel(function, SOURCES)


def inner_kernel(function: Kernel) -> Kernel:
    """For a function that only kernels call."""
    return compile_kernel(function, SOURCES, inner=True)
