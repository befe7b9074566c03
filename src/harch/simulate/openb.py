"""What do the public trace files say? Readers of node and request lists, by the names of their columns.

Node lists have `sn,cpu_milli,memory_mib,gpu,model` (openb) or `gpu_model,gpu_capacity_num,cpu_num,node_name`
(Alibaba 2026). Request lists need `name,cpu_milli,memory_mib,num_gpu,gpu_milli`; `gpu_spec`, models joined by `|`,
may be missing, and so may everything else.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from harch.base.errors import HarchError
from harch.placement.policy.shapes import ANY_MODEL, GPU_MILLI, NodeShape, Request

ROWS_MAX = 5_000_000  # a file beyond this is a mistake, not a trace
_MEMORY_UNKNOWN_MIB = 2**30  # lists that name no memory do not constrain it


@dataclass(frozen=True, slots=True)
class NodeList:
    """Nodes in the order of their names, and the model names that their `model` indices and request masks mean."""

    names: tuple[str, ...]
    shapes: tuple[NodeShape, ...]
    models: tuple[str, ...]

    @property
    def gpus(self) -> int:
        return sum(shape.gpus for shape in self.shapes)


def read_nodes(path: Path) -> NodeList:
    """Reads a node list of either form."""
    rows = list(_rows(path, ("model", "gpu_model")))
    if not rows:
        raise _unreadable(path, "it lists no node")
    openb = "model" in rows[0]
    model_column, name_column = ("model", "sn") if openb else ("gpu_model", "node_name")
    models = tuple(sorted({row[model_column] for row in rows}))
    index = {model: position for position, model in enumerate(models)}
    found = []
    for line, row in enumerate(rows, start=2):
        if openb:
            cpu_milli = _whole(path, line, row, "cpu_milli")
            memory_mib = _whole(path, line, row, "memory_mib")
        else:
            cpu_milli = 1000 * _whole(path, line, row, "cpu_num")
            memory_mib = _MEMORY_UNKNOWN_MIB
        gpus = _whole(path, line, row, "gpu" if openb else "gpu_capacity_num")
        found.append((row.get(name_column, ""), NodeShape(cpu_milli, memory_mib, gpus, index[row[model_column]])))
    found.sort(key=lambda entry: entry[0])
    return NodeList(tuple(name for name, _ in found), tuple(shape for _, shape in found), models)


def read_requests(path: Path, models: Sequence[str]) -> list[Request]:
    """Reads a request list in file order. A request that names only models the fleet lacks fits nowhere."""
    index = {model: position for position, model in enumerate(models)}
    requests = []
    for line, row in enumerate(_rows(path, ("num_gpu",)), start=2):
        amounts = [_whole(path, line, row, column) for column in ("cpu_milli", "memory_mib", "num_gpu", "gpu_milli")]
        cpu_milli, memory_mib, gpus, gpu_milli = amounts
        if gpus == 0:
            requests.append(Request(cpu_milli, memory_mib))
            continue
        if gpu_milli == 0:
            raise _unreadable(path, f"line {line} asks for GPUs with gpu_milli 0")
        mask = _mask(row.get("gpu_spec") or "", index)
        requests.append(Request(cpu_milli, memory_mib, gpus, min(gpu_milli, GPU_MILLI), mask))
    if not requests:
        raise _unreadable(path, "it lists no request")
    return requests


def _mask(spec: str, index: dict[str, int]) -> int:
    named = [model for model in spec.split("|") if model]
    if not named:
        return ANY_MODEL
    mask = 0
    for model in named:
        if model in index:
            mask |= 1 << index[model]
    return mask


def _rows(path: Path, one_of: tuple[str, ...]) -> Iterator[dict[str, str]]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            columns = reader.fieldnames or ()
            if not any(column in columns for column in one_of):
                raise _unreadable(path, f"it has no column `{'` or `'.join(one_of)}`")
            for count, row in enumerate(reader):
                if count >= ROWS_MAX:
                    raise _unreadable(path, f"it has more than {ROWS_MAX:,} rows")
                yield row
    except (OSError, UnicodeDecodeError, csv.Error) as problem:
        raise _unreadable(path, str(problem)) from problem


def _whole(path: Path, line: int, row: dict[str, str], column: str) -> int:
    text = row.get(column) or ""
    try:
        number = float(text)
        whole = int(number)
    except (ValueError, OverflowError):
        raise _unreadable(path, f"line {line}: `{column}` is `{text}`, not a number") from None
    if number != whole or whole < 0:
        raise _unreadable(path, f"line {line}: `{column}` is `{text}`, not a whole number from 0 up")
    return whole


def _unreadable(path: Path, why: str) -> HarchError:
    return HarchError(
        "E0202", f"cannot read `{path}`: {why}", hint="see `harch simulate placement --help` for the columns"
    )
