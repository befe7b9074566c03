"""`harch policy prove`: show that no tag can be broken, whatever changes and whichever hub fails."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harch.base.errors import EXIT_ERROR, EXIT_OK, EXIT_REFUSED, HarchError
from harch.cli.remote import connect, remote_options

if TYPE_CHECKING:
    from harch.sovereignty.proof.model import PendingChange, ProofWorld
    from harch.sovereignty.proof.prove import Proof

FILE_BYTES_MAX = 256 * 1024 * 1024
COUNTEREXAMPLES_LISTED = 5
WORKLOADS_PAGES_MAX = 100
_LIVE = ""


@click.command("prove")
@click.option("--plan", "plan", metavar="FILE", help="A plan, as `terraform show -json` prints it. `-` reads stdin.")
@click.option(
    "--state",
    "state",
    metavar="[FILE]",
    is_flag=False,
    flag_value=_LIVE,
    default=None,
    help="State document; without FILE, the fleet and work of the queried hub.",
)
@click.option(
    "--fleet",
    metavar="FLEET",
    default="five-hubs",
    show_default=True,
    help="With --state alone: a shipped fleet, or the path of a fleet file.",
)
@remote_options
def prove(plan: str | None, state: str | None, fleet: str, hub: str | None, as_json: bool) -> int:
    """Prove that no tag can be violated, whatever changes and whichever hub fails.

    Covers placements, routes, lending, copies, pipeline edges and telemetry exports, under every combination of the
    pending changes and every failure of one hub. With both, the plan is checked against that state. Exit code 4: a tag
    can be violated, with a counterexample; 1: it cannot be proven.
    """
    from harch.cli.output import emit_json
    from harch.cli.views.progress import progress_line
    from harch.sovereignty.jurisdiction_file import jurisdictions_in_force
    from harch.sovereignty.proof.prove import ProofStatus, needs_solver
    from harch.sovereignty.proof.prove import prove as prove_world
    from harch.sovereignty.proof.state import read_state
    from harch.sovereignty.proof.symbolic import load_solver
    from harch.sovereignty.proof.terraform_plan import read_plan

    if plan is None and state is None:
        raise HarchError("E0201", "nothing to prove", hint="give --plan plan.json, --state state.json, or --state")
    jurisdictions = jurisdictions_in_force()
    world: ProofWorld | None = None
    changes: tuple[PendingChange, ...] = ()
    with progress_line("reading", as_json) as line:
        if state is not None:
            world, changes = _live(fleet, hub) if state == _LIVE else read_state(_document(state), jurisdictions)
        if plan is not None:
            world, planned = read_plan(_document(plan), jurisdictions, world)
            changes = (*changes, *planned)
        if world is None:
            raise HarchError("E0201", "nothing to prove", hint="give --plan or --state")
        solver = load_solver() if needs_solver(world, changes) else None
        proof = prove_world(
            world, changes, solver=solver, progress=lambda what, done, total: line.update(done, total, what)
        )
    if as_json:
        emit_json(proof)
    else:
        _show(proof)
    return {ProofStatus.PROVEN: EXIT_OK, ProofStatus.VIOLATED: EXIT_REFUSED, ProofStatus.UNKNOWN: EXIT_ERROR}[
        proof.status
    ]


def _document(name: str) -> object:
    import msgspec

    try:
        if name == "-":
            raw = sys.stdin.buffer.read(FILE_BYTES_MAX + 1)
        else:
            with Path(name).open("rb") as stream:
                raw = stream.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise HarchError("E0202", f"{name} cannot be read: {error.strerror}", hint="check the path") from error
    if len(raw) > FILE_BYTES_MAX:
        raise HarchError("E0202", f"{name} is larger than {FILE_BYTES_MAX >> 20} MiB", hint="split the state")
    try:
        return msgspec.json.decode(raw)
    except msgspec.DecodeError as error:
        raise HarchError(
            "E0202", f"{name} is not JSON: {error}", hint="is it the output of `terraform show -json`?"
        ) from error


def _live(fleet: str, hub: str | None) -> tuple[ProofWorld, tuple[PendingChange, ...]]:
    """The fleet file, which hubs answer, and the data and unfinished work of the hub that is asked."""
    import msgspec

    from harch.cli.process import open_fleet
    from harch.sovereignty.jurisdiction_file import jurisdictions_in_force
    from harch.sovereignty.proof.state import WorkloadNeeds, state_of
    from harch.sovereignty.tags import DataObject

    work: list[WorkloadNeeds] = []
    with connect(hub) as client:
        failed = [view.id for view in client.hubs.list() if not view.reachable]
        fields = DataObject.__struct_fields__
        data = [
            msgspec.convert({field: getattr(item, field) for field in fields}, DataObject)
            for item in client.data.list()
        ]
        ids = {item.name: item.id for item in reversed(data)}  # the newest of a name, as the hub itself reads it
        for page in range(1, WORKLOADS_PAGES_MAX + 1):
            found = client.workloads.list(page=page, active=True)
            for one in found.items:
                countries = _strings(one.spec.get("countries_allowed"))
                reads = tuple(ids.get(word, word) for word in _strings(one.spec.get("data")))
                work.append(WorkloadNeeds(id=one.id, reads=reads, countries=countries or None))
            if len(work) >= found.total or not found.items:
                break
        else:
            raise HarchError("E0204", "the hub has more unfinished work than can be read", hint="give --state FILE")
    world = state_of(open_fleet(fleet), jurisdictions_in_force(), data=data, workloads=work, failed=failed)
    return world, ()


def _strings(found: object) -> tuple[str, ...]:
    return tuple(word for word in found if isinstance(word, str)) if isinstance(found, list | tuple) else ()


def _show(proof: Proof) -> None:
    from harch.cli.output import clean

    for number, counterexample in enumerate(proof.counterexamples[:COUNTEREXAMPLES_LISTED], 1):
        kind = counterexample.step.kind.replace("_", " ")
        click.echo(f"{number}. {kind}: {clean(counterexample.data or counterexample.step.actor)}")
        for line in counterexample.explanation:
            click.echo(f"   {clean(line)}")
        click.echo(f"   fix: {clean(counterexample.fix)}\n")
    if len(proof.counterexamples) > COUNTEREXAMPLES_LISTED:
        click.echo(f"and {len(proof.counterexamples) - COUNTEREXAMPLES_LISTED} more; --json has all of them\n")
    for reason in proof.reasons:
        click.echo(f"unknown: {clean(reason)}")
    covered = (
        f"{proof.resources} resources, {proof.changes} pending changes ({_count(proof.combinations)} combinations), "
        f"each of {proof.failures} hubs failing"
    )
    verdict = click.style(proof.status.value, fg="green" if proof.status.value == "proven" else "red", bold=True)
    click.echo(f"{verdict}: {covered}")


def _count(digits: str) -> str:
    return digits if len(digits) <= 9 else f"about 10^{len(digits) - 1}"
