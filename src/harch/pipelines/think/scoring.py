"""What waits in a model's queue, and what does a batch get for an answer?

The active version's, or the canary's for its devices, and never a lost row.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import accumulate
from typing import Any, Protocol

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from harch.base.errors import HarchError
from harch.base.rejection import Rejection
from harch.pipelines.think.counters import BatchOutcome
from harch.pipelines.think.messages import DroppedRows, InferenceAnswer, Scored, Thought
from harch.pipelines.think.models import LiveVersion, ModelRoute, columns_of, matrix_tensors
from harch.pipelines.think.rollout import canary_rows
from harch.pipelines.think.sessions import Array, Features, ModelSession, Tensors, check_outputs, finite_rows, rows_of
from harch.pipelines.think.settings import ModelSettings

# What does a batch get for an answer? The active version's, or the canary's for its devices, and never a lost row.
#
# A version that fails, or answers NaN, hands its rows to the next: canary to active, active to the warm previous one.
# Only rows that nobody can score are given back as failed, with the reason.


RowIndices = NDArray[np.intp]
Note = Callable[[LiveVersion, BatchOutcome], None]
TimerNs = Callable[[], int]


class ScoreRequest(Struct, frozen=True, kw_only=True, eq=False):
    """Rows to score. `tensors` makes a session's inputs of some rows, which it is given in ascending order; `pinned`
    names the only version to ask."""

    rows: int
    tensors: Callable[[ModelSession, RowIndices], Tensors]
    devices: NDArray[np.generic] | None = None
    pinned: str | None = None


class ScoredPart(Struct, frozen=True, kw_only=True, eq=False):
    """Rows of a batch that one version answered, all of them finite."""

    live: LiveVersion
    rows: RowIndices
    outputs: dict[str, Array]


class Scores(Struct, frozen=True, kw_only=True, eq=False):
    """Every row is in one part, or in `failed`. `raised`: a version raised, so one row may have spoilt the others."""

    parts: list[ScoredPart]
    failed: RowIndices
    reason: Rejection | None
    raised: bool = False


class _Answer(Struct, frozen=True, kw_only=True, eq=False):
    rows: RowIndices
    outputs: dict[str, Array]
    good: NDArray[np.bool_]
    error: str = ""


def score(
    settings: ModelSettings, route: ModelRoute, request: ScoreRequest, *, note: Note, timer_ns: TimerNs
) -> Scores:
    """Asks the versions of the route. `note` hears how each of them did."""
    every = np.arange(request.rows)
    if request.pinned is not None:
        chain = [live for live in (route.warm.get(request.pinned),) if live is not None]
        return _down_the_chain(chain, request, every, note, timer_ns)
    chain = [live for live in (route.active, route.previous) if live is not None]
    if route.canary is None or request.devices is None:
        return _down_the_chain(chain, request, every, note, timer_ns)
    chosen = canary_rows(request.devices, settings.name, settings.canary_percent)
    if not chosen.any():
        return _down_the_chain(chain, request, every, note, timer_ns)
    return _with_canary(settings, route.canary, chain, request, every[chosen], every[~chosen], note, timer_ns)


def score_apart(route: ModelRoute, request: ScoreRequest, scores: Scores, *, timer_ns: TimerNs) -> Scores:
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
        found = _down_the_chain(chain, request, rows, lambda live, outcome: None, timer_ns)
        if found.raised and len(rows) > 1 and runs_left > len(waiting):
            waiting += np.array_split(rows, 2)
            continue
        parts += found.parts
        failed.append(found.failed)
        reason = found.reason or reason
    left = np.sort(np.concatenate(failed))
    return Scores(parts=parts, failed=left, reason=reason if len(left) else None)


def compare(
    settings: ModelSettings, shadow: LiveVersion, request: ScoreRequest, part: ScoredPart, *, timer_ns: TimerNs
) -> BatchOutcome:
    """What a shadow would have said about rows that were answered by another. Nobody acts on it."""
    answer, outcome = _run(shadow, request, part.rows, timer_ns)
    if answer.error:
        return outcome
    both = answer.good
    own = ScoredPart(live=shadow, rows=part.rows[both], outputs=rows_of(answer.outputs, both))
    other = ScoredPart(live=part.live, rows=own.rows, outputs=rows_of(part.outputs, both))
    return _compared(outcome, len(own.rows), _disagreeing(settings, own, other))


def disagreement(ours: Tensors, theirs: Tensors, tolerance: float) -> NDArray[np.bool_]:
    """True for rows where any column differs by more than the tolerance, relative to its size but at least to 1."""
    differs = np.zeros(len(next(iter(ours.values()))), dtype=bool)
    for name, column in ours.items():
        a, b = column.astype(np.float64), theirs[name].astype(np.float64)
        scale = np.maximum(1.0, np.maximum(np.abs(a), np.abs(b)))
        differs |= np.abs(a - b) > tolerance * scale
    return differs


def _disagreeing(settings: ModelSettings, own: ScoredPart, other: ScoredPart) -> int:
    """By the declared columns: two versions may put the same numbers into tensors of other names and shapes."""
    if not len(own.rows):
        return 0
    ours, theirs = (columns_of(settings, part.live.session, part.outputs, len(own.rows)) for part in (own, other))
    return int(disagreement(ours, theirs, settings.rollback.tolerance).sum())


def _down_the_chain(
    chain: list[LiveVersion], request: ScoreRequest, rows: RowIndices, note: Note, timer_ns: TimerNs
) -> Scores:
    parts: list[ScoredPart] = []
    left, reason, raised = rows, Rejection("model", "paused", "no version is active", "activate one"), False
    for live in chain:
        if not len(left):
            break
        answer, outcome = _run(live, request, left, timer_ns)
        note(live, outcome)
        if answer.good.all():  # nearly always: nothing has to be picked apart
            parts.append(ScoredPart(live=live, rows=left, outputs=answer.outputs))
            return Scores(parts=parts, failed=left[:0], reason=None)
        if answer.good.any():
            parts.append(ScoredPart(live=live, rows=left[answer.good], outputs=rows_of(answer.outputs, answer.good)))
        left = left[~answer.good]
        raised = raised or bool(answer.error)
        what = answer.error or "returned NaN or infinity"
        reason = Rejection(f"{live.ref.model}@{live.ref.version}", "output", what, "check these rows")
    return Scores(parts=parts, failed=left, reason=reason if len(left) else None, raised=raised and len(left) > 0)


def _with_canary(
    settings: ModelSettings,
    canary: LiveVersion,
    chain: list[LiveVersion],
    request: ScoreRequest,
    chosen: RowIndices,
    others: RowIndices,
    note: Note,
    timer_ns: TimerNs,
) -> Scores:
    """The canary first; what it cannot answer joins the others. With a rule on disagreement the active version scores
    the canary's rows as well, in the same run, and its answers about them are compared and dropped."""
    answer, outcome = _run(canary, request, chosen, timer_ns)
    comparing = settings.compares_canary and not answer.error
    again = chosen if comparing else chosen[~answer.good]
    scores = _down_the_chain(chain, request, np.sort(np.concatenate([others, again])), note, timer_ns)
    own = ScoredPart(live=canary, rows=chosen[answer.good], outputs=rows_of(answer.outputs, answer.good))
    if not comparing:
        note(canary, outcome)
        parts = [own, *scores.parts] if len(own.rows) else scores.parts
        return Scores(parts=parts, failed=scores.failed, reason=scores.reason, raised=scores.raised)
    kept: list[ScoredPart] = [own] if len(own.rows) else []
    compared = differed = 0
    for part in scores.parts:
        known = np.isin(part.rows, own.rows)
        if known.any():
            rows = part.rows[known]
            mine = ScoredPart(live=canary, rows=rows, outputs=rows_of(own.outputs, np.searchsorted(own.rows, rows)))
            theirs = ScoredPart(live=part.live, rows=rows, outputs=rows_of(part.outputs, known))
            compared, differed = compared + len(rows), differed + _disagreeing(settings, mine, theirs)
        if not known.all():
            kept.append(ScoredPart(live=part.live, rows=part.rows[~known], outputs=rows_of(part.outputs, ~known)))
    note(canary, _compared(outcome, compared, differed))
    failed = scores.failed[~np.isin(scores.failed, own.rows)]
    return Scores(parts=kept, failed=failed, reason=scores.reason if len(failed) else None, raised=scores.raised)


