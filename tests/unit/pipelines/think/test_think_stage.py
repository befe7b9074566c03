"""Does every row get an answer or a reason, from one version, whatever versions and swaps there are?"""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from think_models import FunctionSession, add, settings_of, stage_of, times

from harch.pipelines.think.messages import Scored, Thought
from harch.pipelines.think.rollout import VersionState, canary_rows
from harch.pipelines.think.sessions import Array, Features, TensorSpec
from harch.pipelines.think.settings import BatchingSettings, RollbackRules
from harch.pipelines.think.stage import ThinkStage


def features_of(values: list[float], devices: list[int] | None = None, **fields: object) -> Features:
    ids = np.arange(len(values)) if devices is None else np.array(devices)
    return Features(columns={"x": np.array(values)}, devices=ids, **fields)  # type: ignore[arg-type]


def answers(thought: Thought) -> dict[int, tuple[str, float]]:
    """Row to version and output; a row that came twice is an error."""
    found: dict[int, tuple[str, float]] = {}
    for scored in thought.scored:
        for row, value in zip(scored.rows.tolist(), scored.outputs["y"].tolist(), strict=True):
            assert row not in found, "scored twice"
            found[row] = (scored.ref.version, value)
    return found


def raising(matrix: Array) -> Array:
    raise ValueError("no")


def not_a_number(matrix: Array) -> Array:
    return np.where(matrix[:, 0] > 5, np.nan, matrix[:, 0]).astype(np.float32)


def test_outputs_name_the_version_and_its_hash_and_bring_the_source_back() -> None:
    stage = stage_of(settings_of())
    add(stage.models["m"], "1", times(2), VersionState.ACTIVE)
    (scored,) = stage.think(features_of([1, 2, 3], [7, 8, 9], source="window 4")).scored
    assert (scored.ref.model, scored.ref.version, len(scored.ref.sha256)) == ("m", "1", 64)
    assert (scored.source, scored.devices.tolist(), scored.outputs["y"].tolist()) == ("window 4", [7, 8, 9], [2, 4, 6])


def test_a_model_never_sees_a_hole_and_the_rest_of_the_batch_goes_on() -> None:
    stage = stage_of(settings_of())
    add(stage.models["m"], "1", times(2), VersionState.ACTIVE)
    thought = stage.think(features_of([1, np.nan, 3, np.inf, 1e300]))
    assert answers(thought) == {0: ("1", 2.0), 2: ("1", 6.0)}
    (dropped,) = thought.dropped
    assert (dropped.rows.tolist(), dropped.reason.rule) == ([1, 3, 4], "incomplete")
    assert (stage.rows("m").came, stage.rows("m").scored, stage.rows("m").incomplete) == (5, 2, 3)


def test_a_missing_column_is_refused_with_the_names_that_are_there() -> None:
    stage = stage_of(settings_of())
    add(stage.models["m"], "1", times(2), VersionState.ACTIVE)
    thought = stage.think(Features(columns={"z": np.ones(2)}, devices=np.arange(2)))
    assert thought.dropped[0].reason.detail == "`x` is missing; available: z"


def test_a_canary_answers_its_devices_and_no_others() -> None:
    stage = stage_of(settings_of(canary_percent=20))
    add(stage.models["m"], "1", times(1), VersionState.ACTIVE)
    add(stage.models["m"], "2", times(10), VersionState.CANARY)
    ids = list(range(500))
    for _ in range(3):
        found = answers(stage.think(features_of([1.0] * 500, ids)))
        chosen = canary_rows(np.array(ids), "m", 20)
        assert [found[row] for row in ids] == [("2", 10.0) if one else ("1", 1.0) for one in chosen]


