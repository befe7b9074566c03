"""Files of workers get new keys before the old ones run out, and only where keys run out."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from harch.hub.pipelines.pipeline import RunningPipeline
from harch.pipelines.engine.keys import LIFE
from harch.testing.clock import SimClock


@pytest.mark.parametrize(
    ("age_days", "life_s", "renewed"),
    [
        (0.5, LIFE.total_seconds(), False),
        (1.5, LIFE.total_seconds(), True),
        (None, LIFE.total_seconds(), True),  # the file is gone
        (400.0, None, False),  # the hub's own engine knows keys until they are taken away
    ],
)
def test_a_file_older_than_a_day_is_written_anew(
    tmp_path: Path, age_days: float | None, life_s: float | None, renewed: bool
) -> None:
    clock, written = SimClock(), []
    path = tmp_path / "think-0.json"
    if age_days is not None:
        path.write_text("{}")
        at_s = clock.now().timestamp() - age_days * 86_400
        os.utime(path, (at_s, at_s))
    pipeline: Any = SimpleNamespace(
        _engine=SimpleNamespace(place=SimpleNamespace(access_life_s=life_s)),
        _clock=clock,
        roster=SimpleNamespace(staying=[SimpleNamespace(name="think-0")]),
        _config_path=lambda name: path,
        _write_config=written.append,
    )
    RunningPipeline._renew_access(cast(RunningPipeline, pipeline))
    assert bool(written) is renewed
