"""What waits in a model's queue? Feature rows or requests, and how each gets its share of a batch's outputs."""

from __future__ import annotations

from itertools import accumulate
from typing import Any, Protocol

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from harch.base.errors import HarchError
from harch.base.rejection import Rejection
from harch.pipelines.think.features import Features
from harch.pipelines.think.models import columns_of, matrix_tensors
from harch.pipelines.think.results import Answer, Dropped, Scored, Thought
from harch.pipelines.think.scoring import Ask, Part, Rows, Scores
from harch.pipelines.think.sessions import Array, Session, Tensors, rows_of
from harch.pipelines.think.settings import ModelSettings


class Work(Protocol):
    """Rows of one origin. `group`: only works of the same group share a run."""

    @property
    def rows(self) -> int: ...

    @property
    def group(self) -> object: ...

    @property
    def ask(self) -> Ask: ...

    def finish(self, scores: Scores, settings: ModelSettings, thought: Thought) -> None:
        """Called once, with an answer or a reason for each row."""


def refuse(work: Work, reason: Rejection, settings: ModelSettings, thought: Thought) -> None:
    """No row of it was scored."""
    work.finish(Scores(parts=[], failed=np.arange(work.rows), reason=reason), settings, thought)


class FeatureWork(Struct, frozen=True, kw_only=True, eq=False):
    """A piece of a feature batch: the complete rows as a matrix, and their places in the batch."""

    features: Features
    matrix: Array
    places: Rows

    @property
    def rows(self) -> int:
        return len(self.places)

    @property
    def group(self) -> object:
        return "features"

    @property
    def ask(self) -> Ask:
        def tensors(session: Session, rows: Rows) -> Tensors:
            return matrix_tensors(session, self.matrix if len(rows) == self.rows else self.matrix[rows])

        return Ask(rows=self.rows, tensors=tensors, devices=self.features.devices[self.places])

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
            dropped = Dropped(model=settings.name, source=self.features.source, rows=places, reason=scores.reason)
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
    def ask(self) -> Ask:
        def tensors(session: Session, rows: Rows) -> Tensors:
            return self.tensors if len(rows) == self.rows else rows_of(self.tensors, rows)

        devices: NDArray[Any] | None = None if self.device is None else np.full(self.rows, self.device)
        return Ask(rows=self.rows, tensors=tensors, devices=devices, pinned=self.pinned)

    def finish(self, scores: Scores, settings: ModelSettings, thought: Thought) -> None:
        if scores.reason is None and len(scores.parts) == 1:
            part = scores.parts[0]
            thought.answers.append(Answer(ticket=self.ticket, ref=part.live.ref, tensors=part.outputs))
            return
        # Rows that only an older version could answer would carry a version number that is half true.
        reason = scores.reason or Rejection(
            settings.name, "output", "some rows have no finite output", "check the rows"
        )
        code = {"deadline": "E0507", "paused": "E0501"}.get(reason.rule, "E0508")
        error = HarchError(code, f"{reason.subject}: {reason.detail}", hint=reason.nearest_fix)
        thought.answers.append(Answer(ticket=self.ticket, error=error))


class JoinedWork(Struct, frozen=True, kw_only=True, eq=False):
    """Several works of a group as one: they share a run, and each gets its own rows back."""

    works: list[Work]
    ends: list[int]

    @classmethod
    def of(cls, works: list[Work]) -> JoinedWork:
        return cls(works=works, ends=list(accumulate(work.rows for work in works)))

    @property
    def rows(self) -> int:
        return self.ends[-1]

    @property
    def group(self) -> object:
        return self.works[0].group

    @property
    def ask(self) -> Ask:
        asks = [work.ask for work in self.works]

        def tensors(session: Session, rows: Rows) -> Tensors:
            each = [ask.tensors(session, np.arange(ask.rows)) for ask in asks]
            whole = {name: np.concatenate([tensors[name] for tensors in each]) for name in each[0]}
            return whole if len(rows) == self.rows else rows_of(whole, rows)

        devices = [ask.devices for ask in asks if ask.devices is not None]
        return Ask(
            rows=self.rows,
            tensors=tensors,
            devices=np.concatenate(devices) if devices else None,
            pinned=asks[0].pinned,
        )

    def finish(self, scores: Scores, settings: ModelSettings, thought: Thought) -> None:
        for work, end in zip(self.works, self.ends, strict=True):
            start = end - work.rows
            parts = [_between(part, start, end) for part in scores.parts]
            failed = scores.failed[(scores.failed >= start) & (scores.failed < end)] - start
            own = Scores(
                parts=[part for part in parts if len(part.rows)],
                failed=failed,
                reason=scores.reason if len(failed) else None,
            )
            work.finish(own, settings, thought)


def _between(part: Part, start: int, end: int) -> Part:
    """Rows are in ascending order, so a share of them is a slice."""
    first, last = np.searchsorted(part.rows, [start, end])
    share = slice(int(first), int(last))
    return Part(live=part.live, rows=part.rows[share] - start, outputs=rows_of(part.outputs, share))
