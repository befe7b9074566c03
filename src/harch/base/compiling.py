"""How do loops over arrays become machine code? Numba compiles them once; all rooms share its flags."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar, cast

Kernel = TypeVar("Kernel", bound=Callable[..., object])
SourceStamp = tuple[tuple[str, int, int], ...]


def compile_kernel(
    function: Kernel, sources: SourceStamp = (), *, inner: bool = False, releases_gil: bool = True
) -> Kernel:
    """Compiles without fastmath: the same input gives the same bits on every run.

    `sources`: files whose edit makes the stored code old; without them only the kernel's own file is looked at.
    `inner`: only kernels call it, so it needs no way in from Python, which takes long to compile.
    `releases_gil`: other threads run meanwhile.
    Raises ImportError without Numba; rooms say what to install.
    """
    from numba import njit

    decorator: Any = njit  # its type knows only some of its options
    options = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True} if inner else {}
    try:
        compiled = decorator(cache=True, nogil=releases_gil, **options)(function)
    except RuntimeError:  # no writable folder for the machine code: compile anew in every process
        return cast(Kernel, decorator(nogil=releases_gil, **options)(function))
    if sources:
        _watch(compiled, sources)
    return cast(Kernel, compiled)


def source_stamp(folder: Path, paths: Iterable[Path]) -> SourceStamp:
    """When and how large: what tells that a file below `folder` was edited."""
    stats = ((str(path.relative_to(folder)), path.stat()) for path in sorted(paths))
    return tuple((name, stat.st_mtime_ns, stat.st_size) for name, stat in stats)


def _watch(compiled: object, sources: SourceStamp) -> None:
    """Numba looks only at the file of the kernel itself and would go on running an old copy of what it calls elsewhere.

    Where a Numba release names these internals otherwise, its own rule stays in force.
    """
    cache_file = getattr(getattr(compiled, "_cache", None), "_cache_file", None)
    if cache_file is not None and hasattr(cache_file, "_source_stamp"):
        cache_file._source_stamp = sources
