"""How are SENTINEL's kernels compiled? One decorator: the same flags and arithmetic for all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

from harch.base.errors import HarchError

try:
    from numba import njit
except ImportError as missing:
    raise HarchError("E0601", "numba") from missing

Kernel = TypeVar("Kernel", bound=Callable[..., object])


def kernel(function: Kernel) -> Kernel:
    """Compiles a function without the GIL and keeps the machine code on disk. No fastmath: sums keep their order."""
    return _compiled(function)


def inner_kernel(function: Kernel) -> Kernel:
    """For a function that only kernels call: without the way in from Python, which takes long to compile."""
    return _compiled(function, no_cpython_wrapper=True, no_cfunc_wrapper=True)


def _compiled(function: Kernel, **options: bool) -> Kernel:
    decorator: Any = njit  # its type knows only some of its options
    try:
        compiled = decorator(cache=True, nogil=True, **options)(function)
    except RuntimeError:  # no writable folder for the machine code: compile anew in every process
        return cast(Kernel, decorator(nogil=True, **options)(function))
    _watch_all_sources(compiled)
    return cast(Kernel, compiled)


def _watch_all_sources(compiled: object) -> None:
    """Makes an edit of any module with kernels invalidate the stored code of all of them.

    Numba looks only at the file of the kernel itself and would go on running an old copy of what it calls elsewhere.
    """
    cache_file = getattr(getattr(compiled, "_cache", None), "_cache_file", None)
    if cache_file is not None and hasattr(cache_file, "_source_stamp"):
        cache_file._source_stamp = _SOURCES


def _sources() -> tuple[tuple[str, int, int], ...]:
    folder = Path(__file__).parent
    stats = ((str(path.relative_to(folder)), path.stat()) for path in sorted(folder.rglob("*kernels*.py")))
    return tuple((name, stat.st_mtime_ns, stat.st_size) for name, stat in stats)


_SOURCES = _sources()  # kernels live in modules with `kernels` in their names