@pytest.mark.parametrize("bad", [raising, not_a_number])
def test_rows_that_a_canary_cannot_answer_are_answered_by_the_active_version_and_it_is_rolled_back(bad: object) -> None:
    told = []
    stage = stage_of(settings_of(canary_percent=50, rollback=RollbackRules(rows=100)))
    model = stage.models["m"]
    model._on_change = lambda name, change: told.append(change)
    add(model, "1", times(1), VersionState.ACTIVE)
    add(model, "2", FunctionSession(bad), VersionState.CANARY)  # type: ignore[arg-type]
    for _ in range(3):
        found = answers(stage.think(features_of([9.0] * 40)))
        assert {value for _, value in found.values()} == {9.0}
        assert len(found) == 40
    assert model.rollout.states["2"] is VersionState.RETIRED
    assert "2" not in model.route.warm, "its session is out of memory"
    assert told[-1].by_itself
    assert told[-1].reason.startswith(("errors:", "failures:"))


def test_a_canary_that_disagrees_is_rolled_back_though_nothing_fails() -> None:
    rules = RollbackRules(rows=50, disagreement_percent_max=10.0, tolerance=0.01)
    stage = stage_of(settings_of(canary_percent=50, rollback=rules))
    model = stage.models["m"]
    add(model, "1", times(1), VersionState.ACTIVE)
    add(model, "2", times(1.5), VersionState.CANARY)
    for _ in range(5):
        found = answers(stage.think(features_of([2.0] * 60)))
        assert len(found) == 60
    assert model.rollout.states["2"] is VersionState.RETIRED
    assert {version for version, _ in found.values()} == {"1"}


def test_an_agreeing_canary_with_a_rule_answers_its_rows_once() -> None:
    rules = RollbackRules(rows=50, disagreement_percent_max=10.0)
    stage = stage_of(settings_of(canary_percent=50, rollback=rules))
    add(stage.models["m"], "1", times(3), VersionState.ACTIVE)
    add(stage.models["m"], "2", times(3), VersionState.CANARY)
    values = [float(row + 1) for row in range(200)]
    found = answers(stage.think(features_of(values)))
    assert [found[row][1] for row in range(200)] == [3 * value for value in values]
    assert Counter(version for version, _ in found.values())["2"] == int(canary_rows(np.arange(200), "m", 50).sum())
    watch = stage.models["m"].route.canary.watch  # type: ignore[union-attr]
    assert watch.total.rows_compared == watch.total.rows > 50
    assert watch.total.rows_disagreed == 0


def test_a_new_active_version_that_fails_loses_no_row_and_its_place() -> None:
    stage = stage_of(settings_of(rollback=RollbackRules(failures_in_a_row_max=2, errors_percent_max=None)))
    model = stage.models["m"]
    add(model, "1", times(1), VersionState.ACTIVE)
    add(model, "2", FunctionSession(raising), VersionState.ACTIVE)
    for _ in range(2):
        assert answers(stage.think(features_of([4.0, 5.0]))) == {0: ("1", 4.0), 1: ("1", 5.0)}
    assert model.rollout.active == "1"


def test_what_nobody_can_score_comes_back_with_the_error() -> None:
    stage = stage_of(settings_of())
    add(stage.models["m"], "1", FunctionSession(not_a_number), VersionState.ACTIVE)
    thought = stage.think(features_of([1.0, 9.0]))
    assert answers(thought) == {0: ("1", 1.0)}
    assert thought.dropped[0].rows.tolist() == [1]
    assert "NaN" in thought.dropped[0].reason.detail
    assert stage.rows("m").failed == 1
    assert stage.models["m"].records()[0][1].watch.total.rows_nan == 1


def test_one_bad_row_does_not_take_the_rest_of_a_batch_with_it() -> None:
    def picky(matrix: Array) -> Array:
        if (matrix < 0).any():
            raise ValueError("negative")
        return matrix[:, 0]

    stage = stage_of(settings_of())
    add(stage.models["m"], "1", FunctionSession(picky), VersionState.ACTIVE)
    for number, value in enumerate([1.0, -1.0, 3.0]):
        stage.submit(features_of([value], [number], source=number), now_s=0.0)
    thought = stage.step(now_s=0.0)
    assert sorted(scored.source for scored in thought.scored) == [0, 2]
    assert [dropped.source for dropped in thought.dropped] == [1]
    assert "negative" in thought.dropped[0].reason.detail


