"""`harch policy`: write, test, compare and activate policies in Rego."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import click

from harch.base.errors import EXIT_CHANGES, EXIT_ERROR, EXIT_OK, EXIT_REFUSED
from harch.base.ids import DEFAULT_TENANT
from harch.cli.options import fleet_option
from harch.cli.policy.prove import prove
from harch.cli.remote import connect, json_option, remote_options
from harch.cli.verb_group import VerbGroup
from harch.cli.views.progress import progress_line

if TYPE_CHECKING:
    from harch.wire.policies import PolicyStatus

DIFFERENCES_LISTED = 20


@click.group(cls=VerbGroup)
def command() -> None:
    """Write, test, compare and activate policies in Rego.

    BUNDLE is a folder with a policy.toml, or `default` for the policy that equals the built-in rules.
    """


command.add_command(prove)


@command.command("check")
@click.argument("bundle")
@fleet_option
@json_option
def check(bundle: str, fleet: str, as_json: bool) -> None:
    """Check a bundle: manifest, syntax, built-ins, entry points. Prints its digest, which is its version in audits."""
    import asyncio

    from harch.cli.output import emit_json
    from harch.cli.policy.trials import world_of
    from harch.sovereignty.policy.evaluation import compile_bundle, read_bundle

    found = read_bundle(bundle)
    with progress_line("compiling the bundle", as_json):
        asyncio.run(compile_bundle(found, world_of(fleet)[1]))
    tests = len(found.test_paths) + len(found.cases)
    if as_json:
        emit_json({"name": found.manifest.name, "version": found.manifest.version, "digest": found.digest})
    else:
        click.echo(f"{found.title} is valid: {len(found.modules)} modules, {tests} tests\ndigest {found.digest}")


@command.command("test")
@click.argument("bundle")
@fleet_option
@json_option
def test(bundle: str, fleet: str, as_json: bool) -> int:
    """Run a bundle's own tests: rules `test_…` of *_test.rego, and *cases.json. Exit code 1 if one fails."""
    import asyncio

    from harch.cli.output import clean, emit_json, styled
    from harch.cli.policy.trials import world_of
    from harch.sovereignty.policy.evaluation import read_bundle, run_tests

    found = read_bundle(bundle)
    with progress_line("compiling the bundle", as_json) as line:
        world = world_of(fleet)[1]
        progress = functools.partial(line.update, what="testing")
        outcomes = asyncio.run(run_tests(found, world, progress))
    failed = sum(1 for outcome in outcomes if not outcome.passed)
    if as_json:
        emit_json({"items": outcomes, "total": len(outcomes), "failed": failed})
    else:
        for outcome in outcomes:
            mark = styled("pass" if outcome.passed else "FAIL")
            click.echo(f"{mark}  {clean(outcome.name)}  {clean(outcome.detail)}".rstrip())
        click.echo(f"{len(outcomes) - failed} of {len(outcomes)} tests pass")
    return EXIT_ERROR if failed else EXIT_OK


@command.command("explain")
@click.argument("workload", metavar="FILE|ID")
@click.option(
    "--bundle",
    metavar="BUNDLE",
    default="default",
    show_default=True,
    help="Bundle to evaluate besides the built-in rules.",
)
@click.option(
    "--tag", "tags", metavar="FILE", multiple=True, help="Tag of data that it reads, YAML or JSON. Repeatable."
)
@click.option(
    "--at", "at", metavar="HUB", multiple=True, help="Hub with a copy of that data (default: all). Repeatable."
)
@click.option("--tenant", metavar="NAME", default=DEFAULT_TENANT, show_default=True, help="Tenant of the workload.")
@fleet_option
@remote_options
def explain(
    workload: str,
    bundle: str,
    tags: tuple[str, ...],
    at: tuple[str, ...],
    tenant: str,
    fleet: str,
    hub: str | None,
    as_json: bool,
) -> int:
    """Show which rules allow or deny a workload at each hub, compiled and Rego side by side.

    FILE is a workload file; an ID or name is looked up at the hub, as are the tags of the data that the work names,
    unless given with --tag. Exit code 4: no hub may run it.
    """
    import asyncio

    from harch.cli.output import emit_json
    from harch.cli.policy.trials import (
        check_hubs,
        data_of,
        data_read,
        explain_at_hubs,
        show_explanations,
        spec_of,
        world_of,
    )
    from harch.sovereignty.policy.evaluation import read_bundle

    rules, world = world_of(fleet)
    check_hubs(at, rules)
    spec = spec_of(workload, hub)
    given = data_of(tags, at or tuple(rules.bits), tenant)
    data = given + data_read(spec.data, given, hub)
    found = read_bundle(bundle)
    with progress_line("evaluating the bundle", as_json):
        answers = asyncio.run(explain_at_hubs(found, rules, world, spec, data, tenant))
    if as_json:
        emit_json({"workload": spec.name, "bundle": found.title, "digest": found.digest, "hubs": answers})
    else:
        show_explanations(spec.name, found, answers)
    return EXIT_OK if any(answer.allowed for answer in answers) else EXIT_REFUSED


