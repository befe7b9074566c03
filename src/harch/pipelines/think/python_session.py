"""How does a Python function serve as a model? It takes an array of rows and features, and answers one row for each.

The code that runs is exactly the bytes that were hashed: the file is executed as a module of its own, so a changed file
is new code, whatever was imported before. Whoever writes a pipeline's specification decides what its workers execute.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import numpy as np

from harch.base.errors import HarchError
from harch.pipelines.think.sessions import Array, Tensors, TensorSpec

INPUT, OUTPUT = "input", "output"


class PythonSession:
    """`module:function` on the CPU. Its output's type and width are what it answers to one row of zeros."""

    device = "cpu"

    def __init__(self, function: Callable[[Array], Array], *, columns: int) -> None:
        self._function = function
        self.inputs: tuple[TensorSpec, ...] = (TensorSpec(name=INPUT, dtype="float32", shape=(None, columns)),)
        try:
            probe = np.asarray(function(np.zeros((1, columns), dtype=np.float32)))
        except Exception as error:  # the function is the user's and may raise anything
            raise _not_loaded(f"the function failed on a row of zeros: {type(error).__name__}: {error}") from error
        if probe.ndim not in (1, 2) or len(probe) != 1 or probe.dtype.kind not in "biuf":
            raise _not_loaded(
                f"the function answers {probe.dtype} {list(probe.shape)} to one row, not a row of numbers"
            )
        self.outputs: tuple[TensorSpec, ...] = (
            TensorSpec(name=OUTPUT, dtype=str(probe.dtype), shape=(None, *probe.shape[1:])),
        )

    def run(self, tensors: Tensors) -> dict[str, Array]:
        return {OUTPUT: np.asarray(self._function(tensors[INPUT]))}


def source_of(reference: str) -> Path:
    """The file that holds the module of `module:function`. Packages around it are imported to find it."""
    module_name = reference.partition(":")[0]
    try:
        spec = find_spec(module_name)
    except (ImportError, ValueError, AttributeError) as error:
        raise _not_loaded(f"module `{module_name}` is not found: {error}") from error
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        raise _not_loaded(f"module `{module_name}` is not found as a Python file")
    return Path(spec.origin)


def function_of(reference: str, source: bytes, path: Path, sha256: str) -> Callable[[Array], Array]:
    """The function out of these bytes."""
    module_name, _, function_name = reference.partition(":")
    module = ModuleType(f"{module_name}__{sha256[:12]}")
    module.__file__ = str(path)
    module.__package__ = module_name.rpartition(".")[0]
    sys.modules[module.__name__] = module  # dataclasses and pickles look their module up by name
    try:
        exec(compile(source, str(path), "exec"), module.__dict__)  # noqa: S102 (running a named function is the feature)
    except Exception as error:  # a module may raise anything while it is executed
        del sys.modules[module.__name__]
        raise _not_loaded(f"module `{module_name}` failed: {type(error).__name__}: {error}") from error
    function = getattr(module, function_name, None)
    if not callable(function):
        raise _not_loaded(f"module `{module_name}` has no function `{function_name}`")
    return function  # type: ignore[no-any-return]


def _not_loaded(message: str) -> HarchError:
    return HarchError(
        "E0503", message, hint="a model function takes float32 rows × features, and answers a row for each"
    )
