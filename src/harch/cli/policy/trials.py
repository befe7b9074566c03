"""What would rule sets decide on this machine's facts?

The fleet as the rules see it, a workload and tags from files; verdicts side by side. For `harch policy explain` and
`diff`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec
from msgspec import Struct

from harch.base.errors import HarchError
from harch.base.rejection import Rejection
from harch.cli.output import clean, styled
from harch.cli.remote import connect
from harch.sovereignty.compiled import Rules
from harch.sovereignty.gates import AccessRequest, explain_work
from harch.sovereignty.policy.bundle import PolicyBundle
from harch.sovereignty.policy.document import Document, work_question
from harch.sovereignty.policy.evaluation import Difference, PolicyEvaluator
from harch.sovereignty.policy.verdict import PolicyVerdict
from harch.sovereignty.tags import DataObject
from harch.workloads.spec import WorkloadSpec

if TYPE_CHECKING:
    from harch.sovereignty.compiled import Rules
    from harch.sovereignty.tags import DataObject
    from harch.workloads.spec import WorkloadSpec


class HubAnswer(Struct, frozen=True, kw_only=True):
    """One hub: what counts, and what each set of rules says."""

    hub: str
    allowed: bool
    compiled: bool
    rejections: tuple[Rejection, ...]
    default: PolicyVerdict
    bundle: PolicyVerdict


async def explain_at_hubs(
    bundle: PolicyBundle,
    rules: Rules,
    world: Document,
    spec: WorkloadSpec,
    data: tuple[DataObject, ...],
    tenant: str,
) -> list[HubAnswer]:
    """Asks the compiled rules, the default policy and the bundle about every hub."""
    work = AccessRequest(id=spec.name, countries_allowed=spec.countries_allowed, reads=data)
    judge = PolicyEvaluator(bundle, rules, world)
    try:
        await judge.start()
        answers = []
        for hub in rules.bits:
            opinions = await judge.decide(work_question(spec, work, hub=hub, tenant=tenant))
            answers.append(
                HubAnswer(
                    hub=hub,
                    allowed=opinions.verdict.allowed,
                    compiled=bool(opinions.compiled),
                    rejections=explain_work(rules, work, hub),
                    default=opinions.default or opinions.bundle,
                    bundle=opinions.bundle,
                )
            )
        return answers
    finally:
        await judge.close()


def show_explanations(name: str, bundle: PolicyBundle, answers: Sequence[HubAnswer]) -> None:
    click.echo(f"{click.style(clean(name), bold=True)}, by {bundle.title} ({bundle.digest[:16]})")
    for answer in answers:
        verdict = "may run it" if answer.allowed else "may not run it"
        click.echo(f"\n{click.style(answer.hub, bold=True)}: {verdict}")
        click.echo(f"  {_mark(answer.compiled)}  compiled rules")
        for rejection in answer.rejections:
            click.echo(f"          {rejection.rule}: {clean(rejection.detail)}")
        for title, opinion in (("default policy", answer.default), (bundle.manifest.name, answer.bundle)):
            click.echo(f"  {_mark(opinion.allowed)}  {title} (Rego) {_words(opinion)}".rstrip())
            for reason in opinion.reasons:
                click.echo(f"          {clean(reason)}")


def show_differences(
    old: PolicyBundle, new: PolicyBundle, total: int, found: Sequence[Difference], listed_max: int
) -> None:
    changed = sum(difference.count for difference in found)
    click.echo(f"{new.title} instead of {old.title}: {changed} of the last {total} decisions would change")
    for difference in found[:listed_max]:
        turn = "would be allowed" if difference.new.allowed else "would be denied"
        click.echo(f"\n{difference.count} x {turn}  {_words(difference.new)}".rstrip())
        for reason in difference.new.reasons or difference.old.reasons:
            click.echo(f"    {clean(reason)}")
        click.echo(f"    {clean(msgspec.json.encode(difference.input).decode())}")
    if len(found) > listed_max:
        click.echo(f"\nand {len(found) - listed_max} more kinds of decision; --json has all of them")


def _mark(passed: bool) -> str:
    return styled("pass" if passed else "FAIL")


def _words(verdict: PolicyVerdict) -> str:
    return "" if not verdict.is_fault else f"{verdict.ground.value}: {clean(verdict.detail)}"


# What are policies asked about, on this machine? The fleet as the rules see it, a workload, and tags from files.


TAG_BYTES_MAX = 64 * 1024


def world_of(fleet: str) -> tuple[Rules, dict[str, object]]:
    """The compiled rules of a fleet, and the document that policies see as `data.world`."""
    from harch.cli.process import open_fleet
    from harch.sovereignty.compiled import Rules
    from harch.sovereignty.geography import terrain_of
    from harch.sovereignty.jurisdiction_file import jurisdictions_in_force
    from harch.sovereignty.policy.document import world_document

    jurisdictions = jurisdictions_in_force()
    terrain = terrain_of(open_fleet(fleet), jurisdictions)
    return Rules(terrain), world_document(terrain, jurisdictions)


def spec_of(file_or_id: str, hub: str | None) -> WorkloadSpec:
    """The first workload of a file, or what the hub knows under that id or name."""
    from harch.cli.inputs import read_workloads
    from harch.workloads.check import checked
    from harch.workloads.spec import WorkloadSpec

    if file_or_id == "-" or Path(file_or_id).is_file():
        return read_workloads(file_or_id)[0]
    with connect(hub) as client:
        found = client.workloads.get(file_or_id)
    own = {field.name for field in msgspec.structs.fields(WorkloadSpec)}  # beside them stand those of other clients
    return checked({name: value for name, value in found.spec.items() if name in own and value is not None})


def data_of(files: tuple[str, ...], hubs: tuple[str, ...], tenant: str) -> tuple[DataObject, ...]:
    """Data objects with the tags of these files, as if copies of them were at these hubs."""
    from harch.sovereignty.jurisdiction_file import jurisdictions_in_force
    from harch.sovereignty.tags import DataKind, DataObject, parse_tag

    return tuple(
        DataObject(
            id=Path(file).stem,
            kind=DataKind.DATASET,
            name=Path(file).stem,
            tenant=tenant,
            tag=parse_tag(_read(file), jurisdictions_in_force(), where=file),
            hubs=hubs,
        )
        for file in files
    )


def data_read(names: tuple[str, ...], given: tuple[DataObject, ...], hub: str | None) -> tuple[DataObject, ...]:
    """Data that a workload names and no file describes, as the hub knows it: without it everything would be allowed.

    Raises what the hub says: E0906 for data that it does not know.
    """
    from harch.sovereignty.jurisdiction_file import jurisdictions_in_force
    from harch.sovereignty.tags import DataKind, DataObject, parse_tag

    missing = [name for name in names if name not in {data.name for data in given}]
    if not missing:
        return ()
    try:
        with connect(hub) as client:
            found = [client.data.get(name) for name in missing]
    except HarchError as error:
        if error.code != "E0802":
            raise
        raise HarchError(
            error.code,
            f"it reads {', '.join(missing)}, and only a hub knows their tags: {error.message}",
            hint="start the hub, or describe the data with --tag NAME.yaml",
        ) from error
    return tuple(
        DataObject(
            id=data.id,
            kind=DataKind(data.kind),
            name=data.name,
            tenant=data.tenant,
            tag=None if data.tag is None else parse_tag(data.tag, jurisdictions_in_force(), where=data.name),
            hubs=data.hubs,
        )
        for data in found
    )


def check_hubs(named: tuple[str, ...], rules: Rules) -> None:
    """Raises E0305 for a hub that the fleet does not have."""
    for hub in named:
        if hub not in rules.bits:
            known = ", ".join(rules.bits)
            raise HarchError("E0305", f"no hub named `{hub[:64]}`", hint=f"use one of {known}", field="at")


def _read(file: str) -> object:
    import yaml

    try:
        with Path(file).open("rb") as stream:
            return yaml.safe_load(stream.read(TAG_BYTES_MAX))
    except OSError as error:
        raise HarchError("E0202", f"{file} cannot be read: {error.strerror}", hint="give the path of a tag") from error
    except yaml.YAMLError as error:
        raise HarchError("E0202", f"{file} is not YAML: {error}", hint="write the tag as YAML or JSON") from error
