"""What runs a model, and what does it read?

One protocol for every runtime, columns of numbers by name, and the checks on what goes in and what comes out.
"""

# harch: pure

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from harch.base.errors import HarchError
from harch.base.rejection import Rejection
from harch.pipelines.think.settings import PRIORITY_DEFAULT

Array = NDArray[Any]
Tensors = Mapping[str, Array]


class TensorSpec(Struct, frozen=True, kw_only=True):
    """A tensor by name, NumPy type and shape. The first dimension is the rows of a batch; None is any size."""

    name: str
    dtype: str
    shape: tuple[int | None, ...]

    @property
    def row_shape(self) -> tuple[int | None, ...]:
        return self.shape[1:]


class ModelSession(Protocol):
    """A model in memory, ready to run. `device` says where it really runs, not what was asked for."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    device: str

    def run(self, tensors: Tensors) -> dict[str, Array]:
        """Rows in, as many rows out. May raise anything: the caller counts it."""
        ...


def check_inputs(specs: tuple[TensorSpec, ...], tensors: Tensors, *, rows_max: int) -> int:
    """The number of rows, or E0505: names, types and shapes are exactly those of the model."""
    wanted = {spec.name for spec in specs}
    if missing := sorted(wanted.difference(tensors)):
        raise _refused(f"input `{missing[0]}` is missing")
    if unknown := sorted(set(tensors).difference(wanted)):
        raise _refused(f"the model has no input `{unknown[0][:64]}`")
    rows = {len(tensor) if tensor.ndim else 0 for tensor in tensors.values()}
    if len(rows) != 1:
        raise _refused("inputs differ in their first dimension, the rows of the batch")
    count = rows.pop()
    if not 1 <= count <= rows_max:
        raise _refused(f"{count} rows; this model takes 1 to {rows_max} at a time")
    for spec in specs:
        tensor = tensors[spec.name]
        if tensor.dtype != np.dtype(spec.dtype):
            raise _refused(f"input `{spec.name}` is {tensor.dtype}, but the model expects {spec.dtype}")
        if not _fits(tensor.shape, spec.shape):
            raise _refused(f"input `{spec.name}` has shape {list(tensor.shape)}, but the model expects {_drawn(spec)}")
    return count


def check_outputs(specs: tuple[TensorSpec, ...], outputs: Tensors, rows: int) -> None:
    """E0508 where a model answers other tensors than it promised; such an answer is not used."""
    for spec in specs:
        tensor = outputs.get(spec.name)
        if tensor is None:
            raise HarchError("E0508", f"output `{spec.name}` is missing")
        if tensor.dtype != np.dtype(spec.dtype) or not _fits(tensor.shape, (rows, *spec.row_shape)):
            raise HarchError(
                "E0508",
                f"output `{spec.name}` is {tensor.dtype} {list(tensor.shape)}, not {spec.dtype} {_drawn(spec)} "
                f"for {rows} rows",
            )


def finite_rows(outputs: Tensors, rows: int) -> NDArray[np.bool_]:
    """True for rows without NaN or infinity in any output."""
    good = np.ones(rows, dtype=bool)
    for tensor in outputs.values():
        if tensor.dtype.kind == "f":
            good &= np.isfinite(tensor.reshape(rows, -1)).all(axis=1)
    return good


def rows_of(tensors: Tensors, index: Any) -> dict[str, Array]:
    """The rows by an index of any kind that NumPy takes."""
    return {name: tensor[index] for name, tensor in tensors.items()}


def zeros(specs: tuple[TensorSpec, ...], rows: int) -> dict[str, Array]:
    """A batch to warm a session up with; dimensions that are free get size 1."""
    return {spec.name: np.zeros((rows, *(size or 1 for size in spec.row_shape)), dtype=spec.dtype) for spec in specs}


def _fits(shape: tuple[int, ...], wanted: tuple[int | None, ...]) -> bool:
    return len(shape) == len(wanted) and all(
        size is None or size == got for got, size in zip(shape, wanted, strict=True)
    )


def _drawn(spec: TensorSpec) -> str:
    return "[" + ", ".join("any" if size is None else str(size) for size in spec.shape) + "]"


def _refused(message: str) -> HarchError:
    return HarchError("E0505", message, hint="GET /v2/models/NAME lists the inputs of a model")


# What does THINK read? Columns of numbers by name, one row for each device and window, and what to do about holes.


class Features(Struct, frozen=True, kw_only=True, eq=False):
    """A batch of feature rows. `source` comes back with every output, to acknowledge by; THINK does not look at it."""

    columns: Mapping[str, NDArray[Any]]
    devices: NDArray[np.generic]
    source: Any = None
    priority: int = PRIORITY_DEFAULT
    deadline_s: float | None = None

    @property
    def rows(self) -> int:
        return len(self.devices)


def matrix_of(features: Features, names: tuple[str, ...]) -> tuple[Array, NDArray[np.bool_]] | Rejection:
    """The columns as float32 rows, and which rows are complete: models never see NaN, infinity or too large numbers."""
    missing = [name for name in names if name not in features.columns]
    if missing:
        have = ", ".join(list(features.columns)[:8])
        return Rejection("features", "columns", f"`{missing[0]}` is missing; available: {have}", "correct `inputs`")
    matrix = np.empty((features.rows, len(names)), dtype=np.float32)
    with np.errstate(over="ignore"):  # what does not fit into float32 becomes infinite, and its row incomplete
        for index, name in enumerate(names):
            column = features.columns[name]
            if column.shape != (features.rows,):
                detail = f"`{name}` has shape {list(column.shape)}, and there are {features.rows} devices"
                return Rejection("features", "columns", detail, "give one value for each device")
            matrix[:, index] = column
    return matrix, np.asarray(np.isfinite(matrix).all(axis=1))