def _run(live: LiveVersion, request: ScoreRequest, rows: RowIndices, timer_ns: TimerNs) -> tuple[_Answer, BatchOutcome]:
    started_ns = timer_ns()
    try:
        outputs = live.session.run(request.tensors(live.session, rows))
        check_outputs(live.session.outputs, outputs, len(rows))
    except Exception as error:  # noqa: BLE001 (a model may raise anything: counted, and the next version is asked)
        latency_ms = (timer_ns() - started_ns) / 1e6
        nothing = np.zeros(len(rows), dtype=bool)
        what = f"{type(error).__name__}: {error}"[:300]
        return _Answer(rows=rows, outputs={}, good=nothing, error=what), BatchOutcome(
            rows=len(rows), latency_ms=latency_ms, failed=True
        )
    latency_ms = (timer_ns() - started_ns) / 1e6
    good = finite_rows(outputs, len(rows))
    outcome = BatchOutcome(rows=len(rows), latency_ms=latency_ms, rows_nan=int(len(rows) - good.sum()))
    return _Answer(rows=rows, outputs=outputs, good=good), outcome


def _compared(outcome: BatchOutcome, compared: int, differed: int) -> BatchOutcome:
    return BatchOutcome(
        rows=outcome.rows,
        latency_ms=outcome.latency_ms,
        rows_nan=outcome.rows_nan,
        failed=outcome.failed,
        rows_compared=compared,
        rows_disagreed=differed,
    )


