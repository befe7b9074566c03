"""`harch stop`, `pause`, `resume` and `restart`: one change to several workloads; a mistake in one name
does not spare the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import click

from harch.base.errors import EXIT_OK, HarchError
from harch.cli.failure import report
from harch.cli.output import clean, emit_json
from harch.cli.remote import connect, remote_options

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


# `harch stop`: stop workloads.


@click.command()
@click.argument("refs", metavar="ID...", nargs=-1, required=True)
@click.option("--wait", is_flag=True, help="Wait until they have ended.")
@remote_options
def stop_command(refs: tuple[str, ...], wait: bool, hub: str | None, as_json: bool) -> int:
    """Stop workloads.

    Each gets SIGTERM, then SIGKILL after its `stop_grace_s`. ID is an id or a name.
    """

    with connect(hub) as client:

        def stop(ref: str) -> Workload:
            workload = client.workloads.stop(ref)
            return client.workloads.wait(workload.id) if wait else workload

        return change_each(refs, stop, "stopped" if wait else "stopping", as_json)


# `harch pause`: pause workloads; they keep their GPUs.


@click.command()
@click.argument("refs", metavar="ID...", nargs=-1, required=True)
@remote_options
def pause_command(refs: tuple[str, ...], hub: str | None, as_json: bool) -> int:
    """Pause workloads; they keep their GPUs.

    Their processes are suspended in place. ID is an id or a name.
    """

    with connect(hub) as client:
        return change_each(refs, client.workloads.pause, "paused", as_json)


# `harch resume`: resume paused workloads.


@click.command()
@click.argument("refs", metavar="ID...", nargs=-1, required=True)
@remote_options
def resume_command(refs: tuple[str, ...], hub: str | None, as_json: bool) -> int:
    """Resume paused workloads.

    Their processes continue where they were suspended. ID is an id or a name.
    """

    with connect(hub) as client:
        return change_each(refs, client.workloads.resume, "resumed", as_json)


# `harch restart`: start workloads again, from their beginning.


@click.command()
@click.argument("refs", metavar="ID...", nargs=-1, required=True)
@remote_options
def restart_command(refs: tuple[str, ...], hub: str | None, as_json: bool) -> int:
    """Start workloads again, from their beginning.

    What runs gets SIGTERM, then SIGKILL after its `stop_grace_s`, and waits for GPUs again under the same id. What has
    ended is submitted once more, and gets a new id. ID is an id or a name.
    """
    with connect(hub) as client:
        return change_each(refs, client.workloads.restart, "restarting", as_json)