@command.command("jurisdictions")
@json_option
def jurisdictions(as_json: bool) -> None:
    """List countries with frameworks, the frameworks, groups of countries, and declared places."""
    from harch.cli.output import emit_json
    from harch.cli.views.table import TableColumn, table
    from harch.sovereignty.jurisdiction_file import jurisdictions_in_force

    known = jurisdictions_in_force()
    if as_json:
        emit_json(known)
        return
    table(
        (
            TableColumn("FRAMEWORK"),
            TableColumn("NAME", 2),
            TableColumn("IN FORCE IN", 1, takes_rest=True),
        ),
        [(law.id, law.name, ", ".join(law.in_force)) for law in known.frameworks.values()],
    )
    click.echo()
    table(
        (
            TableColumn("GROUP"),
            TableColumn("NAME", 2),
            TableColumn("COUNTRIES", 1, takes_rest=True),
        ),
        [(group.id, group.name, ", ".join(group.countries)) for group in known.groups.values()],
    )
    if known.places.entries:
        click.echo()
        table(
            (
                TableColumn("PLACE"),
                TableColumn("COUNTRY", 1),
                TableColumn("NETWORKS", 2),
                TableColumn("NAMES", 3, takes_rest=True),
            ),
            [(one.id, one.country, ", ".join(one.networks), ", ".join(one.names)) for one in known.places.entries],
        )
    click.echo(f"\n{len(known.countries)} countries, by ISO 3166-1 alpha-2 code; --json lists them")


@command.command("diff")
@click.argument("old")
@click.argument("new")
@click.option(
    "--decisions", metavar="N", default=1000, show_default=True, help="Compare on the hub's last N decisions."
)
@remote_options
def diff(old: str, new: str, decisions: int, hub: str | None, as_json: bool) -> int:
    """Show which of a hub's recent decisions would differ under bundle NEW instead of OLD.

    Nothing is changed: both bundles are evaluated locally. Exit code 5: there are differences.
    """
    import asyncio

    import msgspec

    from harch.cli.output import emit_json
    from harch.cli.policy.trials import show_differences
    from harch.sdk.exchange import RetryPolicy
    from harch.sdk.operations import past_decisions, policy_world
    from harch.sovereignty.policy.evaluation import PastDecision, read_bundle, replay

    before, after = read_bundle(old), read_bundle(new)
    with connect(hub) as client:
        rows = client.run(past_decisions(decisions, RetryPolicy()))
        world = client.run(policy_world(RetryPolicy()))
    past = msgspec.convert(rows, list[PastDecision])
    with progress_line("compiling the bundles", as_json) as line:
        progress = functools.partial(line.update, what="evaluating decisions")
        found = asyncio.run(replay(before, after, world, past, progress))
    total = sum(decision.count for decision in past)
    if as_json:
        changed = sum(difference.count for difference in found)
        emit_json({"decisions": total, "changed": changed, "items": found, "old": before.digest, "new": after.digest})
    else:
        show_differences(before, after, total, found, DIFFERENCES_LISTED)
    return EXIT_CHANGES if found else EXIT_OK


@command.command("status")
@remote_options
def status(hub: str | None, as_json: bool) -> None:
    """Show which policy is in force at a hub."""
    from harch.sdk.exchange import RetryPolicy
    from harch.sdk.operations import policy_status

    with connect(hub) as client:
        _show_status(client.run(policy_status(RetryPolicy())), as_json)


@command.command("activate")
@click.argument("bundle")
@remote_options
def activate(bundle: str, hub: str | None, as_json: bool) -> None:
    """Activate a bundle at a hub, for every workload from then on.

    The hub compiles it and runs its tests first. The built-in rules stay in force: a bundle can only forbid more.
    """
    from harch.sdk.exchange import RetryPolicy
    from harch.sdk.operations import activate_policy
    from harch.sovereignty.policy.bundle import bundle_of
    from harch.sovereignty.policy.evaluation import DEFAULT, read_files

    files = read_files(bundle)
    bundle_of(files, shipped=bundle == DEFAULT)  # mistakes are reported before anything is sent
    with connect(hub) as client:
        sent = {name: content.decode() for name, content in files.items()}
        _show_status(client.run(activate_policy(sent, RetryPolicy())), as_json)


@command.command("deactivate")
@remote_options
def deactivate(hub: str | None, as_json: bool) -> None:
    """Deactivate the active bundle of a hub; the built-in rules remain."""
    from harch.sdk.exchange import RetryPolicy
    from harch.sdk.operations import deactivate_policy

    with connect(hub) as client:
        _show_status(client.run(deactivate_policy(RetryPolicy())), as_json)


def _show_status(found: PolicyStatus, as_json: bool) -> None:
    from harch.cli.output import clean, emit_json

    if as_json:
        emit_json(found)
        return
    if not found.active:
        click.echo("no bundle is active; only the built-in rules apply")
        return
    click.echo(f"{clean(found.name)} {clean(found.version)} is active since {clean(found.activated_at)}")
    click.echo(f"digest {clean(found.digest)}")
    if found.problem:
        click.echo(f"it is unusable, so everything is refused: {clean(found.problem)}")
