"""Lines of HarchOS's own processes reach SENTINEL once it is there, cost the process nothing, and carry no secrets."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harch.sentinel.collect.loki import read_protobuf, unpacked
from harch.sentinel.log_shipper import records
from harch.sentinel.log_shipper import tail as following_module
from harch.sentinel.log_shipper.records import OWN_LOGGER, ShippedLine, ShippingHandler
from harch.sentinel.log_shipper.shipper import Shipper, push_body
from harch.sentinel.log_shipper.tail import OutputSource, OutputTail, file_source
from harch.sentinel.model import logs
from harch.sentinel.model.labels import Labels
from harch.sentinel.model.logs import LogBatch
from harch.sentinel.node.spool import RequestSpool
from harch.testing.clock import SimClock

HUB: Labels = (("hub", "dakhla"), ("job", "harchos-hub"))
TASK: Labels = (("job", "harchos-task"), ("workload", "train"))


class Sentinel:
    """Answers as it is told to, and reads what it gets as the real one does."""

    def __init__(self) -> None:
        self.status = 204
        self.got: list[tuple[str, LogBatch]] = []

    def __call__(self, body: bytes, tenant: str) -> int:
        if self.status == 0:
            raise ConnectionRefusedError("nobody listens")
        if self.status == 204:
            self.got += [(tenant, batch) for batch in read_protobuf(unpacked(body, 1 << 26)).batches]
        return self.status

    @property
    def bodies(self) -> list[str]:
        return [text for _, batch in self.got for text in batch.bodies]


class World:
    def __init__(self, folder: Path, following: OutputTail | None = None, *, lines_max: int = 100) -> None:
        self.sentinel = Sentinel()
        self.handler = ShippingHandler(lines_max=lines_max)
        self.spool = RequestSpool(folder / "spool", 4000)
        self.shipper = Shipper(HUB, self.handler, self.spool, self.sentinel, SimClock(), following)
        self.log = logging.Logger("test", logging.DEBUG)  # of its own: no other handler hears it
        self.log.addHandler(self.handler)


def test_a_record_becomes_a_line_with_level_logger_and_trace(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.log.warning("placed %s", "w1", extra={"trace_id": "ab" * 16, "span_id": "cd" * 8})
    try:
        raise ValueError("inside")
    except ValueError:
        world.log.exception("it broke")
    world.log.debug("too much")
    world.shipper.step()
    ((tenant, batch),) = world.sentinel.got
    assert (tenant, batch.labels) == ("default", HUB)
    assert batch.bodies[0] == "placed w1"
    assert batch.bodies[1].startswith("it broke\nTraceback")
    assert batch.bodies[1].endswith("ValueError: inside")
    assert dict(batch.metadata[0]) == {
        "level": "warn", "logger": world.log.name, "trace_id": "ab" * 16, "span_id": "cd" * 8,
    }  # fmt: skip
    assert dict(batch.metadata[1])["level"] == "error"


def test_secrets_leave_neither_by_the_network_nor_by_the_spool(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.sentinel.status = 0
    secrets = ["hsk_0123456789abcdef", "Bearer abcdefghijkl", "nats://user:pa55word@host:4222"]
    for secret in secrets:
        world.log.info("using %s", secret)
    world.shipper.step()
    kept = b"".join(unpacked(path.read_bytes(), 1 << 20) for path in (tmp_path / "spool").iterdir())
    assert b"using" in kept
    assert not any(secret.encode() in kept for secret in ("0123456789abcdef", "abcdefghijkl", "pa55word"))


def test_lines_wait_on_disk_while_sentinel_is_away_and_follow_in_order(tmp_path: Path) -> None:
    world = World(tmp_path)
    for status in (0, 503, 429):
        world.sentinel.status = status
        world.log.info("while %d", status)
        world.shipper.step()
    assert len(world.spool) == 3
    again = World(tmp_path)  # the process was started anew
    again.log.info("back")
    again.shipper.step()
    assert again.sentinel.bodies == ["while 0", "while 503", "while 429", "back"]
    assert len(again.spool) == 0


def test_what_has_no_room_is_counted_and_told(tmp_path: Path) -> None:
    world = World(tmp_path, lines_max=10)
    for number in range(25):
        world.log.info("line %d", number)
    assert world.shipper.counts.dropped == 15
    world.shipper.step()
    assert world.sentinel.bodies[0] == "15 lines or pushes of this process were dropped: spool full"
    assert len(world.sentinel.bodies) == 11
    world.log.info("next")
    world.shipper.step()
    assert world.sentinel.bodies[-1] == "next"
    world.sentinel.status = 0
    for number in range(40):
        world.log.info("%d %s", number, number * 7919 * "x"[:1])
        world.shipper.step()
    assert world.spool.held_bytes <= 4000


def test_nothing_that_a_record_does_reaches_the_process(tmp_path: Path) -> None:
    class Odd:
        def __str__(self) -> str:
            raise RuntimeError("no text")

    world = World(tmp_path)
    world.log.info("%s", Odd())
    world.log.info("%d", "no number")
    world.log.info("lone \ud800 surrogate")
    logging.getLogger(OWN_LOGGER).addHandler(world.handler)
    try:
        logging.getLogger(OWN_LOGGER).warning("about shipping itself")
    finally:
        logging.getLogger(OWN_LOGGER).removeHandler(world.handler)
    world.shipper.step()
    assert world.sentinel.bodies[-1] == "lone ? surrogate"
    assert world.handler.dropped == 2


def test_refused_lines_are_not_sent_for_ever(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.sentinel.status = 400
    world.log.info("odd")
    world.shipper.step()
    assert (len(world.spool), world.shipper.counts.refused) == (0, 1)


def test_a_thread_ships_and_the_last_lines_go_out_at_the_end(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.shipper.start()
    world.log.info("last words")
    world.shipper.close()
    assert world.sentinel.bodies == ["last words"]


class Output:
    """A task's output in memory, whose beginning may be rotated away."""

    def __init__(self) -> None:
        self.data, self.gone, self.ended, self.time_ns = b"", 0, False, 1_000_000_000

    def source(self, name: str = "t") -> OutputSource:
        return OutputSource(name, "tenant-a", TASK, self.read, self.ended, (("rank", "0"),))

    def read(self, offset: int, bytes_max: int) -> tuple[int, bytes, int, int]:
        begin = max(offset, self.gone)
        return begin, self.data[begin : begin + bytes_max], len(self.data), self.time_ns


