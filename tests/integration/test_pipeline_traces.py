"""A pipeline of real processes: SENSE, THINK and ACT tell one trace of each window that is followed."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import msgspec
import pytest
from msgspec import structs
from nats_world import until
from pipeline_world import fields

from harch.base.tracing.spans import FinishedSpan

pytestmark = pytest.mark.timeout(120)
NAMES = {"sense.window", "think.window", "act.window", "act.action"}


async def test_the_stages_of_a_window_meet_in_one_trace(tmp_path: Path) -> None:
    traces: dict[bytes, list[FinishedSpan]] = defaultdict(list)

    def hear(payload: bytes) -> None:
        for span in msgspec.msgpack.decode(payload, type=list[FinishedSpan]):
            traces[span.trace_id].append(span)

    def whole() -> list[FinishedSpan] | None:
        return next((spans for spans in traces.values() if {span.name for span in spans} == NAMES), None)

    async with fields(tmp_path, lambda parts: structs.replace(parts, trace_share=1.0)) as world:
        names = world.pipeline.parts.names
        world.pipeline.engine.admin.client.subscribe(names.spans, lambda message: hear(bytes(message.payload)))
        async with world.feeding():
            await until(lambda: whole() is not None, "a window is told by all stages", within_s=60)
    spans = whole() or []
    by_id = {span.span_id: span for span in spans}
    for span in spans:
        assert (span.parent_id == b"") == (span.name == "sense.window")
        assert not span.parent_id or span.parent_id in by_id
    (thought, *_) = [span for span in spans if span.name == "think.window"]
    assert thought.attributes["model.versions"] == "dryness@1"
    (action, *_) = [span for span in spans if span.name == "act.action"]
    assert action.attributes["action.state"] == "done"
    assert by_id[action.parent_id].name == "act.window"
