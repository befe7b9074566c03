"""How do verdicts of several rule sets read side by side? For `harch policy explain` and `harch policy diff`."""

from __future__ import annotations

from collections.abc import Sequence

import click
import msgspec
from msgspec import Struct

from harch.base.rejection import Rejection
from harch.cli.output import clean, styled
from harch.sovereignty.compiled import Rules
from harch.sovereignty.gates import WorkAsk, explain_work
from harch.sovereignty.policy.bundle import PolicyBundle
from harch.sovereignty.policy.document import Document, work_question
from harch.sovereignty.policy.judge import Judge
from harch.sovereignty.policy.trial import Difference
from harch.sovereignty.policy.verdict import Verdict
from harch.sovereignty.tags import DataObject
from harch.workloads.spec import WorkloadSpec


class HubAnswer(Struct, frozen=True, kw_only=True):
    """One hub: what counts, and what each set of rules says."""

    hub: str
    allowed: bool
    compiled: bool
    rejections: tuple[Rejection, ...]
    default: Verdict
    bundle: Verdict


async def explain_at_hubs(
    bundle: PolicyBundle,
    rules: Rules,
    world: Document,
    spec: WorkloadSpec,
    data: tuple[DataObject, ...],
    tenant: str,
) -> list[HubAnswer]:
    """Asks the compiled rules, the default policy and the bundle about every hub."""
    ask = WorkAsk(id=spec.name, countries_allowed=spec.countries_allowed, reads=data)
    judge = Judge(bundle, rules, world)
    try:
        await judge.start()
        answers = []
        for hub in rules.bits:
            opinions = await judge.decide(work_question(spec, ask, hub=hub, tenant=tenant))
            answers.append(
                HubAnswer(
                    hub=hub,
                    allowed=opinions.verdict.allowed,
                    compiled=bool(opinions.compiled),
                    rejections=explain_work(rules, ask, hub),
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
    old: PolicyBundle, new: PolicyBundle, total: int, found: Sequence[Difference], shown_max: int
) -> None:
    changed = sum(difference.count for difference in found)
    click.echo(f"{new.title} instead of {old.title}: {changed} of the last {total} decisions would change")
    for difference in found[:shown_max]:
        turn = "would be allowed" if difference.new.allowed else "would be denied"
        click.echo(f"\n{difference.count} x {turn}  {_words(difference.new)}".rstrip())
        for reason in difference.new.reasons or difference.old.reasons:
            click.echo(f"    {clean(reason)}")
        click.echo(f"    {clean(msgspec.json.encode(difference.input).decode())}")
    if len(found) > shown_max:
        click.echo(f"\nand {len(found) - shown_max} more kinds of decision; --json has all of them")


def _mark(passed: bool) -> str:
    return styled("pass" if passed else "FAIL")


def _words(verdict: Verdict) -> str:
    return "" if not verdict.is_fault else f"{verdict.ground.value}: {clean(verdict.detail)}"