# What waits in a model's queue? Feature rows or requests, and how each gets its share of a batch's outputs.


class ScoringWork(Protocol):
    """Rows of one origin. `group`: only works of the same group share a run."""

    @property
    def rows(self) -> int: ...

    @property
    def group(self) -> object: ...

    @property
    def score_request(self) -> ScoreRequest: ...

    def finish(self, scores: Scores, settings: ModelSettings, thought: Thought) -> None:
        """Called once, with an answer or a reason for each row."""


def refuse(work: ScoringWork, reason: Rejection, settings: ModelSettings, thought: Thought) -> None:
    """No row of it was scored."""
    work.finish(Scores(parts=[], failed=np.arange(work.rows), reason=reason), settings, thought)


class FeatureWork(Struct, frozen=True, kw_only=True, eq=False):
    """A piece of a feature batch: the complete rows as a matrix, and their places in the batch."""

    features: Features
    matrix: Array
    places: RowIndices

    @property
    def rows(self) -> int:
        return len(self.places)

    @property
    def group(self) -> object:
        return "features"

    @property
    def score_request(self) -> ScoreRequest:
        def tensors(session: ModelSession, rows: RowIndices) -> Tensors:
            return matrix_tensors(session, self.matrix if len(rows) == self.rows else self.matrix[rows])

        return ScoreRequest(rows=self.rows, tensors=tensors, devices=self.features.devices[self.places])

    def finish(self, scores: Scores, settings: ModelSettings, thought: Thought) -> None:
        for part in scores.parts:
            places = self.places[part.rows]
            scored = Scored(
                ref=part.live.ref,
                source=self.features.source,
                rows=places,
                devices=self.features.devices[places],
                outputs=columns_of(settings, part.live.session, part.outputs, len(places)),
            )
            thought.scored.append(scored)
        if scores.reason is not None:
            places = self.places[scores.failed]
            dropped = DroppedRows(model=settings.name, source=self.features.source, rows=places, reason=scores.reason)
            thought.dropped.append(dropped)


