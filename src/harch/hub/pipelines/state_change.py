"""What becomes of SENSE's state when a file changes? Carried over, or lost, and then somebody has to say so. Pure."""

from __future__ import annotations

from harch.base.errors import HarchError
from harch.pipelines.sense.carrying import carry_problems
from harch.pipelines.sense.checkpoint import meaning_of
from harch.pipelines.spec.settings import PipelineSpec


def lost_state(before: PipelineSpec, after: PipelineSpec) -> tuple[str, ...]:
    """Why what SENSE has saved is of no use any more; nothing: it goes on with it."""
    found = list(carry_problems(meaning_of(before.sense), meaning_of(after.sense)))
    if before.sense.partitions != after.sense.partitions:
        found.append(f"devices move from {before.sense.partitions} to {after.sense.partitions} partitions")
    return tuple(found)


def check_state(before: PipelineSpec, after: PipelineSpec, *, is_running: bool, drop_state: bool) -> None:
    """Raises E0711 for what cannot be done to a pipeline that runs, E0757 for a loss that nobody has agreed to."""
    name = after.name
    lost = lost_state(before, after)
    if lost and is_running:
        raise HarchError(
            "E0711",
            f"`{name}` has windows open that would mean something else: {'; '.join(lost)}",
            hint=f"`harch pipeline drain {name} -w`, then apply with --drop-state; {_loss(before)} would be lost",
        )
    if is_running and before.sense.event_schema.id != after.sense.event_schema.id:
        raise HarchError(
            "E0711",
            f"events of `{name}` get another form, and some of the old form are under way",
            hint=f"`harch pipeline drain {name} -w`, then apply; its windows are kept",
        )
    if lost and not drop_state:
        raise HarchError(
            "E0757",
            f"`{name}` would begin without its state: {'; '.join(lost)}",
            hint=f"add --drop-state to give it up: {_loss(before)}",
        )


def _loss(spec: PipelineSpec) -> str:
    windows, forecast = spec.sense.windows, spec.sense.forecast
    open_s = windows.size_s + windows.lateness_s + windows.skew_s
    words = f"what was counted in windows that are open, of at most the last {open_s:g} s"
    return words + (f", and {forecast.span_s:g} s of history for the forecast" if forecast is not None else "")
