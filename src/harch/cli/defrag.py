"""`harch defrag`: which moves would make room for a waiting workload; make them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from harch.base.errors import EXIT_INFEASIBLE, EXIT_OK, HarchError
from harch.cli.remote import connect, remote_options

if TYPE_CHECKING:
    from harch.sdk.hardware_types import Defragmentation


@click.command()
@click.argument("ref", metavar="WORKLOAD")
@click.option("--apply", is_flag=True, help="Make the moves, after asking.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@remote_options
def command(ref: str, apply: bool, yes: bool, hub: str | None, as_json: bool) -> int:
    """Show which moves make room for a waiting workload; make them.

    A move is a stop with grace: the workload waits again, starts elsewhere and goes on from its own checkpoint folder.
    Ends with 3 if no moves would help. Needs the role `operator`.
    """
    from harch.cli.output import clean, emit_json

    if apply and as_json and not yes:
        raise HarchError("E0201", "--apply --json cannot ask", hint="add -y")
    with connect(hub) as client:
        plan = client.nodes.defragment(ref)
        if not as_json:
            _show(plan)
        if apply and plan.possible:
            if not yes:
                click.confirm(f"stop {len(plan.moves)} and let them start elsewhere?", abort=True)
            plan = client.nodes.defragment(ref, apply=True)
            if not as_json:
                click.echo(f"moving: {len(plan.moves)}; `harch why {clean(ref)}` shows what is kept for it")
    if as_json:
        emit_json(plan)
    return EXIT_OK if plan.possible else EXIT_INFEASIBLE


def _show(plan: Defragmentation) -> None:
    from harch.cli.output import clean, table

    click.echo(clean(plan.sentence))
    if not plan.possible:
        return
    table(
        ("WORKLOAD", "NAME", "TENANT", "GPUS", "FROM", "FITS ON", "DONE AGAIN, GPU-S"),
        (
            (
                move.workload_id,
                move.name,
                move.tenant,
                f"{move.gpus:g}",
                ", ".join(move.from_nodes),
                ", ".join(move.to_nodes),
                f"{move.lost_gpu_s:.0f}",
            )
            for move in plan.moves
        ),
    )
    click.echo(f"frees {', '.join(map(clean, plan.nodes))} for {clean(plan.workload_id)}")
    verdict = "it pays" if plan.pays else "it does not pay: more is done again than starts now"
    click.echo(f"{plan.lost_gpu_s:.0f} GPU-seconds are done again; {verdict}")
