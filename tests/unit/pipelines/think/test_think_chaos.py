"""Whatever happens to versions between batches: is each row answered once, by the version that its output names?"""

from __future__ import annotations

import contextlib
from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from think_models import FunctionSession, add, settings_of, stage_of

from harch.base.errors import HarchError
from harch.pipelines.think.messages import Thought
from harch.pipelines.think.rollout import VersionState
from harch.pipelines.think.sessions import Array, Features
from harch.pipelines.think.settings import BatchingSettings, RollbackRules
from harch.pipelines.think.stage import ThinkStage

KINDS = ("good", "good", "raises", "raises on some", "nan on some", "wrong shape", "wrong type")
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("load"), st.sampled_from(KINDS)),
        st.tuples(st.just("promote"), st.integers(0, 8), st.sampled_from(list(VersionState))),
        st.tuples(st.just("retire"), st.integers(0, 8)),
        st.tuples(st.just("batch"), st.integers(0, 60)),
        st.tuples(st.just("batch"), st.integers(0, 60)),
        st.tuples(st.just("step"), st.just(0)),
    ),
    max_size=40,
)


def session_of(kind: str, factor: float) -> FunctionSession:
    """Answers x times the factor, in its own way; the values of the rows run from 1 to 60."""

    def run(matrix: Array) -> Array:
        x = matrix[:, 0]
        if kind == "raises" or (kind == "raises on some" and (x % 7 == 0).any()):
            raise ValueError(kind)
        if kind == "wrong shape":
            return x[:-1] * np.float32(factor)
        if kind == "wrong type":
            return (x * factor).astype(np.int64)
        answer = x * np.float32(factor)
        return np.where(x % 5 == 0, np.nan, answer).astype(np.float32) if kind == "nan on some" else answer

    return FunctionSession(run)


@settings(deadline=None)
@given(STEPS, st.sampled_from(KINDS), st.booleans(), st.integers(1, 40))
def test_each_row_is_answered_once_by_the_version_that_its_output_names(
    steps: list[tuple], canary: str, compares: bool, rows_max: int
) -> None:
    rules = RollbackRules(rows=50, disagreement_percent_max=30.0 if compares else None)
    batching = BatchingSettings(preferred_rows=(1,), rows_max=rows_max, queue_rows_max=100_000)
    stage = stage_of(settings_of(rollback=rules, canary_percent=40, batching=batching))
    model = stage.models["m"]
    add(model, "0", session_of("good", 1.0), VersionState.ACTIVE)
    add(model, "1", session_of(canary, 2.0), VersionState.CANARY)
    versions, given_rows, seen = 2, 0, Counter()
    sent: Counter[tuple[int, int]] = Counter()

    def collect(thought: Thought) -> None:
        for scored in thought.scored:
            wanted = (scored.rows + 1).astype(np.float32) * np.float32(1 + int(scored.ref.version))
            assert scored.outputs["y"].tolist() == wanted.tolist(), "another version answered than it says"
            seen.update((scored.source, row) for row in scored.rows.tolist())
        for dropped in thought.dropped:
            assert dropped.reason.detail
            seen.update((dropped.source, row) for row in dropped.rows.tolist())

    for number, (what, *how) in enumerate(steps):
        with contextlib.suppress(HarchError):
            if what == "load":
                versions += 1
                add(model, str(versions - 1), session_of(how[0], float(versions)))
            elif what == "promote":
                model.promote(str(how[0]), how[1])
            elif what == "retire":
                model.retire(str(how[0]), reason="test")
            elif what == "batch":
                columns = {"x": np.arange(1.0, how[0] + 1)}
                features = Features(columns=columns, devices=np.arange(how[0]), source=number)
                sent.update((number, row) for row in range(how[0]))
                given_rows += how[0]
                collect(Thought(dropped=stage.submit(features, now_s=0.0)))
            else:
                collect(stage.step(now_s=0.0))
                stage.compare_shadows()
        assert set(model.route.warm) == model.rollout.warm
    drain(stage, collect)
    assert seen == sent
    rows = stage.rows("m")
    assert rows.came == given_rows == rows.scored + rows.failed + rows.refused + rows.late + rows.incomplete


def drain(stage: ThinkStage, collect: object) -> None:
    while stage.waiting("m"):
        collect(stage.step(now_s=0.0))  # type: ignore[operator]