class RequestWork(Struct, frozen=True, kw_only=True, eq=False):
    """An inference request. `ticket` comes back with its answer; `pinned` is the version that was asked for."""

    rows: int
    tensors: Tensors
    ticket: Any
    pinned: str | None = None
    device: int | str | None = None

    @property
    def group(self) -> object:
        # Shapes too: rows of another width cannot stand in one tensor.
        shapes = tuple((name, tensor.shape[1:]) for name, tensor in sorted(self.tensors.items()))
        return (self.pinned, type(self.device), shapes)

    @property
    def score_request(self) -> ScoreRequest:
        def tensors(session: ModelSession, rows: RowIndices) -> Tensors:
            return self.tensors if len(rows) == self.rows else rows_of(self.tensors, rows)

        devices: NDArray[Any] | None = None if self.device is None else np.full(self.rows, self.device)
        return ScoreRequest(rows=self.rows, tensors=tensors, devices=devices, pinned=self.pinned)

    def finish(self, scores: Scores, settings: ModelSettings, thought: Thought) -> None:
        if scores.reason is None and len(scores.parts) == 1:
            part = scores.parts[0]
            thought.answers.append(InferenceAnswer(ticket=self.ticket, ref=part.live.ref, tensors=part.outputs))
            return
        # Rows that only an older version could answer would carry a version number that is half true.
        reason = scores.reason or Rejection(
            settings.name, "output", "some rows have no finite output", "check the rows"
        )
        code = {"deadline": "E0507", "paused": "E0501"}.get(reason.rule, "E0508")
        error = HarchError(code, f"{reason.subject}: {reason.detail}", hint=reason.nearest_fix)
        thought.answers.append(InferenceAnswer(ticket=self.ticket, error=error))


class JoinedWork(Struct, frozen=True, kw_only=True, eq=False):
    """Several works of a group as one: they share a run, and each gets its own rows back."""

    items: list[ScoringWork]
    ends: list[int]

    @classmethod
    def of(cls, items: list[ScoringWork]) -> JoinedWork:
        return cls(items=items, ends=list(accumulate(work.rows for work in items)))

    @property
    def rows(self) -> int:
        return self.ends[-1]

    @property
    def group(self) -> object:
        return self.items[0].group

    @property
    def score_request(self) -> ScoreRequest:
        score_requests = [work.score_request for work in self.items]

        def tensors(session: ModelSession, rows: RowIndices) -> Tensors:
            each = [score_request.tensors(session, np.arange(score_request.rows)) for score_request in score_requests]
            whole = {name: np.concatenate([tensors[name] for tensors in each]) for name in each[0]}
            return whole if len(rows) == self.rows else rows_of(whole, rows)

        devices = [score_request.devices for score_request in score_requests if score_request.devices is not None]
        return ScoreRequest(
            rows=self.rows,
            tensors=tensors,
            devices=np.concatenate(devices) if devices else None,
            pinned=score_requests[0].pinned,
        )

    def finish(self, scores: Scores, settings: ModelSettings, thought: Thought) -> None:
        for work, end in zip(self.items, self.ends, strict=True):
            start = end - work.rows
            parts = [_between(part, start, end) for part in scores.parts]
            failed = scores.failed[(scores.failed >= start) & (scores.failed < end)] - start
            own = Scores(
                parts=[part for part in parts if len(part.rows)],
                failed=failed,
                reason=scores.reason if len(failed) else None,
            )
            work.finish(own, settings, thought)


def _between(part: ScoredPart, start: int, end: int) -> ScoredPart:
    """Rows are in ascending order, so a share of them is a slice."""
    first, last = np.searchsorted(part.rows, [start, end])
    share = slice(int(first), int(last))
    return ScoredPart(live=part.live, rows=part.rows[share] - start, outputs=rows_of(part.outputs, share))
