"""The power fails between any two file operations: nothing is lost, nothing is doubled, nothing deleted comes back."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest
from blocks_naive import Model, Sample, bits_of, erased, merged, model_of, selection_of
from faulty_disk import PowerCut, QuickDisk, WatchedDisk, stopping_after

from harch.sentinel.model.labels import Matcher, MatchKind, labels
from harch.sentinel.store.blocks.planning import HOUR_MS, MINUTE_MS, BlockPolicy, Downsampling
from harch.sentinel.store.blocks.tenant import TenantBlocks

POLICY = BlockPolicy(free_bytes_min=0, downsampling=(Downsampling(5 * MINUTE_MS, after_ms=100 * HOUR_MS),))
SECRET = [Matcher(MatchKind.EQUAL, "user", "secret")]
NOW = 104 * HOUR_MS  # the first two hours are old enough to be downsampled
Step = tuple[Callable[[TenantBlocks], object], Callable[[Model], Model]]


def part(hour: int, value: float) -> Model:
    return {
        labels({"__name__": "m", "user": user}): {
            hour * HOUR_MS + minute * MINUTE_MS: Sample(bits_of(value + minute)) for minute in range(0, 120, 7)
        }
        for user in ("secret", "open")
    }


def write(model: Model) -> Step:
    return lambda blocks: blocks.add(selection_of(model)), lambda before: merged([before, model])


def delete(start: int, end: int) -> Step:
    return lambda blocks: blocks.delete(SECRET, start, end), lambda before: erased(before, SECRET, start, end)


def unchanged(model: Model) -> Model:
    return model


STEPS: tuple[Step, ...] = (
    write(part(0, 1.0)),
    write(part(2, 2.0)),
    write(part(0, 1000.0)),  # overlaps the first: what was written later wins
    write(part(6, 3.0)),
    (lambda blocks: blocks.maintain(NOW), unchanged),
    delete(HOUR_MS, 3 * HOUR_MS),
    write(part(2, 5.0)),  # after the deletion: stays
    (lambda blocks: blocks.maintain(NOW), unchanged),
    delete(0, 10 * HOUR_MS),
    (lambda blocks: blocks.purge(NOW), unchanged),
)


def run(folder: Path, disk: WatchedDisk, possible: list[Model]) -> None:
    """Keeps `possible` at what may be found at each moment: the model before and after the step that goes on."""
    model: Model = {}
    blocks = TenantBlocks.open(folder, POLICY, disk=disk)
    for act, effect in STEPS:
        possible[:] = [model, effect(model)]
        act(blocks)
        model = effect(model)
        possible[:] = [model]


def everything(blocks: TenantBlocks) -> Model:
    return model_of(blocks.select([], -(2**62), 2**62, limit=10**9))


@pytest.mark.parametrize("loses_unsynced", [False, True])
def test_a_crash_at_any_operation_loses_and_doubles_nothing(tmp_path: Path, loses_unsynced: bool) -> None:
    folder = tmp_path / "running"
    folder.mkdir()
    possible: list[Model] = [{}]
    crashes: list[list[Model]] = []

    def crash() -> None:
        disk.copy_of_a_crash(folder, tmp_path / str(len(crashes)), loses_unsynced=loses_unsynced)
        crashes.append(list(possible))

    disk = WatchedDisk(crash)
    run(folder, disk, possible)
    assert len(crashes) > 100
    for number, answers in enumerate(crashes):
        crashed = tmp_path / str(number)
        blocks = TenantBlocks.open(crashed, POLICY, disk=QuickDisk())
        assert blocks.problems() == ()
        found = everything(blocks)
        assert found in answers, f"after {number} of {len(crashes)} operations"
        if number % 4 == 0:
            blocks.maintain(NOW)
            assert everything(blocks) == found
        names = {path.name for path in crashed.iterdir()} - {"deletions.json"}
        assert names == {meta.name for meta in blocks.metas()}


def test_a_crash_while_a_crash_is_being_mended_loses_nothing(tmp_path: Path) -> None:
    for stop in range(20, 250, 23):
        folder = tmp_path / str(stop)
        possible: list[Model] = [{}]
        with pytest.raises(PowerCut):
            run(folder, stopping_after(stop), possible)
        for again in range(6):
            with contextlib.suppress(PowerCut):
                TenantBlocks.open(folder, POLICY, disk=stopping_after(again))
        assert everything(TenantBlocks.open(folder, POLICY, disk=QuickDisk())) in possible
