"""How does a "why" read? Every hub, and the rules that say no or nearly do, with marks that need no colour.

For `plan`, `apply` and `why`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from harch.base.errors import EXIT_INFEASIBLE, EXIT_OK, EXIT_REFUSED
from harch.cli.output import age_text, clean, styled
from harch.cli.views.gpu_ids import gpu_ranges

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from harch.sdk.types import Explanation, HubExplanation
    from harch.workloads.spec import WorkloadSpec

CANDIDATES_LISTED = 3
_VERDICTS = {
    "placed": "placed",
    "fits_now": "fits now",
    "must_wait": "must wait",
    "never_fits": "never fits",
    "finished": "finished",
}


_SOURCES = {"live": "live", "unknown": "no contact yet"}


def show(explanation: Explanation, title: str, *, every_rule: bool = False) -> None:
    """First the state, the reason and what would help. `every_rule` False: only rules that say no, or nearly do, and
    no rules about work that has ended."""
    verdict = _VERDICTS.get(explanation.verdict, clean(explanation.verdict))
    click.echo(f"{click.style(clean(title), bold=True)}: {verdict}")
    click.echo(f"  {clean(explanation.sentence)}")
    _show_turn(explanation)
    for task in explanation.placement:
        gpus = gpu_ranges(task.node_id, task.gpu_ids)
        click.echo(f"  task {task.rank} on {clean(task.node_id)}: {clean(gpus)}")
    for hub in explanation.hubs if every_rule or explanation.verdict != "finished" else ():
        if every_rule:
            click.echo()
        holder = hub.hub_id == explanation.runner_hub if explanation.runner_hub else hub.source == "live"
        _show_hub(hub, holds_it=explanation.verdict == "placed" and holder, every_rule=every_rule)


def _show_turn(explanation: Explanation) -> None:
    """What the sentence does not say: turn, reservations, score, predicted speed, and what would help."""
    fix = explanation.nearest_fix if explanation.verdict in {"must_wait", "never_fits"} else ""
    fix = "" if fix in explanation.sentence else fix
    slowdown = explanation.predicted_slowdown
    lines = (
        ("would help", fix),
        ("turn", explanation.turn),
        ("kept free", explanation.kept_free),
        ("score", _parts(explanation.decision)),
        ("links", "" if slowdown is None else f"{slowdown:.2f}x the time of the best possible placement (modelled)"),
    )
    for name, text in lines:
        if text:
            click.echo(f"  {name:<10}  {clean(text)}")
    for text in explanation.power:
        click.echo(f"  {'power':<10}  {clean(text)}")


def _parts(parts: Mapping[str, float]) -> str:
    # + 0.0, because nobody wants to read -0
    return ", ".join(f"{name} {value + 0.0:.3g}" for name, value in parts.items())


def show_plans(specs: Sequence[WorkloadSpec], plans: Sequence[Explanation]) -> None:
    for number, (spec, plan) in enumerate(zip(specs, plans, strict=True)):
        if number:
            click.echo()
        show(plan, spec.name, every_rule=False)


def exit_code_of(explanation: Explanation) -> int:
    """What a plan means for a script. Refused: the asked hub may not run it, whatever its capacity."""
    if explanation.verdict != "never_fits":
        return EXIT_OK
    queried = [hub for hub in explanation.hubs if hub.source == "live"]
    forbidden = any(rule.rule == "residency" and not rule.passed for hub in queried for rule in hub.rules)
    return EXIT_REFUSED if forbidden else EXIT_INFEASIBLE


def _show_hub(hub: HubExplanation, *, holds_it: bool, every_rule: bool) -> None:
    source = _SOURCES.get(hub.source) or f"from its summary, {_age(hub.age_s)}"
    answer = "holds it" if holds_it else _answer(hub)
    country = f" ({clean(hub.country)})" if hub.country else ""
    click.echo(f"{click.style(clean(hub.hub_id), bold=True)}{country}, {source}: {answer}")
    rules = [rule for rule in hub.rules if every_rule or not rule.passed or (rule.is_near and not holds_it)]
    width = max((len(rule.rule) for rule in rules), default=0)
    for rule in rules:
        mark = styled("near" if rule.is_near and not holds_it else "pass" if rule.passed else "FAIL")
        click.echo(f"  {mark}  {clean(rule.rule):<{width}}  {clean(rule.detail)}".rstrip())
        if rule.nearest_fix and not rule.passed:
            click.echo(f"        {'':<{width}}  fix: {clean(rule.nearest_fix)}")
    if not every_rule:
        return
    for candidate in hub.candidates[:CANDIDATES_LISTED]:
        parts = clean(_parts(candidate.parts))
        detail = f" ({parts})" if parts else ""
        score = f"score {candidate.score + 0.0:.3g}{detail}"
        click.echo(f"  node  {clean(candidate.node_id)}: {candidate.gpus_free} GPUs free, {score}")
    if len(hub.candidates) > CANDIDATES_LISTED:
        click.echo(f"  and {len(hub.candidates) - CANDIDATES_LISTED} more nodes")


def _answer(hub: HubExplanation) -> str:
    """Whether waiting may help is part of the answer."""
    if hub.eligible:
        return "could take it"
    if hub.never:
        return "can never take it"
    if hub.source == "unknown" or all(rule.passed for rule in hub.rules):
        return "does not answer"
    return "cannot take it now"


def _age(age_s: float | None) -> str:
    return "of unknown age" if age_s is None else f"{age_text(age_s)} old"