@pytest.mark.parametrize("bad_rows", [{0}, {77}, {199}, {20, 21}])
def test_a_row_that_makes_a_model_raise_is_found_within_its_message(bad_rows: set[int]) -> None:
    def picky(matrix: Array) -> Array:
        if (matrix < 0).any():
            raise ValueError("negative")
        return matrix[:, 0]

    stage = stage_of(settings_of())
    add(stage.models["m"], "1", FunctionSession(picky), VersionState.ACTIVE)
    thought = stage.think(features_of([-1.0 if row in bad_rows else row + 1.0 for row in range(200)]))
    assert {row: value for row, (_, value) in answers(thought).items()} == {
        row: row + 1.0 for row in range(200) if row not in bad_rows
    }
    assert [dropped.rows.tolist() for dropped in thought.dropped] == [sorted(bad_rows)]
    assert stage.models["m"].records()[0][1].watch.total.batches_failed == 1, "looking for it is not held against it"


def test_a_broken_model_is_not_asked_again_for_every_row() -> None:
    session = FunctionSession(raising)
    stage = stage_of(settings_of())
    add(stage.models["m"], "1", session, VersionState.ACTIVE)
    thought = stage.think(features_of([1.0] * 4000))
    assert [len(dropped.rows) for dropped in thought.dropped] == [4000]
    assert len(session.rows_seen) < 60


def test_versions_with_other_tensors_are_compared_by_their_columns() -> None:
    """The same two numbers, once as one tensor of two columns and once as two tensors: no disagreement, no crash."""
    two = FunctionSession(lambda matrix: np.repeat(matrix, 2, axis=1))
    two.outputs = (TensorSpec(name="y", dtype="float32", shape=(None, 2)),)
    two.run = lambda tensors: {"y": np.repeat(tensors["x"], 2, axis=1)}  # type: ignore[method-assign]
    apart = FunctionSession(lambda matrix: matrix[:, 0])
    apart.outputs = tuple(TensorSpec(name=name, dtype="float32", shape=(None, 1)) for name in ("b", "a"))
    apart.run = lambda tensors: {"b": tensors["x"], "a": tensors["x"]}  # type: ignore[method-assign]
    rules = RollbackRules(disagreement_percent_max=1.0)
    stage = stage_of(replace(settings_of(rollback=rules, canary_percent=50), outputs=("a", "b")))
    model = stage.models["m"]
    add(model, "1", two, VersionState.ACTIVE)
    add(model, "2", apart, VersionState.CANARY)
    add(model, "3", apart, VersionState.SHADOW)
    stage.think(features_of([float(row) for row in range(1, 101)]))
    stage.compare_shadows()
    for _, record in model.records()[1:]:
        assert record.watch.total.rows_compared > 20
        assert record.watch.total.rows_disagreed == 0


def test_a_shadow_is_compared_after_the_fact_and_answers_nobody() -> None:
    stage = stage_of(settings_of(rollback=RollbackRules(disagreement_percent_max=50.0)))
    model = stage.models["m"]
    add(model, "1", times(1), VersionState.ACTIVE)
    add(model, "2", FunctionSession(lambda matrix: np.where(matrix[:, 0] > 2, 99, matrix[:, 0]).astype("f4")))
    model.promote("2", VersionState.SHADOW)
    found = answers(stage.think(features_of([1.0, 2.0, 3.0, 4.0])))
    assert {version for version, _ in found.values()} == {"1"}
    total = model.route.shadows[0].watch.total
    assert total.rows == 0, "nobody waits for a shadow"
    stage.compare_shadows()
    assert (total.rows, total.rows_compared, total.rows_disagreed) == (4, 4, 2)
    for _ in range(9):
        stage.think(features_of([1.0]))
    assert stage.rows("m").unshadowed == 5


def test_features_of_many_messages_share_a_run() -> None:
    stage = stage_of(settings_of(batching=BatchingSettings(preferred_rows=(64,), rows_max=100)))
    session = times(2)
    add(stage.models["m"], "1", session, VersionState.ACTIVE)
    for number in range(25):
        assert stage.submit(features_of([number + 1.0] * 10, source=number), now_s=0.0) == []
    sources: list[tuple[int, float]] = []
    while stage.wake_s(now_s=0.0) is not None:
        for scored in stage.step(now_s=0.0).scored:
            assert scored.rows.tolist() == list(range(10))
            sources.append((scored.source, float(scored.outputs["y"][0])))
    assert sources == [(number, 2 * (number + 1.0)) for number in range(25)]
    assert session.rows_seen == [100, 100, 50]


