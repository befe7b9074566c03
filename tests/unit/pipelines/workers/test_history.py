"""What was accepted is kept whole, in order and within limits, and gives the same windows again."""

from __future__ import annotations

import os
import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harch.pipelines.sense.devices import DeviceTable
from harch.pipelines.sense.edge import EdgeBatcher, Permit
from harch.pipelines.sense.features import FeatureBatch
from harch.pipelines.sense.gate import PolicyTable, ResidencyGate
from harch.pipelines.sense.quarantine import Quarantine
from harch.pipelines.sense.settings import SenseSettings, WindowSettings
from harch.pipelines.sense.stage import SenseStage
from harch.pipelines.sense.state import StageIdentity
from harch.pipelines.wire.header import BatchHeader, unpack_header
from harch.pipelines.wire.rows import RowFormat, RowReader
from harch.pipelines.workers.config import ReplayCounts
from harch.pipelines.workers.replay_worker import EventReplay
from harch.pipelines.workers.source_storage import KeptBatch, SourceHistory, complete_from_ms, read_history
from unit.pipelines.workers.batches import batch

MS = 1_790_000_000_000
DAY_S = 86_400.0
SENSE = SenseSettings(
    devices=("a", "b"), devices_max=2, statistics=("count", "mean"), windows=WindowSettings(size_s=1.0, lateness_s=0.2)
)


def history(folder: Path, *, accepted: dict[int, int] | None = None, **limits: float) -> SourceHistory:
    age_s, size = limits.get("age_s", DAY_S), int(limits.get("bytes_max", 1 << 30))
    now_ms = int(limits.get("now_ms", MS))
    return SourceHistory(folder, age_s_max=age_s, bytes_max=size, accepted=accepted or {}, now_ms=now_ms)


def seqs(folder: Path) -> list[int]:
    headers = [unpack_header(kept.message) for kept in read_history(folder)]
    return [header.seq for header in headers if isinstance(header, BatchHeader)]


def test_what_was_written_and_then_refused_is_replaced_and_what_a_crash_left_is_cut_off(tmp_path: Path) -> None:
    one = history(tmp_path)
    one.append(MS, [batch(1, [0])])
    one.append(MS + 5, [batch(2, [0, 1, 1])])  # refused after this
    one.append(MS + 9, [batch(2, [1])])  # and sent again, as something else
    one.append(MS + 9, [batch(3, [1])])  # the process dies before this one is accepted
    one.close()
    assert [len(kept.message) for kept in read_history(tmp_path)][1] == len(batch(2, [1]))
    piece = next(tmp_path.glob("*.log"))
    piece.write_bytes(piece.read_bytes() + b"\x99\x00")  # and in the middle of the next write
    two = history(tmp_path, accepted={7: 2})
    assert seqs(tmp_path) == [1, 2]
    two.append(MS + 20, [batch(3, [0])])
    two.close()
    assert seqs(tmp_path) == [1, 2, 3]
    assert complete_from_ms(tmp_path) == 0


def test_the_oldest_go_first_by_age_and_size_and_it_is_known_since_when_all_is_there(tmp_path: Path) -> None:
    kept = history(tmp_path, age_s=160.0, bytes_max=1 << 20)
    for number in range(1, 41):
        kept.append(MS + 10_000 * number, [batch(number, [0])])
    kept.tidy(MS + 400_000)
    assert seqs(tmp_path)[0] == 23
    assert complete_from_ms(tmp_path) == MS + 230_000
    for number in range(41, 61):
        kept.append(MS + 400_000 + number, [batch(number, list(range(2)) * 5000)])  # 160 kB each
        kept.tidy(MS + 400_000 + number)
    assert seqs(tmp_path)[-1] == 60
    assert sum(path.stat().st_size for path in tmp_path.glob("*.log")) <= (1 << 20) + (1 << 18)
    late = history(tmp_path / "late", accepted={7: 100})  # keeping was switched on in mid-life
    late.close()
    assert complete_from_ms(tmp_path / "late") == MS


def five_pieces(folder: Path) -> list[Path]:
    kept = history(folder, age_s=160.0)
    for number in range(1, 41):
        kept.append(MS + 2_000 * number, [batch(number, [0, 1])])
    kept.close()
    return sorted(folder.glob("*.log"))


