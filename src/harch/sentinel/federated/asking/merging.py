"""What do all hubs say together? Their answers fill the places of the plan, and the engine evaluates the rest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harch.base.errors import HarchError
from harch.base.rejection import Rejection
from harch.sentinel.federated.asking.partials import NOTHING, PlacesStore, Rows, distinct_rows, rows_of, spread_rows
from harch.sentinel.federated.asking.plans import FederatedPlan, Joining, Place, steps_of
from harch.sentinel.federated.messages import Answer, SeriesTold, Told
from harch.sentinel.promql.evaluate.engine import Engine
from harch.sentinel.promql.evaluate.options import QueryOptions
from harch.sentinel.promql.evaluate.results import QueryResult
from harch.sentinel.promql.syntax.binding import QueryTimes


@dataclass(frozen=True, slots=True)
class Refused:
    """One hub's "no" to one part."""

    hub_id: str
    part: int
    rejection: Rejection


@dataclass(frozen=True, slots=True)
class Merged:
    """The answer of all hubs that told something. It is complete if nobody refused and nothing was suppressed."""

    result: QueryResult
    refused: tuple[Refused, ...] = ()
    suppressed: int = 0  # groups, over all hubs and parts
    warnings: tuple[str, ...] = ()

    @property
    def is_complete(self) -> bool:
        return not self.refused and not self.suppressed


def merge(
    plan: FederatedPlan,
    answers: Sequence[Answer],
    own: Answer | None = None,
    *,
    engine: Engine | None = None,
    options: QueryOptions | None = None,
) -> Merged:
    """One answer. `own` is this hub's; where two hubs tell the same series, the earlier in (own, *answers) counts.

    A hub that refused one part is left out of all: a sum over some hubs is not divided by the count of others. Raises
    E0695 for answers that do not fit the plan, and what the engine raises.
    """
    everyone = [*((own,) if own is not None else ()), *answers]
    for answer in everyone:
        _check(plan, answer)
    warnings: list[str] = []
    filled = []
    willing = [answer for answer in everyone if all(told.refused is None for told in answer.told)]
    for place in plan.places:
        rows, repeated = _filled(place, willing)
        filled.append((place.grid, rows))
        if repeated:
            warnings.append(f"{repeated} series are told by more than one hub; each is counted once")
    chosen = options or QueryOptions()
    settled = QueryOptions(plan.lookback_ms, chosen.timeout_s, chosen.is_cancelled)
    grid = plan.grid
    times = QueryTimes(grid.start_ms, grid.start_ms if plan.is_instant else grid.end_ms, grid.step_ms)
    result = (engine or Engine()).of_tree(plan.expression, plan.rest, times, PlacesStore(filled), settled)
    refused = tuple(
        Refused(answer.hub_id, number, told.refused)
        for answer in everyone
        for number, told in enumerate(answer.told)
        if told.refused is not None
    )
    heard = [(answer.hub_id, told) for answer in everyone for told in answer.told]
    suppressed = sum(told.suppressed for _, told in heard)
    warnings += [f"{hub_id}: {text}" for hub_id, told in heard for text in told.warnings]
    return Merged(result, refused, suppressed, tuple(dict.fromkeys(warnings)))


def _filled(place: Place, answers: Sequence[Answer]) -> tuple[Rows, int]:
    """The rows of a place, and how many series were told twice."""
    steps = place.grid.count
    if not place.parts:
        return NOTHING, 0
    told = [[answer.told[number].series for number in place.parts] for answer in answers]
    if place.joining in (Joining.SPREAD, Joining.DEVIATION):
        return spread_rows(told, steps, place.joining), 0
    together: list[SeriesTold] = [one for parts in told for one in parts[0]]
    if place.joining is Joining.ROWS:
        return rows_of(together, steps), 0
    return distinct_rows(together, steps)


def _check(plan: FederatedPlan, answer: Answer) -> None:
    if len(answer.told) != len(plan.parts):
        raise _unusable(answer, f"{len(answer.told)} parts are told, {len(plan.parts)} were asked")
    for part, told in zip(plan.parts, answer.told, strict=True):
        problem = _problem(told, steps_of(part))
        if problem:
            raise _unusable(answer, problem)


def _problem(told: Told, steps: int) -> str:
    for one in told.series:
        if len(one.at) != len(one.values) or (one.histograms and len(one.histograms) != len(one.at)):
            return "columns of unequal length"
        if any(left >= right for left, right in zip(one.at, one.at[1:], strict=False)):
            return "places out of order"
        if one.at and not 0 <= one.at[0] <= one.at[-1] < steps:
            return "a place outside of the grid"
        names = [name for name, value in one.labels if value]
        if len(names) != len(one.labels) or names != sorted(set(names)):
            return "labels out of order"
    return ""


def _unusable(answer: Answer, reason: str) -> HarchError:
    return HarchError("E0695", f"hub {answer.hub_id}: {reason}")
