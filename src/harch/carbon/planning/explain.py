"""Why here and now, or why not yet? A decision in sentences, with its numbers and what they rest on."""

from __future__ import annotations

from harch.carbon.planning.decisions import Decision, Option, Verb
from harch.carbon.planning.outlook import Outlook


def explain(decision: Decision, outlook: Outlook) -> tuple[str, ...]:
    """One sentence per line; the first says what is to happen."""
    lines = [_verdict(decision)]
    chosen, at_once = decision.chosen, decision.at_once
    if chosen is not None:
        lines.append(f"expected there: {_figures(chosen)}")
    if at_once is not None and chosen is not None and (at_once.hub, at_once.start_h) != (chosen.hub, chosen.start_h):
        lines.append(f"at {at_once.hub} at once: {_figures(at_once)}; saves {decision.saves_g:,.0f} g")
    if decision.move_cost_g:
        lines.append(f"moving costs {decision.move_cost_g:,.0f} g: work done twice, restart and transfer")
    lines += [
        f"not {other.hub}: {_figures(other)} if it starts {_when(other.start_h)}"
        for other in decision.options
        if chosen is not None and other.hub != chosen.hub
    ]
    if decision.reason:
        lines.append(decision.reason)
    if chosen is not None:
        rests_on = next(hub.rests_on for hub in outlook.hubs if hub.hub == chosen.hub)
        lines.append(f"rests on: {rests_on}; forecasts, not measurements of what will be")
    return tuple(lines)


def _verdict(decision: Decision) -> str:
    promise = f"starts by {decision.starts_by_h:.1f} h from now at the latest"
    match decision.verb:
        case Verb.START:
            return f"start now at {decision.hub}"
        case Verb.WAIT:
            return f"wait, then start at {decision.hub} {_when(decision.start_h)}; {promise}"
        case Verb.STAY:
            return f"stay at {decision.hub}"
        case Verb.MOVE:
            return f"move to {decision.hub} now"
        case Verb.SUSPEND:
            return f"suspend, go on at {decision.hub} {_when(decision.start_h)}; {promise}"
        case Verb.REFUSE:
            return "no hub and hour will do"


def _when(start_h: int) -> str:
    return "now" if start_h == 0 else f"in {start_h} h"


def _figures(one: Option) -> str:
    return f"{one.grams:,.0f} g, {one.kwh:,.1f} kWh, {one.g_per_kwh:.0f} g/kWh"