BATCHES = st.lists(st.lists(st.floats(allow_nan=True, width=32), max_size=30), max_size=8)


@settings(deadline=None)
@given(BATCHES, st.integers(1, 16), st.integers(0, 20), st.sampled_from([None, "2"]))
def test_every_row_is_accounted_for(batches: list[list[float]], rows_max: int, queue: int, canary: str | None) -> None:
    batching = BatchingSettings(preferred_rows=(1,), rows_max=rows_max, queue_rows_max=rows_max + queue, timeout_ms=5)
    stage = stage_of(settings_of(batching=batching, canary_percent=30))
    add(stage.models["m"], "1", FunctionSession(not_a_number), VersionState.ACTIVE)
    if canary:
        add(stage.models["m"], canary, FunctionSession(raising), VersionState.CANARY)
    seen: Counter[tuple[int, int]] = Counter()

    def collect(thought: Thought) -> None:
        for piece in (*thought.scored, *thought.dropped):
            seen.update((piece.source, row) for row in piece.rows.tolist())
        assert all(isinstance(piece, Scored) or piece.reason.detail for piece in (*thought.scored, *thought.dropped))

    for number, values in enumerate(batches):
        now_s = number * 0.003
        collect(Thought(dropped=stage.submit(features_of(values, source=number), now_s=now_s)))
        if number % 3 == 2:
            collect(stage.step(now_s=now_s))
    while stage.waiting("m"):
        collect(stage.step(now_s=len(batches) * 0.003))
    assert seen == Counter((number, row) for number, values in enumerate(batches) for row in range(len(values)))
    rows = stage.rows("m")
    assert rows.came == len(seen) == rows.scored + rows.incomplete + rows.refused + rows.late + rows.failed


def test_hot_swaps_under_load_lose_nothing(tmp_path: Path) -> None:
    """One thread scores without a pause while another loads, promotes and rolls on through twenty versions."""
    stage = stage_of(settings_of(canary_percent=30), tmp_path)
    model = stage.models["m"]
    add(model, "0", times(1), VersionState.ACTIVE)
    seen: Counter[int] = Counter()
    versions: set[str] = set()
    wrong: list[object] = []
    stop = threading.Event()

    def load_generator(stage: ThinkStage) -> None:
        number = 0
        while not stop.is_set():
            features = features_of([float(number + 1)] * 64, list(range(64)), source=number)
            stage.submit(features, now_s=float(number))
            thought = stage.step(now_s=float(number))
            wrong.extend(thought.dropped)
            for scored in thought.scored:
                factor = 1 + int(scored.ref.version)
                if not (scored.outputs["y"] == np.float32(number + 1) * np.float32(factor)).all():
                    wrong.append(scored)
                seen[scored.source] += len(scored.rows)
                versions.add(scored.ref.version)
            number += 1

    thread = threading.Thread(target=load_generator, args=(stage,))
    thread.start()
    try:
        for number in range(1, 21):
            served = len(seen)
            add(model, str(number), times(1 + number))
            model.promote(str(number), VersionState.CANARY)
            _wait_until(lambda served=served: len(seen) > served + 3)
            model.promote(str(number), VersionState.ACTIVE)
            _wait_until(lambda number=number: str(number) in versions)
    finally:
        stop.set()
        thread.join(timeout=60)
    assert not thread.is_alive()
    assert wrong == []
    assert set(seen) == set(range(len(seen)))
    assert set(seen.values()) == {64}
    assert versions == {str(number) for number in range(21)}
    assert set(model.route.warm) == {"19", "20"}


def _wait_until(true: object, limit_s: float = 60.0) -> None:
    """Polls; the other thread is what is waited for."""
    gate = threading.Event()
    for _ in range(int(limit_s / 0.002)):
        if true():  # type: ignore[operator]
            return
        gate.wait(0.002)
    raise AssertionError("never came true")
