from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace
from sense_world import settings_of

from harch.pipelines.sense.features import FeatureMaker
from harch.pipelines.sense.settings import (
    FileSource,
    ForecastSettings,
    HttpSource,
    MqttSource,
    SenseLimits,
    SenseSettings,
    TcpSource,
    WindowSettings,
    sense_problems,
)
from harch.pipelines.wire.columns import EventSchema, SchemaColumn
from harch.pipelines.wire.rows import RowFormat


def test_defaults_have_no_problems() -> None:
    assert sense_problems(SenseSettings()) == []
    assert sense_problems(settings_of()) == []


def test_settings_are_read_from_plain_data() -> None:
    data = {
        "sources": [
            {"kind": "mqtt", "name": "fields", "host": "broker", "topics": ["farm/{device}/{metric}"]},
            {"kind": "http", "name": "gateway", "rows": {"time_unit": "s"}},
        ],
        "windows": {"size_s": 10, "slide_s": 2},
        "forecast": {"horizon_s": 1800},
    }
    found = msgspec.convert(data, SenseSettings)
    assert isinstance(found.sources[0], MqttSource)
    assert isinstance(found.sources[1], HttpSource)
    assert (found.windows.panes_per_window, found.forecast.steps if found.forecast else 0) == (5, 240)


@pytest.mark.parametrize(
    "wrong", [{"windows": {"size": 1}}, {"sources": [{"kind": "ftp", "name": "x"}]}, {"devices_max": 0}]
)
def test_unknown_words_and_kinds_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(wrong, SenseSettings)


@pytest.mark.parametrize(
    ("wrong", "path"),
    [
        (settings_of(schema="tiny"), "schema"),
        (
            settings_of(schema=EventSchema(name="x", columns=(SchemaColumn(name="a", type="u8", role="time"),) * 3)),
            "schema.columns",
        ),
        (settings_of(aggregate=("v7",)), "aggregate[0]"),
        (settings_of(metrics=("a", "a")), "metrics"),
        (settings_of(devices=("a",) * 2), "devices"),
        (settings_of(devices_max=2), "devices"),
        (settings_of(devices_max=100_000), "devices_max"),
        (settings_of(metrics=tuple(f"m{i}" for i in range(300))), "metrics"),
        (settings_of(windows=WindowSettings(size_s=3, slide_s=2)), "windows.slide_s"),
        (settings_of(windows=WindowSettings(size_s=0.001, lateness_s=60)), "windows"),
        (settings_of(windows=WindowSettings(future_s=60)), "windows.future_s"),
        (settings_of(forecast=ForecastSettings(step_s=1, span_s=86_400)), "forecast.step_s"),
        (settings_of(windows=WindowSettings(size_s=7), forecast=ForecastSettings()), "forecast.step_s"),
        (settings_of(limits=SenseLimits(state_bytes_max=1 << 16), devices_max=4000), "limits.state_bytes_max"),
        (settings_of(sources=(TcpSource(name="a"), TcpSource(name="a"))), "sources"),
        (settings_of(sources=(TcpSource(name="a", disorder_s=60),)), "sources[0].disorder_s"),
        (
            settings_of(sources=(FileSource(name="a", path="x", rows=RowFormat(values={"v9": "t"})),)),
            "sources[0].rows.values",
        ),
        (settings_of(metrics=tuple(f"m{i}" for i in range(200))), "statistics"),
    ],
)
def test_each_mistake_is_named_with_its_place(wrong: SenseSettings, path: str) -> None:
    found = sense_problems(wrong)
    assert path in [problem.path for problem in found]
    assert all(problem.message for problem in found)


def test_names_of_features_and_their_number_agree() -> None:
    for chosen in (
        settings_of(),
        settings_of(rows_per="metric"),
        settings_of(forecast=ForecastSettings(), aggregate=("v0", "v1")),
    ):
        assert len(FeatureMaker(chosen).names) == chosen.features


def test_the_ring_holds_all_that_lateness_and_skew_can_keep_open() -> None:
    windows = WindowSettings(size_s=6, slide_s=2, lateness_s=3, skew_s=4)
    assert windows.panes_open >= (3 + 4) / 2 + 1
    assert windows.slots == windows.panes_open + 2
    assert replace(windows, slide_s=None).panes_per_window == 1
