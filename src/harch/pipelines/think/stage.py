"""How does THINK run? Feature batches and inference requests in, outputs out, one step at a time.

`think` scores a batch at once, for a stage fused with SENSE. `submit` and `step` queue and batch, for a stage with a
process of its own and for the inference endpoint. Whoever drives the stage brings the time. One thread drives `step`,
`think` and `compare_shadows`; anything else may come from other threads.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from harch.base.errors import HarchError
from harch.base.rejection import Rejection
from harch.pipelines.think.batcher import Batcher
from harch.pipelines.think.messages import DroppedRows, RowCounters, Thought
from harch.pipelines.think.model_loader import load_rejections, load_version
from harch.pipelines.think.models import ServedModel
from harch.pipelines.think.rollout import RolloutChange, VersionState
from harch.pipelines.think.scoring import (
    FeatureWork,
    JoinedWork,
    RequestWork,
    ScoredPart,
    ScoringWork,
    TimerNs,
    compare,
    refuse,
    score,
    score_apart,
)
from harch.pipelines.think.sessions import Features, Tensors, check_inputs, matrix_of
from harch.pipelines.think.settings import PRIORITY_DEFAULT, ModelRole, ModelSettings, ThinkSettings, VersionSettings
from harch.sovereignty.geography import LegalSite
from harch.sovereignty.tags import Tag

SHADOW_BATCHES_MAX = 4  # that wait for a shadow; beyond it the oldest go without, and are counted
_EWMA = 0.2

TagOf = Callable[[ModelSettings, VersionSettings], Tag | None]


class _Lane:
    """One model with its queue, its counters and what its shadows still have to look at."""

    def __init__(self, model: ServedModel) -> None:
        self.model = model
        self.batcher: Batcher[ScoringWork] = Batcher(model.settings.batching)
        self.rows = RowCounters()
        self.for_shadows: deque[tuple[ScoringWork, ScoredPart]] = deque()


class ThinkStage:
    """All models of one pipeline, at one site. Nothing is loaded until `load`."""

    def __init__(
        self,
        settings: ThinkSettings,
        *,
        site: LegalSite,
        tag_of: TagOf,
        folder: Path,
        on_change: Callable[[str, RolloutChange], None] = lambda model, change: None,
        timer_ns: TimerNs = time.perf_counter_ns,
    ) -> None:
        self.settings = settings
        self._site, self._tag_of, self._folder, self._timer_ns = site, tag_of, folder, timer_ns
        self._lanes = {model.name: _Lane(ServedModel(model, on_change)) for model in settings.models}
        self._lock = Lock()  # around queues and row counters; never held while a model runs

    @property
    def models(self) -> Mapping[str, ServedModel]:
        return {name: lane.model for name, lane in self._lanes.items()}

    def load(self) -> None:
        """Every declared version, in the role that it was given; the active one first, for the others need it."""
        for model in self.settings.models:
            for version in sorted(model.versions, key=lambda item: item.role is not ModelRole.ACTIVE):
                self.load_version(model.name, version)
                if version.role is not ModelRole.LOADED:
                    self.model(model.name).promote(version.version, VersionState(version.role.value), reason="declared")

    def load_version(self, name: str, version: VersionSettings) -> None:
        """One more version, without traffic; the others go on while it loads. E0907, E0502, E0503, E0504, E0509."""
        model = self.model(name)
        tag = self._tag_of(model.settings, version)
        loaded = load_version(model.settings, version, tag=tag, site=self._site, folder=self._folder)
        model.add(version.version, loaded)

    def model(self, name: str) -> ServedModel:
        if name not in self._lanes:
            listed = ", ".join(sorted(self._lanes))
            raise HarchError("E0501", f"no model `{name[:64]}`", hint=f"models: {listed}")
        return self._lanes[name].model

    def rows(self, name: str) -> RowCounters:
        self.model(name)
        return self._lanes[name].rows

    def waiting(self, name: str) -> int:
        """Rows that wait in the queue of a model."""
        self.model(name)
        return self._lanes[name].batcher.rows_waiting

    @property
    def run_s_expected(self) -> float:
        """How long the slowest model's batch takes, as far as is known."""
        return max(lane.batcher.run_s_expected for lane in self._lanes.values())

    @property
    def shadows_wait(self) -> bool:
        return any(lane.for_shadows for lane in self._lanes.values())

    def audit(self, tag_of: Callable[[str, str], Tag | None]) -> list[tuple[str, str, tuple[Rejection, ...]]]:
        """Asks the law again about everything in memory: `tag_of(model, version)` is the tag of today. What may not be
        here is retired and its session dropped; a model whose active version goes is paused. Answers what went."""
        gone = []
        for name, lane in self._lanes.items():
            for version in tuple(lane.model.route.warm):
                if reasons := load_rejections(f"{name}@{version}", tag_of(name, version), self._site):
                    lane.model.retire(version, reason=f"may not be at {self._site.hub}: {reasons[0].detail}")
                    gone.append((name, version, reasons))
        return gone

    # Fused: score now.

    def think(self, features: Features) -> Thought:
        """Every model scores the batch, at most `rows_max` rows at a time, without queue or waiting."""
        thought = Thought()
        for lane in self._lanes.values():
            with self._lock:
                items = self._prepare(lane, features, thought)
            for work in items:
                self._score(lane, [work], thought)
        return thought

    # Own process: queue, then step.

    def submit(self, features: Features, *, now_s: float) -> list[DroppedRows]:
        """Queues the batch for every model, in pieces of at most `rows_max` rows. What was not taken comes back."""
        thought = Thought()
        with self._lock:
            for lane in self._lanes.values():
                self._enqueue(lane, features, thought, now_s)
        return thought.dropped

    def score_request(
        self,
        name: str,
        tensors: Tensors,
        *,
        ticket: Any,
        now_s: float,
        version: str | None = None,
        device: int | str | None = None,
        priority: int = PRIORITY_DEFAULT,
        deadline_s: float | None = None,
    ) -> None:
        """Queues an inference request; its answer comes out of a later step. E0501, E0505, E0506, E0507."""
        lane = self._lanes[self.model(name).settings.name]
        route = lane.model.route
        live = route.warm.get(version) if version is not None else route.active
        if live is None:
            what = f"{name}@{version[:32]}" if version is not None else f"an active version of `{name}`"
            raise HarchError("E0501", f"{what} is not loaded", hint="GET /v2/models/NAME lists its versions")
        rows = check_inputs(live.session.inputs, tensors, rows_max=lane.model.settings.batching.rows_max)
        work = RequestWork(rows=rows, tensors=tensors, ticket=ticket, pinned=version, device=device)
        with self._lock:
            lane.rows.came += rows
            refusal = lane.batcher.offer(work, rows, now_s=now_s, priority=priority, deadline_s=deadline_s)
            lane.rows.refused += rows if refusal is not None else 0
        if refusal is not None:
            code = {"full": "E0506", "deadline": "E0507"}.get(refusal.rule, "E0505")
            raise HarchError(code, f"{refusal.subject}: {refusal.detail}", hint=refusal.nearest_fix, retry_after_s=1)

    def step(self, *, now_s: float) -> Thought:
        """Gives back what is late, and runs at most one batch of each model that is due."""
        thought = Thought()
        for lane in self._lanes.values():
            with self._lock:
                late, batch = lane.batcher.take_late(now_s), lane.batcher.take_batch(now_s)
                lane.rows.late += sum(request.rows for request in late)
            for request in late:
                detail = f"waited {now_s - request.arrived_s:.3f} s and passed its deadline"
                reason = Rejection("request", "deadline", detail, "allow more time, or add a worker")
                refuse(request.payload, reason, lane.model.settings, thought)
            if batch:
                started_ns = self._timer_ns()
                self._run(lane, [request.payload for request in batch], thought)
                took_s = (self._timer_ns() - started_ns) / 1e9
                lane.batcher.run_s_expected += _EWMA * (took_s - lane.batcher.run_s_expected)
        return thought

    def wake_s(self, *, now_s: float) -> float | None:
        """When the next step is worth it if nothing new comes; None if nothing waits."""
        with self._lock:
            wakes = [wake for lane in self._lanes.values() if (wake := lane.batcher.wake_s(now_s)) is not None]
        return min(wakes, default=None)

    def compare_shadows(self) -> None:
        """Lets shadows look at what was answered. Call it after outputs were handed over: nobody waits for a shadow."""
        for lane in self._lanes.values():
            while lane.for_shadows:
                work, part = lane.for_shadows.popleft()
                for shadow in lane.model.route.shadows:
                    outcome = compare(lane.model.settings, shadow, work.score_request, part, timer_ns=self._timer_ns)
                    lane.model.note(shadow, outcome)

    def _enqueue(self, lane: _Lane, features: Features, thought: Thought, now_s: float) -> None:
        for work in self._prepare(lane, features, thought):
            refusal = lane.batcher.offer(
                work, work.rows, now_s=now_s, priority=features.priority, deadline_s=features.deadline_s
            )
            if refusal is not None:
                lane.rows.refused += work.rows
                refuse(work, refusal, lane.model.settings, thought)

    def _prepare(self, lane: _Lane, features: Features, thought: Thought) -> list[ScoringWork]:
        settings = lane.model.settings
        lane.rows.came += features.rows
        every = np.arange(features.rows)
        made = matrix_of(features, settings.inputs)
        if isinstance(made, Rejection):
            lane.rows.refused += features.rows
            thought.dropped.append(DroppedRows(model=settings.name, source=features.source, rows=every, reason=made))
            return []
        matrix, complete = made
        if not complete.all():
            lane.rows.incomplete += int((~complete).sum())
            reason = Rejection("features", "incomplete", "a value is missing, infinite or too large", "check SENSE")
            dropped = DroppedRows(model=settings.name, source=features.source, rows=every[~complete], reason=reason)
            thought.dropped.append(dropped)
            matrix, every = matrix[complete], every[complete]
        size = settings.batching.rows_max
        return [
            FeatureWork(features=features, matrix=matrix[at : at + size], places=every[at : at + size])
            for at in range(0, len(every), size)
        ]

    def _run(self, lane: _Lane, items: list[ScoringWork], thought: Thought) -> None:
        """Features go together; so do requests that ask for the same version."""
        groups: dict[object, list[ScoringWork]] = {}
        for work in items:
            groups.setdefault(work.group, []).append(work)
        for group in groups.values():
            self._score(lane, group, thought)

    def _score(self, lane: _Lane, items: list[ScoringWork], thought: Thought) -> None:
        model = lane.model
        whole = items[0] if len(items) == 1 else JoinedWork.of(items)
        route = model.route
        scores = score(model.settings, route, whole.score_request, note=model.note, timer_ns=self._timer_ns)
        if scores.raised and len(items) > 1:
            # One row may have spoilt the batch for all: each piece is tried alone, and what was scored is not kept.
            for work in items:
                self._score(lane, [work], thought)
            return
        if scores.raised and isinstance(whole, FeatureWork):  # a request is answered as a whole, or not at all
            scores = score_apart(route, whole.score_request, scores, timer_ns=self._timer_ns)
        with self._lock:
            lane.rows.scored += sum(len(part.rows) for part in scores.parts)
            lane.rows.failed += len(scores.failed)
        whole.finish(scores, model.settings, thought)
        for part in scores.parts:
            if route.shadows and part.live is route.active and whole.score_request.pinned is None:
                self._keep_for_shadows(lane, whole, part)

    def _keep_for_shadows(self, lane: _Lane, work: ScoringWork, part: ScoredPart) -> None:
        if len(lane.for_shadows) >= SHADOW_BATCHES_MAX:
            lane.rows.unshadowed += len(lane.for_shadows.popleft()[1].rows)
        lane.for_shadows.append((work, part))
