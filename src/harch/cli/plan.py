"""`harch plan`: show what would happen to the workloads of a file."""

from __future__ import annotations

import click

from harch.cli.remote import connect, remote_options


@click.command()
@click.argument("file", metavar="FILE")
@remote_options
def command(file: str, hub: str | None, as_json: bool) -> int:
    """Show what would happen to the workloads of a file.

    Changes nothing; shows each hub and the rules that say no (--json has all of them). `-` reads stdin. Exit code 3:
    one of them can never run there; 4: residency forbids it.
    """
    from harch.cli.explanation import exit_code_of, show_plans
    from harch.cli.output import emit_json
    from harch.cli.workload_file import read_workloads

    specs = read_workloads(file)
    with connect(hub) as client:
        plans = [client.plan(spec) for spec in specs]
    if as_json:
        emit_json({"items": plans, "total": len(plans)})
    else:
        show_plans(specs, plans)
    return max(exit_code_of(plan) for plan in plans)
