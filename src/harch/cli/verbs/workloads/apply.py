"""`harch plan`, `apply` and `why`: show what would happen to the workloads of a file, submit them, and explain where
they run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from harch.base.errors import EXIT_ERROR, EXIT_OK, HarchError
from harch.cli.failure import INTERRUPTED_EXIT_CODE
from harch.cli.options import check_can_prompt, confirmed, file_input, yes_option
from harch.cli.remote import connect, remote_options

if TYPE_CHECKING:
    from harch.sdk import Client, Workload
    from harch.workloads.spec import WorkloadSpec


# `harch apply`: submit the workloads of a file, after showing the plan.


@click.command()
@file_input("The workload file; `-` reads stdin.")
@yes_option
@click.option("-d", "--detach", is_flag=True, help="Return without waiting for completion.")
@remote_options
def apply_command(file: str, yes: bool, detach: bool, hub: str | None, as_json: bool) -> int:
    """Submit the workloads of a file, after showing the plan.

    If any of them can never run, none is submitted. Waits for all to end (reservations: to start) and fails if any
    failed; -d returns at once. Applying the same file again within 10 minutes changes nothing.
    """
    from harch.cli.inputs import read_workloads
    from harch.cli.output import emit_json
    from harch.cli.views.explanation import exit_code_of, show_plans

    check_can_prompt(yes=yes, as_json=as_json, stdin_taken=file == "-")
    specs = read_workloads(file)
    with connect(hub) as client:
        plans = [client.plan(spec) for spec in specs]
        if not as_json:
            show_plans(specs, plans)
        if code := max(exit_code_of(plan) for plan in plans):
            if as_json:
                emit_json({"plans": plans, "items": []})
            else:
                click.echo("\nnothing was submitted", err=True)
            return code
        question = f"\nsubmit {len(specs)} workload{'s' if len(specs) > 1 else ''}?"
        if not confirmed(question, yes=yes, as_json=as_json):
            return EXIT_ERROR
        try:
            workloads = _submit_all(client, specs, as_json, hub)
            if not detach:
                workloads = [_wait(client, workload, as_json) for workload in workloads]
        except KeyboardInterrupt:
            click.echo("\nstopped waiting; submitted workloads keep running, see `harch ps`", err=True)
            return INTERRUPTED_EXIT_CODE
    if as_json:
        emit_json({"plans": plans, "items": workloads})
    return EXIT_ERROR if any(workload.exit_code for workload in workloads) else EXIT_OK


def _submit_all(client: Client, specs: list[WorkloadSpec], as_json: bool, hub: str | None) -> list[Workload]:
    from harch.cli.remote import hub_suffix

    workloads: list[Workload] = []
    for spec in specs:
        try:
            workload = client.workloads.submit(spec)
        except HarchError as error:
            if workloads:
                done = ", ".join(workload.id for workload in workloads)
                error.hint = f"{error.hint}; already submitted: {done}".removeprefix("; ")
            raise
        workloads.append(workload)
        if not as_json:
            click.echo(f"submitted {workload.id} ({spec.name}); harch logs {workload.id} -f{hub_suffix(hub)}")
    return workloads


def _wait(client: Client, workload: Workload, as_json: bool) -> Workload:
    from harch.cli.follow import how_it_ended, wait_to_start
    from harch.cli.output import note

    is_reservation = not workload.spec.get("command") and not workload.spec.get("modelled_duration_s")
    if is_reservation:
        # It has no end of its own: what can be waited for is that it holds its GPUs.
        workload = client.workloads.wait(workload.id, until=lambda now: now.is_final or now.status == "running")
    else:
        workload = client.workloads.wait(workload.id) if as_json else wait_to_start(client, workload)
        workload = client.workloads.wait(workload.id)
    if not as_json:
        note(how_it_ended(workload))
    return workload


# `harch plan`: show what would happen to the workloads of a file.


@click.command()
@file_input("The workload file; `-` reads stdin.")
@remote_options
def plan_command(file: str, hub: str | None, as_json: bool) -> int:
    """Show the plan for the workloads of a file.

    Changes nothing; shows each hub and the rules that reject it (--json has all rules). Exit code 3: one of
    them can never run there; 4: residency forbids it.
    """
    from harch.cli.inputs import read_workloads
    from harch.cli.output import emit_json
    from harch.cli.views.explanation import exit_code_of, show_plans

    specs = read_workloads(file)
    with connect(hub) as client:
        plans = [client.plan(spec) for spec in specs]
    if as_json:
        emit_json({"items": plans, "total": len(plans)})
    else:
        show_plans(specs, plans)
    return max(exit_code_of(plan) for plan in plans)


# `harch why`: explain why a workload runs where it runs, or waits.


@click.command()
@click.argument("ref", metavar="ID")
@click.option("--all", "every_rule", is_flag=True, help="Show the rules that pass, too, and the nodes considered.")
@remote_options
def why_command(ref: str, every_rule: bool, hub: str | None, as_json: bool) -> None:
    """Explain why a workload runs where it runs, or waits.

    The state, the reason and what would help; then each hub with the rules that reject it, or nearly do: with less
    than a quarter to spare. ID is an id or a name.
    """
    from harch.cli.output import emit_json, note
    from harch.cli.remote import hub_suffix
    from harch.cli.views.explanation import show

    with connect(hub) as client:
        explanation = client.workloads.why(ref)
    if as_json:
        emit_json(explanation)
    else:
        title = ref if ref == explanation.subject else f"{ref} ({explanation.subject})"
        show(explanation, title, every_rule=every_rule)
        passed = sum(rule.passed for one in explanation.hubs for rule in one.rules)
        if passed and not every_rule and explanation.verdict != "finished":
            pass_ = "1 rule passes" if passed == 1 else f"{passed} rules pass"
            note(f"{pass_}; `harch why {ref} --all{hub_suffix(hub)}` shows every rule")
