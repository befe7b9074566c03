"""A state that is carried over to other settings gives the windows that these would have given from the start."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from sense_world import Event, batch_of, settings_of, stage_of, take

from harch.pipelines.sense.checkpoint import decode_checkpoint, encode_checkpoint, meaning_of
from harch.pipelines.sense.features import FeatureBatch
from harch.pipelines.sense.settings import ForecastSettings, SenseSettings, WindowSettings
from harch.pipelines.sense.state_migration import carry_problems

TUMBLING = WindowSettings(size_s=1.0, lateness_s=0.5, skew_s=2.0, future_s=2.0)
SLIDING = WindowSettings(size_s=3.0, slide_s=1.0, lateness_s=0.5, skew_s=2.0, future_s=2.0)
OLD = settings_of(metrics=("flow",), windows=SLIDING, forecast=ForecastSettings(span_s=12, step_s=3))
GROWN = replace(
    OLD,
    metrics=("flow", "pressure"),
    devices=(*OLD.devices, "pump-3", "pump-4"),
    devices_max=7,
    windows=replace(SLIDING, skew_s=5.0, lateness_s=0.5),
)


def told(features: list[FeatureBatch], columns: tuple[str, ...]) -> list[tuple[int, list[int], list[list[float]]]]:
    return [
        (
            one.window_end_ns,
            one.device.tolist(),
            np.nan_to_num(one.matrix[:, [_place(one.names, name) for name in columns]], nan=-1.0).tolist(),
        )
        for one in features
    ]


def _place(names: tuple[str, ...], name: str) -> int:
    """A metric that is the only one is not named."""
    return names.index(name if name in names else f"flow.{name}")


def run(first: SenseSettings, second: SenseSettings, events: list[Event], at: int) -> list[FeatureBatch]:
    """Events one by one, with a stage of `second` from number `at` on, which starts from what the other has saved."""
    stage, found = stage_of(first), []
    for seq, event in enumerate(events, start=1):
        if seq == at:
            saved = decode_checkpoint(encode_checkpoint(stage.snapshot()))
            stage = stage_of(second)
            stage.restore(saved, 1000.0)
        found += take(stage, batch_of(seq, [event], mark_s=event[0])).features
    return [*found, *stage.flush().features]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0, 1.5), st.integers(0, 2), st.floats(-9, 9)), min_size=1, max_size=40),
    st.integers(1, 40),
)
def test_more_devices_metrics_and_time_to_wait_change_nothing_of_what_was_counted(
    steps: list[tuple[float, int, float]], at: int
) -> None:
    at_s, events = 10.0, list[Event]()
    for pause_s, device, value in steps:
        at_s = round(at_s + pause_s, 3)
        events.append((at_s, device, 0, float(np.float32(value))))
    columns = (*OLD.statistics, "level", "forecast")
    assert told(run(OLD, GROWN, events, at), columns) == told(run(GROWN, GROWN, events, at), columns)


def test_shorter_windows_of_the_same_slide_go_on_with_the_panes_that_they_need() -> None:
    shorter = replace(OLD, windows=replace(SLIDING, size_s=2.0, skew_s=5.0))
    assert carry_problems(meaning_of(OLD), meaning_of(shorter)) == ()
    events: list[Event] = [(10.0 + 0.5 * step, 0, 0, float(step)) for step in range(20)]
    found = run(OLD, shorter, events, 11)
    later = [one for one in found if one.window_end_ns - one.window_start_ns == 2 * 10**9]
    assert later
    whole = [one.matrix[0, one.names.index("count")] for one in later[:-1]]
    assert whole == [4.0] * len(whole)  # also the first ones, of which half was counted under the old settings


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        ({"aggregate": ("v1",)}, "aggregated"),
        ({"metrics": ("pressure", "flow")}, "metrics"),
        ({"devices_max": 3}, "devices"),
        ({"windows": replace(SLIDING, slide_s=0.5)}, "panes"),
        ({"windows": replace(SLIDING, size_s=4.0)}, "longer"),
        ({"windows": replace(SLIDING, skew_s=0.5, future_s=0.5)}, "wait less"),
        ({"forecast": ForecastSettings(span_s=24, step_s=3)}, "forecast"),
    ],
)
def test_what_cannot_be_carried_over_is_named(changed: dict[str, object], word: str) -> None:
    (why,) = carry_problems(meaning_of(OLD), meaning_of(replace(OLD, **changed)))
    assert word in why


def test_a_forecast_may_begin_or_end() -> None:
    without = replace(OLD, forecast=None)
    events: list[Event] = [(10.0 + step, 0, 0, 1.0) for step in range(12)]
    for one, other in ((OLD, without), (without, OLD)):
        assert carry_problems(meaning_of(one), meaning_of(other)) == ()
        counts = [batch.matrix[0, batch.names.index("count")] for batch in run(one, other, events, 6)]
        assert counts == [1.0, 2.0, *[3.0] * 10, 2.0, 1.0]
