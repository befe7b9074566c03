"""Do the numbers of THINK appear in the text that Prometheus reads?"""

from __future__ import annotations

import numpy as np
from think_models import add, settings_of, stage_of, times

from harch.base.telemetry import Telemetry
from harch.pipelines.think.features import Features
from harch.pipelines.think.metrics import watch_stage
from harch.pipelines.think.rollout import State


def test_rows_and_versions_are_shown_with_what_became_of_them() -> None:
    stage = stage_of(settings_of())
    telemetry = Telemetry()
    watch_stage(stage, telemetry.meter)
    add(stage.models["m"], "1", times(2), State.ACTIVE)
    stage.think(Features(columns={"x": np.array([1.0, np.nan, 3.0])}, devices=np.arange(3)))
    text = telemetry.exposition().decode()
    assert 'harch_think_rows_total{model="m",outcome="scored"} 2.0' in text
    assert 'harch_think_rows_total{model="m",outcome="incomplete"} 1.0' in text
    assert 'harch_think_version_rows_total{model="m",version="1"} 2.0' in text
    assert 'harch_think_latency_ms{model="m",quantile="0.99",state="active",version="1"}' in text
