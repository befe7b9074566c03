"""What was decided about a workload's power, in sentences? With grams, price of moving, what it rests on, and how old.

All grams are forecasts, by location with own plants: estimated, whatever the figures behind them are.
"""

# harch: pure

from __future__ import annotations

from datetime import datetime

from harch.base.counting import counted
from harch.wire.carbon import CarbonChoice, CarbonOption

METHOD = "forecast (estimated), average intensity over the life of the plants, by location, with own plants"
_TIME = "%Y-%m-%d %H:%M:%S UTC"


def describe(choice: CarbonChoice) -> str:
    """In one sentence."""
    promise = f"; starts by {choice.start_by:{_TIME}} at the latest" if choice.start_by is not None else ""
    if choice.held and choice.start_at is not None:
        until = f"until {choice.start_at:{_TIME}} (planned)"
        return f"held back for cleaner power at {choice.hub_id} {until}{promise}"
    words = {"start": "starts at", "wait": "waited for its hour at", "move": "moves to", "suspend": "goes on at"}
    return f"{words.get(choice.action, choice.action)} {choice.hub_id}{promise}"


def sentences(choice: CarbonChoice, now: datetime) -> tuple[str, ...]:
    """Every option that was weighed, one per line; the first line says what was decided."""
    lines = [f"{describe(choice)}; decided {_age(choice.decided_at, now)} ago"]
    chosen, home = choice.chosen, choice.at_once
    if choice.reason:
        lines.append(choice.reason)
    if choice.refused:
        lines.append(f"by the newest plan no hub and hour meets its limits: {choice.refused}")
    if chosen is not None:
        lines.append(f"chosen: {_amounts(chosen)}")
    if home is not None and chosen is not None and _place(home) != _place(chosen):
        lines.append(f"at home at once: {_amounts(home)}; so {choice.saves_g:,.0f} g are saved, if forecasts hold")
    weighed = (option for option in choice.options if chosen is None or option.hub_id != chosen.hub_id)
    lines += [f"not {_amounts(option)}" for option in weighed]
    if choice.move_cost_g:
        lines.append(f"stopping and going on costs {choice.move_cost_g:,.0f} g: work done twice, restart, transfer")
    if choice.moves:
        lines.append(f"suspended or moved {counted(choice.moves, 'time')}; ran {choice.ran_s:,.0f} s before")
    if chosen is not None:
        lines.append(f"method: {METHOD}")
        lines.append(f"based on: {_rests_on(chosen, now)}")
    return tuple(lines)


def _amounts(option: CarbonOption) -> str:
    per_kwh = f"{option.grams / option.kwh:.0f} g/kWh" if option.kwh else "no energy"
    return f"{option.hub_id} from {option.start_at:{_TIME}}: {option.grams:,.0f} g, {option.kwh:,.2f} kWh, {per_kwh}"


def _place(option: CarbonOption) -> tuple[str, datetime]:
    return option.hub_id, option.start_at


def _rests_on(option: CarbonOption, now: datetime) -> str:
    age = f", read {_age(option.data_at, now)} ago" if option.data_at is not None else ""
    return f"{option.rests_on or 'no known data'}{age}"


def _age(moment: datetime, now: datetime) -> str:
    seconds = max((now - moment).total_seconds(), 0.0)
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