@pytest.mark.parametrize("seed", range(30))
def test_no_bit_of_what_is_kept_can_change_without_a_word(
    tmp_path: Path, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    pieces = five_pieces(tmp_path)
    assert len(pieces) > 3
    before = list(read_history(tmp_path))
    rng = random.Random(seed)
    path = rng.choice(pieces)
    data = bytearray(path.read_bytes())
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    path.write_bytes(data)
    after, complete = list(read_history(tmp_path)), complete_from_ms(tmp_path)
    assert all(kept in before for kept in after)
    assert len(after) >= len(before) - 1, "what follows is read"
    assert "E1030" in caplog.text
    assert path.with_name(f"{path.name}.damaged").exists()
    assert [kept for kept in before if kept.at_ms >= complete] == [kept for kept in after if kept.at_ms >= complete]
    again = history(tmp_path, accepted={7: 40}, now_ms=MS + 90_000)
    again.append(MS + 100_000, [batch(41, [0])])
    again.close()
    assert list(read_history(tmp_path))[:-1] == after, "nothing else is cut off"


@pytest.mark.parametrize("which", [0, 2, -1])
@pytest.mark.parametrize("left", [0.0, 0.5, 0.99])
def test_a_lost_end_is_known_and_what_is_complete_begins_behind_it(
    tmp_path: Path, which: int, left: float, caplog: pytest.LogCaptureFixture
) -> None:
    pieces = five_pieces(tmp_path)
    before = list(read_history(tmp_path))
    path = pieces[which]
    os.truncate(path, int(left * path.stat().st_size))
    history(tmp_path, accepted={7: 40}, now_ms=MS + 90_000).close()
    after, complete = list(read_history(tmp_path)), complete_from_ms(tmp_path)
    assert len(after) < len(before)
    assert "E1030" in caplog.text
    assert [kept for kept in before if kept.at_ms >= complete] == [kept for kept in after if kept.at_ms >= complete]


def stage() -> SenseStage:
    devices = DeviceTable(SENSE.devices, SENSE.devices_max, SENSE.metrics)
    return SenseStage(StageIdentity("farm", 0), SENSE, devices, ResidencyGate("dakhla", PolicyTable(1, {"dakhla": 0})))


def told(features: list[FeatureBatch]) -> list[tuple[int, list[int], list[list[float]]]]:
    return [(one.window_end_ns, one.device.tolist(), one.matrix.tolist()) for one in features]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 900), st.sampled_from("ab"), st.floats(-5, 5)), min_size=1, max_size=60))
def test_a_replay_gives_the_windows_that_were_told_then(steps: list[tuple[int, str, float]]) -> None:
    live, edge = stage(), EdgeBatcher("web", SENSE, Permit(1, 1), disorder_s=0.3, priority=3)
    reader = RowReader(SENSE.event_schema, DeviceTable(SENSE.devices, 2, SENSE.metrics), RowFormat())
    at_ms, kept, features = MS, [], []
    for ahead_ms, device, value in steps:
        at_ms += 200
        rows = reader.mappings([{"ts": at_ms - ahead_ms, "device": device, "v0": float(np.float32(value))}])
        prepared = edge.prepare(rows, at_ms * 1_000_000)
        edge.commit(prepared, Quarantine(1))
        for message in prepared.messages:
            kept.append(KeptBatch(at_ms, message))
            found = live.take(message, now_ns=at_ms * 1_000_000, now_s=at_ms / 1000)
            features += found.features
            features += live.tick(now_ns=at_ms * 1_000_000, now_s=at_ms / 1000).features
    counts = ReplayCounts()
    replay = EventReplay(stage(), Permit(1, 1), counts)
    again = [one for batch_ in kept for one in replay.take(batch_)]
    assert told(again) == told(features)
    since_ns = (MS + 2000) * 1_000_000
    later = EventReplay(stage(), Permit(1, 1), ReplayCounts(), since_ns=since_ns)
    part = [one for batch_ in kept for one in later.take(batch_)]
    assert told(part) == told([one for one in features if one.window_start_ns >= since_ns])


def test_windows_are_told_whole_or_not_at_all() -> None:
    edge = EdgeBatcher("web", SENSE, Permit(1, 1), disorder_s=0.0, priority=3)
    reader = RowReader(SENSE.event_schema, DeviceTable(SENSE.devices, 2, SENSE.metrics), RowFormat())
    rows = reader.mappings([{"ts": MS + 500 * step, "device": "a", "v0": 1.0} for step in range(8)])
    prepared = edge.prepare(rows, (MS + 4000) * 1_000_000)

    def run(**limits: int) -> tuple[int, int]:
        counts = ReplayCounts()
        replay = EventReplay(stage(), Permit(1, 1), counts, **limits)
        for message in prepared.messages:
            replay.take(KeptBatch(MS + 4000, message))
        replay.finish(now_ms=MS + 4000, is_all=True)
        return counts.windows, counts.windows_cut

    assert run() == (4, 0)
    assert run(since_ns=(MS + 500) * 1_000_000) == (3, 1)
    assert run(until_ns=(MS + 3500) * 1_000_000) == (3, 1)
    assert run(complete_from_ms=MS) == (2, 2)  # what came before may have been two seconds ahead of the clock
