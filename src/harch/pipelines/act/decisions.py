"""Which commands follow from a batch of model outputs? Rules over columns, then arguments for the rows that matched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from harch.pipelines.act.expressions import (
    Args,
    ArgumentTemplate,
    Expression,
    Unfillable,
    read_condition,
    read_template,
)
from harch.pipelines.act.ledger import ActionCommand, CommandStep, make_command
from harch.pipelines.act.settings import ActionSettings, ActSettings

if TYPE_CHECKING:
    from harch.pipelines.think.messages import DecodedOutputs

ALL_DEVICES = "*"


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionBatch:
    """Outputs of a model, one row per device and window. `at_ms` is when the decision was made, and travels with the
    batch: a delivery that comes again gives the same commands, with the same end of life."""

    pipeline: str
    devices: Sequence[str]
    columns: Mapping[str, np.ndarray]
    windows: np.ndarray | int
    at_ms: np.ndarray | int
    juris_mask: int
    policy_version: int = 0
    model: str = ""  # name of the model that decided
    model_hash: str = ""
    trace: str = ""
    again: str = ""  # a replay whose commands are not those of before


@dataclass(frozen=True, slots=True)
class Unmade:
    """An action was called for, and no command could be made of it: becomes a letter."""

    command: ActionCommand
    reason: str


@dataclass(slots=True)
class ActionPlan:
    """What a batch asks for."""

    commands: list[ActionCommand]
    unmade: list[Unmade]
    rows: int
    rows_unfit: int


@dataclass(frozen=True, slots=True)
class _Compiled:
    settings: ActionSettings
    when: Expression
    steps: tuple[tuple[str, ArgumentTemplate, ArgumentTemplate | None], ...]

    def concerns(self, batch: DecisionBatch) -> bool:
        """Each output belongs to one model, so a batch with none of the rule's outputs is that of another model. With
        some of them it is a mistake, which the caller makes a letter of."""
        if self.settings.model:
            return self.settings.model == batch.model
        return not self.when.names or not self.when.names.isdisjoint(batch.columns)


class ActionPlanner:
    """The actions of a pipeline, read once."""

    def __init__(self, settings: ActSettings) -> None:
        self._dry_run = settings.dry_run
        self._actions = tuple(
            _Compiled(
                action,
                read_condition(action.when),
                tuple(
                    (step.sink, read_template(step.args), None if step.undo is None else read_template(step.undo))
                    for step in action.all_steps
                ),
            )
            for action in settings.actions
        )

    def plan(self, batch: DecisionBatch) -> ActionPlan:
        """Pure: the same batch gives the same commands."""
        count = len(batch.devices)
        plan = ActionPlan([], [], count, 0)
        windows = np.broadcast_to(np.asarray(batch.windows, dtype=np.int64), (count,))
        at_ms = np.broadcast_to(np.asarray(batch.at_ms, dtype=np.int64), (count,))
        for action in self._actions:
            if not action.concerns(batch):
                continue
            missing = sorted(action.when.names - set(batch.columns))
            if missing and count:
                reason = f"model `{batch.model}` has no output `{missing[0]}`"
                command = self._command(action, batch, ALL_DEVICES, (), int(windows[0]), int(at_ms[0]))
                plan.unmade.append(Unmade(command, reason))
                continue
            mask, unfit = action.when.mask(batch.columns, count)
            plan.rows_unfit += unfit
            rows = np.flatnonzero(mask)
            if len(rows):
                self._fill(action, batch, rows, windows, at_ms, plan)
        return plan

    def _fill(
        self,
        action: _Compiled,
        batch: DecisionBatch,
        rows: np.ndarray,
        windows: np.ndarray,
        at_ms: np.ndarray,
        plan: ActionPlan,
    ) -> None:
        lacking, filled = "", []
        try:
            filled = [
                (args.columns(batch.columns, rows), None if undo is None else undo.columns(batch.columns, rows))
                for _, args, undo in action.steps
            ]
        except Unfillable as error:
            lacking = str(error)
        for at, row in enumerate(rows):
            device, window, issued_ms = str(batch.devices[row]), int(windows[row]), int(at_ms[row])
            try:
                if lacking:
                    raise Unfillable(lacking)
                steps = tuple(
                    CommandStep(sink, args.fill(device, at, values), _undo(undo, device, at, undo_values))
                    for (sink, args, undo), (values, undo_values) in zip(action.steps, filled, strict=True)
                )
                plan.commands.append(self._command(action, batch, device, steps, window, issued_ms))
            except Unfillable as error:
                command = self._command(action, batch, device, (), window, issued_ms)
                plan.unmade.append(Unmade(command, str(error)))

    def _command(
        self,
        action: _Compiled,
        batch: DecisionBatch,
        device: str,
        steps: tuple[CommandStep, ...],
        window: int,
        at_ms: int,
    ) -> ActionCommand:
        settings = action.settings
        return make_command(
            pipeline=batch.pipeline,
            device=device,
            action=settings.name,
            steps=steps,
            window=window,
            mode=settings.mode,
            issued_ms=at_ms,
            ttl_s=settings.ttl_s,
            priority=settings.priority,
            juris_mask=batch.juris_mask,
            policy_version=batch.policy_version,
            model=batch.model_hash,
            trace=batch.trace,
            dry_run=settings.dry_run or self._dry_run,
            again=batch.again,
        )


def decision_batch(decided: DecodedOutputs, names: Sequence[str]) -> DecisionBatch:
    """What THINK decided, as ACT takes it. `names`: the ids of devices by their numbers, as SENSE's table has them.

    Raises IndexError for a number that the table does not have: then this process has an older table than THINK.
    """
    origin = decided.origin
    return DecisionBatch(
        pipeline=origin.pipeline,
        devices=[names[number] for number in decided.devices.tolist()],
        columns=decided.outputs,
        windows=origin.window_end_ns,
        at_ms=decided.at_ms,
        juris_mask=origin.juris_mask,
        policy_version=origin.policy_version,
        model=decided.ref.model,
        model_hash=decided.ref.sha256,
        again=origin.again,
    )


def _undo(
    undo: ArgumentTemplate | None, device: str, at: int, values: Mapping[str, tuple[np.ndarray, np.ndarray]] | None
) -> Args | None:
    return None if undo is None else undo.fill(device, at, values or {})
