"""How are kernels compiled? One decorator, so that every kernel has the same flags and the same arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

from harch.placement.policy import KernelsMissing

try:
    from numba import njit, types
    from numba.core import cgutils
    from numba.extending import intrinsic
except ImportError as missing:
    raise KernelsMissing from missing

Kernel = TypeVar("Kernel", bound=Callable[..., object])


def kernel(function: Kernel) -> Kernel:
    """Compiles a function and keeps the machine code on disk.

    No fastmath: sums keep their order, so that the same input gives the same plan on every run. The GIL is released,
    so that new lessons can be built in a thread while the hub goes on deciding.
    """
    return _compiled(function)


def inner_kernel(function: Kernel) -> Kernel:
    """The same for a function that only kernels call: without the way in from Python, which takes long to compile."""
    return _compiled(function, no_cpython_wrapper=True, no_cfunc_wrapper=True)


def _borrowed(typing_context: Any, arrays: Any) -> Any:
    """The same tuple of arrays without their owners, which must outlive the kernel.

    Every call of a kernel counts its arrays as used and then as unused again, one atomic operation each; a decision
    makes hundreds of short calls with dozens of arrays. Arrays without an owner have nothing to count.
    """

    tools: Any = cgutils  # untyped

    def lend(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        lent = arguments[0]
        for place, kind in enumerate(arrays.types):
            if isinstance(kind, types.Array):
                array = tools.create_struct_proxy(kind)(context, builder, value=builder.extract_value(lent, place))
                array.meminfo = tools.get_null_value(array.meminfo.type)
                array.parent = tools.get_null_value(array.parent.type)
                lent = builder.insert_value(lent, array._getvalue(), place)
        return lent

    return arrays(arrays), lend


borrowed: Any = intrinsic(_borrowed)  # in a kernel: `arrays = borrowed(arrays)`


def _compiled(function: Kernel, **options: bool) -> Kernel:
    decorator: Any = njit  # its type knows only some of its options
    try:
        compiled = decorator(cache=True, nogil=True, **options)(function)
    except RuntimeError:  # no writable folder for the machine code: compile anew in every process
        return cast(Kernel, decorator(nogil=True, **options)(function))
    _watch_all_sources(compiled)
    return cast(Kernel, compiled)


def _watch_all_sources(compiled: object) -> None:
    """Makes an edit of any module of this package invalidate the stored code of all its kernels.

    Numba looks only at the file of the kernel itself and would go on running an old copy of what it calls elsewhere.
    Where a Numba release names these internals otherwise, its own rule stays in force.
    """
    cache_file = getattr(getattr(compiled, "_cache", None), "_cache_file", None)
    if cache_file is not None and hasattr(cache_file, "_source_stamp"):
        cache_file._source_stamp = _SOURCES


def _sources() -> tuple[tuple[str, int, int], ...]:
    folder = Path(__file__).parent
    stats = ((path.name, path.stat()) for path in sorted(folder.glob("*.py")))
    return tuple((name, stat.st_mtime_ns, stat.st_size) for name, stat in stats)


_SOURCES = _sources()