def follower(folder: Path, *outputs: Output) -> OutputTail:
    return OutputTail(folder / "told.json", lambda: [one.source(f"t{at}") for at, one in enumerate(outputs)])


def test_output_of_tasks_goes_to_its_tenant_line_by_line_and_once(tmp_path: Path) -> None:
    output = Output()
    world = World(tmp_path, follower(tmp_path, output))
    output.data = b"one\r\ntwo\nhalf"
    world.shipper.step()
    assert world.sentinel.bodies == ["one", "two"]
    assert world.sentinel.got[0][0] == "tenant-a"
    assert world.sentinel.got[0][1].labels == TASK
    output.data += b" a line\n"
    again = World(tmp_path, follower(tmp_path, output))  # the agent was started anew
    again.shipper.step()
    output.data += b"no end"
    output.ended = True
    again.shipper.step()
    again.shipper.step()
    assert again.sentinel.bodies == ["half a line", "no end"]
    times = [time for _, batch in (*world.sentinel.got, *again.sentinel.got) for time in batch.times_ns]
    assert times[:2] == sorted(times[:2])
    assert times[2:] == sorted(times[2:])


def test_output_waits_where_it_is_while_sentinel_is_away_and_what_is_gone_is_told(tmp_path: Path) -> None:
    output = Output()
    world = World(tmp_path, follower(tmp_path, output))
    world.sentinel.status = 503
    output.data = b"one\ntwo\nthree\n"
    world.shipper.step()
    output.gone = 8
    world.sentinel.status = 204
    world.shipper.step()
    assert world.sentinel.bodies == ["(8 bytes of output were lost before they could be stored)", "three"]
    assert world.shipper.counts.lost_bytes == 8


