"""What does a file of workloads say? Reads it from disk or stdin, never more than its limit."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from harch.base.errors import HarchError

if TYPE_CHECKING:
    from harch.workloads.spec import WorkloadSpec


def read_workloads(file: str) -> list[WorkloadSpec]:
    """At least one workload. `-` is stdin."""
    from harch.workloads.file import FILE_BYTES_MAX, parse_workloads

    if file == "-":
        return parse_workloads(sys.stdin.buffer.read(FILE_BYTES_MAX + 1), "stdin")
    try:
        with Path(file).open("rb") as stream:
            text = stream.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        reason = error.strerror or str(error)
        raise HarchError(
            "E0202", f"{file} cannot be read: {reason}", hint="give the path of a workload file, or `-` for stdin"
        ) from error
    return parse_workloads(text, file)
