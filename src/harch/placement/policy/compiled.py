"""How are the policy's kernels compiled? As all others, and with arrays that are lent instead of counted."""

# harch: pure

from __future__ import annotations

from pathlib import Path
from typing import Any

from harch.base.compiling import Kernel, compile_kernel, source_stamp
from harch.placement.policy import KernelsMissing

try:
    from numba import types
    from numba.core import cgutils
    from numba.experimental import structref
    from numba.extending import intrinsic
except ImportError as missing:
    raise KernelsMissing from missing

_FOLDER = Path(__file__).parent
SOURCES = source_stamp(_FOLDER, _FOLDER.glob("*.py"))  # an edit of any module of this package renews all kernels


def kernel(function: Kernel) -> Kernel:
    """New lessons can be built in a thread while the hub goes on deciding: the GIL is released."""
    return compile_kernel(function, SOURCES)


def short_kernel(function: Kernel) -> Kernel:
    """For one that is done in microseconds: to give up the GIL and to wait for it again would take longer."""
    return compile_kernel(function, SOURCES, releases_gil=False)


def inner_kernel(function: Kernel) -> Kernel:
    """For a function that only kernels call."""
    return compile_kernel(function, SOURCES, inner=True)


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


# Arrays behind one reference


class _KernelStateType(types.StructRef):
    """What a kernel sees of `KernelState`."""


class KernelState(structref.StructRefProxy):
    """All arrays of an engine as one argument of a kernel, which may read and write them but not replace them."""

    __slots__ = ()
    nodes: Any  # in Python none of these can be read
    values: Any
    lessons: Any
    memo: Any
    scratch: Any
    cache: Any
    prices: Any


_tools: Any = structref  # untyped
_tools.register(_KernelStateType)
_tools.define_proxy(KernelState, _KernelStateType, tuple(KernelState.__annotations__))