def test_one_loud_task_does_not_silence_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following_module, "PIECE_BYTES", 100)
    monkeypatch.setattr(following_module, "LOOK_BYTES", 200)
    outputs = [Output() for _ in range(5)]
    for place, output in enumerate(outputs):
        output.data = f"task {place}\n".encode() * 100
    world = World(tmp_path, follower(tmp_path, *outputs))
    for _ in range(3):
        world.shipper.step()
    assert set(world.sentinel.bodies) == {f"task {place}" for place in range(5)}


def test_log_files_of_workers_are_followed_also_when_they_begin_anew(tmp_path: Path) -> None:
    path = tmp_path / "sense-1.log"
    path.write_text("2026-01-01 10:00:00,000 WARNING harch.x slow\nplain\n")
    following = OutputTail(tmp_path / "told.json", lambda: [file_source(path, "t", TASK, (("worker", "sense-1"),))])
    world = World(tmp_path, following)
    world.shipper.step()
    path.write_text("anew\n")
    world.shipper.step()
    path.unlink()
    world.shipper.step()
    assert world.sentinel.bodies == ["2026-01-01 10:00:00,000 WARNING harch.x slow", "plain", "anew"]
    assert world.sentinel.got[0][1].metadata[0] == (("level", "warn"), ("worker", "sense-1"))


@given(
    st.lists(
        st.tuples(
            st.integers(1, 2**62),
            st.text(st.characters(codec="utf-8")),
            st.dictionaries(st.sampled_from("abc"), st.text(st.characters(codec="utf-8"), min_size=1)),
        ),
        min_size=1,
    ),
    st.text(st.characters(codec="utf-8"), min_size=1),
)
def test_what_is_pushed_by_hand_is_what_sentinel_reads(told: list[tuple[int, str, dict[str, str]]], value: str) -> None:
    lines = [ShippedLine(time_ns, text, tuple(sorted(more.items()))) for time_ns, text, more in told]
    (batch,) = read_protobuf(push_body([((("job", value),), lines)])).batches
    assert batch.labels == (("job", value),)
    assert list(batch.times_ns) == [line.time_ns for line in lines]
    assert list(batch.bodies) == [line.text for line in lines]
    assert list(batch.metadata or [()] * len(lines)) == [line.metadata for line in lines]


def test_an_agent_ships_without_numpy() -> None:
    """NumPy alone would take a quarter of an agent's memory."""
    names = "harch.cli.agent_logs, harch.sentinel.log_shipper.shipper, harch.sentinel.log_shipper.records"
    program = f"import sys, {names}; sys.exit('numpy' in sys.modules or 'httpx' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_levels_and_traces_are_called_as_in_the_model() -> None:
    assert (records.LEVEL, records.TRACE_ID, records.SPAN_ID) == (logs.LEVEL, logs.TRACE_ID, logs.SPAN_ID)


def test_a_tenant_that_sentinel_cannot_keep_stops_nobody_else(tmp_path: Path) -> None:
    odd, good = Output(), Output()
    odd.data = good.data = b"said\n"
    names = {"a": ("evil\r\nX-Api-Key: x", odd), "b": ("acme", good)}

    def sources() -> list[OutputSource]:
        return [OutputSource(name, tenant, TASK, output.read) for name, (tenant, output) in names.items()]

    world = World(tmp_path, OutputTail(tmp_path / "told.json", sources))
    world.shipper.step()
    assert [tenant for tenant, _ in world.sentinel.got] == ["acme"]
    assert world.shipper.counts.refused == 1
