"""What does a batch get for an answer? The active version's, or the canary's for its devices, and never a lost row.

A version that fails, or answers NaN, hands its rows to the next: canary to active, active to the warm previous one.
Only rows that nobody can score are given back as failed, with the reason.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from harch.base.rejection import Rejection
from harch.pipelines.think.counters import Outcome
from harch.pipelines.think.models import LiveVersion, Route, columns_of
from harch.pipelines.think.routing import canary_rows
from harch.pipelines.think.sessions import Array, Session, Tensors, check_outputs, finite_rows, rows_of
from harch.pipelines.think.settings import ModelSettings

Rows = NDArray[np.intp]
Note = Callable[[LiveVersion, Outcome], None]
TimerNs = Callable[[], int]


class Ask(Struct, frozen=True, kw_only=True, eq=False):
    """Rows to score. `tensors` makes a session's inputs of some rows, which it is given in ascending order; `pinned`
    names the only version to ask."""

    rows: int
    tensors: Callable[[Session, Rows], Tensors]
    devices: NDArray[np.generic] | None = None
    pinned: str | None = None


class Part(Struct, frozen=True, kw_only=True, eq=False):
    """Rows of a batch that one version answered, all of them finite."""

    live: LiveVersion
    rows: Rows
    outputs: dict[str, Array]


class Scores(Struct, frozen=True, kw_only=True, eq=False):
    """Every row is in one part, or in `failed`. `raised`: a version raised, so one row may have spoilt the others."""

    parts: list[Part]
    failed: Rows
    reason: Rejection | None
    raised: bool = False


class _Answer(Struct, frozen=True, kw_only=True, eq=False):
    rows: Rows
    outputs: dict[str, Array]
    good: NDArray[np.bool_]
    error: str = ""


def score(settings: ModelSettings, route: Route, ask: Ask, *, note: Note, timer_ns: TimerNs) -> Scores:
    """Asks the versions of the route. `note` hears how each of them did."""
    every = np.arange(ask.rows)
    if ask.pinned is not None:
        chain = [live for live in (route.warm.get(ask.pinned),) if live is not None]
        return _down_the_chain(chain, ask, every, note, timer_ns)
    chain = [live for live in (route.active, route.previous) if live is not None]
    if route.canary is None or ask.devices is None:
        return _down_the_chain(chain, ask, every, note, timer_ns)
    chosen = canary_rows(ask.devices, settings.name, settings.canary_percent)
    if not chosen.any():
        return _down_the_chain(chain, ask, every, note, timer_ns)
    return _with_canary(settings, route.canary, chain, ask, every[chosen], every[~chosen], note, timer_ns)


def score_apart(route: Route, ask: Ask, scores: Scores, *, timer_ns: TimerNs) -> Scores:
    """Finds the rows that make a model raise by trying halves of what failed, and scores the others.

    Only so many runs that one or two bad rows are found: a model that is broken altogether is not asked again for every
    row. Nothing is noted, for the first attempt was.
    """
    chain = [live for live in (route.active, route.previous) if live is not None]
    parts, failed, reason = list(scores.parts), [], scores.reason
    runs_left = 4 * math.ceil(math.log2(max(len(scores.failed), 2)))
    waiting = list(np.array_split(scores.failed, 2))
    while waiting:
        rows = waiting.pop()
        runs_left -= 1
        found = _down_the_chain(chain, ask, rows, lambda live, outcome: None, timer_ns)
        if found.raised and len(rows) > 1 and runs_left > len(waiting):
            waiting += np.array_split(rows, 2)
            continue
        parts += found.parts
        failed.append(found.failed)
        reason = found.reason or reason
    left = np.sort(np.concatenate(failed))
    return Scores(parts=parts, failed=left, reason=reason if len(left) else None)


def compare(settings: ModelSettings, shadow: LiveVersion, ask: Ask, part: Part, *, timer_ns: TimerNs) -> Outcome:
    """What a shadow would have said about rows that were answered by another. Nobody acts on it."""
    answer, outcome = _run(shadow, ask, part.rows, timer_ns)
    if answer.error:
        return outcome
    both = answer.good
    own = Part(live=shadow, rows=part.rows[both], outputs=rows_of(answer.outputs, both))
    other = Part(live=part.live, rows=own.rows, outputs=rows_of(part.outputs, both))
    return _compared(outcome, len(own.rows), _disagreeing(settings, own, other))


def disagreement(ours: Tensors, theirs: Tensors, tolerance: float) -> NDArray[np.bool_]:
    """True for rows where any column differs by more than the tolerance, relative to its size but at least to 1."""
    differs = np.zeros(len(next(iter(ours.values()))), dtype=bool)
    for name, column in ours.items():
        a, b = column.astype(np.float64), theirs[name].astype(np.float64)
        scale = np.maximum(1.0, np.maximum(np.abs(a), np.abs(b)))
        differs |= np.abs(a - b) > tolerance * scale
    return differs


def _disagreeing(settings: ModelSettings, own: Part, other: Part) -> int:
    """By the declared columns: two versions may put the same numbers into tensors of other names and shapes."""
    if not len(own.rows):
        return 0
    ours, theirs = (columns_of(settings, part.live.session, part.outputs, len(own.rows)) for part in (own, other))
    return int(disagreement(ours, theirs, settings.rollback.tolerance).sum())


def _down_the_chain(chain: list[LiveVersion], ask: Ask, rows: Rows, note: Note, timer_ns: TimerNs) -> Scores:
    parts: list[Part] = []
    left, reason, raised = rows, Rejection("model", "paused", "no version is active", "activate one"), False
    for live in chain:
        if not len(left):
            break
        answer, outcome = _run(live, ask, left, timer_ns)
        note(live, outcome)
        if answer.good.all():  # nearly always: nothing has to be picked apart
            parts.append(Part(live=live, rows=left, outputs=answer.outputs))
            return Scores(parts=parts, failed=left[:0], reason=None)
        if answer.good.any():
            parts.append(Part(live=live, rows=left[answer.good], outputs=rows_of(answer.outputs, answer.good)))
        left = left[~answer.good]
        raised = raised or bool(answer.error)
        what = answer.error or "answers NaN or infinity"
        reason = Rejection(f"{live.ref.model}@{live.ref.version}", "output", what, "look at these rows")
    return Scores(parts=parts, failed=left, reason=reason if len(left) else None, raised=raised and len(left) > 0)


def _with_canary(
    settings: ModelSettings,
    canary: LiveVersion,
    chain: list[LiveVersion],
    ask: Ask,
    chosen: Rows,
    others: Rows,
    note: Note,
    timer_ns: TimerNs,
) -> Scores:
    """The canary first; what it cannot answer joins the others. With a rule on disagreement the active version scores
    the canary's rows as well, in the same run, and its answers about them are compared and dropped."""
    answer, outcome = _run(canary, ask, chosen, timer_ns)
    comparing = settings.compares_canary and not answer.error
    again = chosen if comparing else chosen[~answer.good]
    scores = _down_the_chain(chain, ask, np.sort(np.concatenate([others, again])), note, timer_ns)
    own = Part(live=canary, rows=chosen[answer.good], outputs=rows_of(answer.outputs, answer.good))
    if not comparing:
        note(canary, outcome)
        parts = [own, *scores.parts] if len(own.rows) else scores.parts
        return Scores(parts=parts, failed=scores.failed, reason=scores.reason, raised=scores.raised)
    kept: list[Part] = [own] if len(own.rows) else []
    compared = differed = 0
    for part in scores.parts:
        known = np.isin(part.rows, own.rows)
        if known.any():
            rows = part.rows[known]
            mine = Part(live=canary, rows=rows, outputs=rows_of(own.outputs, np.searchsorted(own.rows, rows)))
            theirs = Part(live=part.live, rows=rows, outputs=rows_of(part.outputs, known))
            compared, differed = compared + len(rows), differed + _disagreeing(settings, mine, theirs)
        if not known.all():
            kept.append(Part(live=part.live, rows=part.rows[~known], outputs=rows_of(part.outputs, ~known)))
    note(canary, _compared(outcome, compared, differed))
    failed = scores.failed[~np.isin(scores.failed, own.rows)]
    return Scores(parts=kept, failed=failed, reason=scores.reason if len(failed) else None, raised=scores.raised)


