"""How is one change made to several workloads? Shared by `stop`, `pause` and `resume`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import click

from harch.base.errors import EXIT_OK, HarchError
from harch.cli.failure import report
from harch.cli.output import clean, emit_json

if TYPE_CHECKING:
    from harch.sdk import Workload


def change_each(refs: Sequence[str], change: Callable[[str], Workload], done: str, as_json: bool) -> int:
    """Changes all that can be changed; a mistake in one name does not spare the others. Answers the exit code."""
    changed: list[Workload] = []
    errors: list[dict[str, str]] = []
    exit_code = EXIT_OK
    for ref in refs:
        try:
            workload = change(ref)
        except HarchError as error:
            exit_code = exit_code or error.kind.exit_code
            errors.append({"ref": ref, "code": error.code, "message": error.message, "hint": error.hint})
            if not as_json:
                report(error, as_json=False)
            continue
        changed.append(workload)
        if not as_json:
            click.echo(f"{done} {workload.id} ({clean(workload.name)}), now {workload.status}")
    if as_json:
        emit_json({"items": changed, "errors": errors})
    return exit_code
