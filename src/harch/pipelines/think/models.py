"""Which sessions serve a model right now? Loaded versions, their roles, and the value that a batch reads: its route.

A change replaces the route as a whole. A batch takes the route once and keeps it to its end, so a swap falls between
batches, needs no pause and loses nothing. Loading happens outside of the lock, while the others go on.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from harch.base.errors import HarchError
from harch.pipelines.think import rollout as life
from harch.pipelines.think.counters import BatchOutcome, VersionWatch
from harch.pipelines.think.model_loader import LoadedModel
from harch.pipelines.think.rollout import Rollout, RolloutChange, VersionState
from harch.pipelines.think.sessions import Array, ModelSession, Tensors, check_outputs, zeros
from harch.pipelines.think.settings import ModelSettings

RETIRED_MAX = 16  # versions that are remembered after they were retired
_LIVE = (VersionState.SHADOW, VersionState.CANARY, VersionState.ACTIVE)


class VersionRef(Struct, frozen=True, kw_only=True):
    """Who made an output. The hash is that of the bytes which were loaded."""

    model: str
    version: str
    sha256: str


class LiveVersion(Struct, frozen=True, kw_only=True, eq=False):
    ref: VersionRef
    session: ModelSession
    watch: VersionWatch


class VersionRecord(Struct, frozen=True, kw_only=True, eq=False):
    """A version for people to look at; `device` is where it runs or ran. Retired ones are remembered, not kept."""

    ref: VersionRef
    device: str
    watch: VersionWatch


class ModelRoute(Struct, frozen=True, kw_only=True, eq=False):
    """Who answers in one batch. `warm` holds every session in memory, by version."""

    active: LiveVersion | None = None
    previous: LiveVersion | None = None
    canary: LiveVersion | None = None
    shadows: tuple[LiveVersion, ...] = ()
    warm: dict[str, LiveVersion] = {}


class ServedModel:
    """One model of a pipeline. `told` hears of every change of state, e.g. to write it into the audit chain. It is
    called while the model is locked, so it must be quick and must not call back."""

    def __init__(self, settings: ModelSettings, on_change: Callable[[str, RolloutChange], None]) -> None:
        self.settings = settings
        self.rollout = Rollout(model=settings.name)
        self.route = ModelRoute()
        self._on_change = on_change
        self._records: dict[str, VersionRecord] = {}
        self._lock = Lock()

    def add(self, version: str, loaded: LoadedModel) -> None:
        """A checked and warmed session becomes `loaded`; it gets no traffic yet. E0503 if it does not fit the model."""
        warm_up(self.settings, loaded.session)
        ref = VersionRef(model=self.settings.name, version=version, sha256=loaded.sha256)
        with self._lock:
            after, changes = life.loaded(self.rollout, version)
            live = LiveVersion(ref=ref, session=loaded.session, watch=VersionWatch(self.settings.rollback))
            self._records[version] = VersionRecord(ref=ref, device=loaded.session.device, watch=live.watch)
            self._apply(after, changes, {**self.route.warm, version: live})

    def promote(self, version: str, to: VersionState, *, reason: str = "requested") -> None:
        with self._lock:
            self._apply(*life.promote(self.rollout, version, to, reason=reason), self.route.warm)

    def learn_rules(self, settings: ModelSettings) -> None:
        """Another share of the canary and other rules, from the next batch on; nothing else of the settings changes."""
        with self._lock:
            self.settings = replace(
                self.settings,
                canary_percent=settings.canary_percent,
                rollback=settings.rollback,
                promote=settings.promote,
            )
            for record in self._records.values():
                record.watch.rules = settings.rollback

    def retire(self, version: str, *, reason: str) -> None:
        with self._lock:
            self._apply(*life.retire(self.rollout, version, reason=reason), self.route.warm)

    def note(self, live: LiveVersion, outcome: BatchOutcome) -> None:
        """Counts what a version did, and takes its role away where a rule says so."""
        with self._lock:
            reason = live.watch.note(outcome)
            version = live.ref.version
            # A batch may end after its version was replaced; its late outcome is counted, and judges nobody else.
            if reason is not None and self.route.warm.get(version) is live:
                why = f"{reason.rule}: {reason.detail}"
                self._apply(*life.roll_back(self.rollout, version, reason=why), self.route.warm)

    def records(self) -> tuple[tuple[VersionState, VersionRecord], ...]:
        """Every version that is known, with its state, in the order in which they came."""
        with self._lock:
            return tuple((state, self._records[version]) for version, state in self.rollout.states.items())

    def _apply(self, after: Rollout, changes: list[RolloutChange], sessions: dict[str, LiveVersion]) -> None:
        for change in changes:
            if change.after in _LIVE:
                self._records[change.version].watch.begin_role()
        self.rollout = self._without_the_oldest(after)
        # Whoever is left out here loses its session; a batch that is still running keeps it to its end.
        warm = {version: sessions[version] for version in self.rollout.warm}
        self.route = ModelRoute(
            active=warm.get(self.rollout.active or ""),
            previous=warm.get(self.rollout.previous or ""),
            canary=warm.get(self.rollout.canary or ""),
            shadows=tuple(warm[version] for version in self.rollout.shadows),
            warm=warm,
        )
        for change in changes:
            self._on_change(self.settings.name, change)

    def _without_the_oldest(self, after: Rollout) -> Rollout:
        gone = [version for version in after.states if version not in after.warm][:-RETIRED_MAX]
        for version in gone:
            del self._records[version]
        states = {version: state for version, state in after.states.items() if version not in gone}
        return Rollout(model=after.model, states=states, previous=after.previous)


def warm_up(settings: ModelSettings, session: ModelSession) -> None:
    """E0503 unless rows of the declared columns go in and come out. First runs are slow, so they happen here."""
    wanted = len(settings.inputs)
    if len(session.inputs) == 1:
        width = session.inputs[0].row_shape
        if len(width) != 1 or width[0] not in (None, wanted):
            raise _unfit(settings, f"takes {list(width)} values per row, but {wanted} input columns are declared")
    elif len(session.inputs) != wanted or any(spec.row_shape not in ((), (1,)) for spec in session.inputs):
        raise _unfit(settings, f"has {len(session.inputs)} inputs, not one per declared column")
    for rows in sorted({1, *settings.batching.preferred_rows}):
        try:
            answer = session.run(_blank(settings, session, rows))
            check_outputs(session.outputs, answer, rows)
            columns_of(settings, session, answer, rows)
        except Exception as error:  # a runtime may raise anything; whatever it is, this model is not served
            raise _unfit(settings, f"fails on {rows} rows of zeros: {error}") from error


def columns_of(settings: ModelSettings, session: ModelSession, outputs: Tensors, rows: int) -> dict[str, Array]:
    """Tensors as the declared output columns: by name if the names are the same, else in order."""
    names = settings.outputs
    if len(outputs) == len(names) > 1 and set(outputs) == set(names):
        return {name: outputs[name].reshape(rows, -1)[:, 0] for name in names}
    flat = np.concatenate([outputs[spec.name].reshape(rows, -1) for spec in session.outputs], axis=1)
    if flat.shape[1] != len(names):
        raise _unfit(settings, f"returns {flat.shape[1]} values per row, but {len(names)} output columns are declared")
    return {name: flat[:, index] for index, name in enumerate(names)}


def matrix_tensors(session: ModelSession, matrix: Array) -> dict[str, Array]:
    """A matrix of features as the session's inputs: whole, or one input for each column."""
    if len(session.inputs) == 1:
        spec = session.inputs[0]
        return {spec.name: matrix.astype(spec.dtype, copy=False)}
    return {
        spec.name: matrix[:, index].astype(spec.dtype).reshape(len(matrix), *(1 for _ in spec.row_shape))
        for index, spec in enumerate(session.inputs)
    }


def _blank(settings: ModelSettings, session: ModelSession, rows: int) -> dict[str, Array]:
    if len(session.inputs) == 1:
        return matrix_tensors(session, np.zeros((rows, len(settings.inputs)), dtype=np.float32))
    return zeros(session.inputs, rows)


def _unfit(settings: ModelSettings, what: str) -> HarchError:
    return HarchError(
        "E0503", f"a version of `{settings.name}` {what}", hint="make `inputs` and `outputs` match the model"
    )