def _run(live: LiveVersion, ask: Ask, rows: Rows, timer_ns: TimerNs) -> tuple[_Answer, Outcome]:
    started_ns = timer_ns()
    try:
        outputs = live.session.run(ask.tensors(live.session, rows))
        check_outputs(live.session.outputs, outputs, len(rows))
    except Exception as error:  # noqa: BLE001 (a model may raise anything: counted, and the next version is asked)
        latency_ms = (timer_ns() - started_ns) / 1e6
        nothing = np.zeros(len(rows), dtype=bool)
        what = f"{type(error).__name__}: {error}"[:300]
        return _Answer(rows=rows, outputs={}, good=nothing, error=what), Outcome(
            rows=len(rows), latency_ms=latency_ms, failed=True
        )
    latency_ms = (timer_ns() - started_ns) / 1e6
    good = finite_rows(outputs, len(rows))
    outcome = Outcome(rows=len(rows), latency_ms=latency_ms, rows_nan=int(len(rows) - good.sum()))
    return _Answer(rows=rows, outputs=outputs, good=good), outcome


def _compared(outcome: Outcome, compared: int, differed: int) -> Outcome:
    return Outcome(
        rows=outcome.rows,
        latency_ms=outcome.latency_ms,
        rows_nan=outcome.rows_nan,
        failed=outcome.failed,
        rows_compared=compared,
        rows_disagreed=differed,
    )
