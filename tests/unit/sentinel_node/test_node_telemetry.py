"""A node tells its figures in one request, keeps what cannot be sent, and never more than its share of the disk."""

from __future__ import annotations

import asyncio
import os
import struct
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cramjam
import pytest

from harch.sentinel.node.gpus import NvidiaGpus
from harch.sentinel.node.sender import Frame, MetricSender
from harch.sentinel.node.sensors import Host, RunningTask, SensorReading, TaskUsage, series
from harch.sentinel.node.spool import RequestSpool
from harch.testing.clock import SimClock

NOW = 1_700_000_000_000


def decoded(body: bytes) -> list[tuple[dict[str, str], float, int]]:
    """A remote-write request, read by hand from the protocol's description."""
    found = []
    for _, message in _fields(body):
        pairs, value, time = {}, 0.0, 0
        for number, inner in _fields(message):
            if number == 1:
                texts = dict(_fields(inner))
                pairs[texts[1].decode()] = texts[2].decode()
            else:
                fields = dict(_fields(inner))
                value, time = struct.unpack("<d", fields[1])[0], fields[2]
        found.append((pairs, value, time))
    return found


def _fields(body: bytes) -> Iterator[tuple[int, Any]]:
    at = 0
    while at < len(body):
        key, at = _varint(body, at)
        if key & 7 == 2:
            size, at = _varint(body, at)
            yield key >> 3, body[at : at + size]
            at += size
        elif key & 7 == 1:
            yield key >> 3, body[at : at + 8]
            at += 8
        else:
            number, at = _varint(body, at)
            yield key >> 3, number


def _varint(body: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = body[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at


def test_a_frame_changes_only_its_values_until_the_series_change() -> None:
    frame = Frame([("hub_name", "dakhla"), ("job", "node")])
    one = [SensorReading(series("a", {"cpu": "0"}), 1.5), SensorReading(series("b", {"job": "gpu"}), -0.0)]
    assert decoded(bytes(frame.filled(one, NOW))) == [
        ({"__name__": "a", "cpu": "0", "hub_name": "dakhla", "job": "node"}, 1.5, NOW),
        ({"__name__": "b", "hub_name": "dakhla", "job": "gpu"}, 0.0, NOW),
    ]
    two = [SensorReading(one[0].labels, 2.5), one[1]]
    assert [value for _, value, _ in decoded(bytes(frame.filled(two, NOW + 15_000)))] == [2.5, 0.0]
    three = [*two, SensorReading(series("c"), 3.0)]
    assert len(decoded(bytes(frame.filled(three, NOW)))) == 3


def test_a_clock_before_1971_is_said_and_not_sent() -> None:
    with pytest.raises(ValueError, match="clock"):
        Frame([]).filled([SensorReading(series("a"), 1.0)], 12)


def test_labels_are_sorted_and_long_ones_survive() -> None:
    frame = Frame([("z", "x" * 300)])
    ((pairs, _, _),) = decoded(bytes(frame.filled([SensorReading(series("a"), 1.0)], NOW)))
    assert pairs["z"] == "x" * 300
    assert list(pairs) == sorted(pairs)


def test_the_machine_is_read_from_proc(tmp_path: Path) -> None:
    (tmp_path / "stat").write_text("cpu  9 9 9 9\ncpu0 100 0 50 1000 5 0 1 0 0 0\nbtime 1690000000\n")
    (tmp_path / "meminfo").write_text("MemTotal:       1000 kB\nMemAvailable:    400 kB\nOther: 1 kB\n")
    (tmp_path / "net").mkdir()
    (tmp_path / "net" / "dev").write_text("h\nh\n  lo: 1 0 0 0 0 0 0 0 1 0 0\n eth0: 10 1 2 0 0 0 0 0 20 1 3 0\n")
    (tmp_path / "loadavg").write_text("0.5 0.25 0.125 1/2 3\n")
    found = {dict(reading.labels)["__name__"]: reading.value for reading in Host(tmp_path).read()}
    assert found["node_memory_MemTotal_bytes"] == 1024_000
    assert found["node_network_transmit_bytes_total"] == 20
    assert found["node_load1"] == 0.5
    assert found["node_boot_time_seconds"] == 1_690_000_000
    assert "node_disk_read_bytes_total" not in found  # there is no such file, and that is no reason to lose the rest


def test_this_machine_can_be_read() -> None:
    names = {dict(reading.labels)["__name__"] for reading in Host().read()}
    assert {"node_cpu_seconds_total", "node_memory_MemTotal_bytes", "node_load1"} <= names


class NvmlDouble:
    """The functions of the driver's library, with the shapes of one real card (H200, driver 580)."""

    class NVMLError(Exception):
        pass

    NVML_TEMPERATURE_GPU = NVML_MEMORY_ERROR_TYPE_UNCORRECTED = NVML_AGGREGATE_ECC = NVML_CLOCK_SM = 1
    nvmlClocksThrottleReasonHwSlowdown = 8
    nvmlClocksThrottleReasonSwThermalSlowdown = 32
    nvmlClocksThrottleReasonHwThermalSlowdown = 64
    nvmlClocksThrottleReasonHwPowerBrakeSlowdown = 128

    def __getattr__(self, name: str) -> Any:
        answers = {
            "nvmlInit": lambda: None,
            "nvmlDeviceGetCount": lambda: 1,
            "nvmlDeviceGetHandleByIndex": lambda index: index,
            "nvmlDeviceGetName": lambda gpu: "NVIDIA H200",
            "nvmlDeviceGetUUID": lambda gpu: "GPU-222b92b5",
            "nvmlDeviceGetUtilizationRates": lambda gpu: SimpleNamespace(gpu=97, memory=40),
            "nvmlDeviceGetMemoryInfo": lambda gpu: SimpleNamespace(used=644_939_776, total=150_754_820_096),
            "nvmlDeviceGetTemperature": lambda gpu, kind: 35,
            "nvmlDeviceGetPowerUsage": lambda gpu: 79_762,
            "nvmlDeviceGetEnforcedPowerLimit": lambda gpu: 700_000,
            "nvmlDeviceGetTotalEnergyConsumption": lambda gpu: 5_196_408,
            "nvmlDeviceGetClockInfo": lambda gpu, kind: 345,
            "nvmlDeviceGetCurrentClocksThrottleReasons": lambda gpu: 64,
        }
        if name not in answers:
            raise self.NVMLError(name)
        return answers[name]

    def nvmlDeviceGetTotalEccErrors(self, *_: object) -> int:
        raise self.NVMLError("not supported")


def test_gpus_are_told_under_the_names_that_dashboards_know() -> None:
    found = {dict(reading.labels)["__name__"]: reading for reading in NvidiaGpus(NvmlDouble()).read()}
    assert found["harchos_gpu_utilization_percent"].value == 97
    assert found["harchos_gpu_power_draw_watts"].value == pytest.approx(79.762)
    assert found["harchos_gpu_vram_total_bytes"].value == 150_754_820_096
    assert found["harchos_gpu_throttled"].value == 1.0
    assert dict(found["harchos_gpu_temperature_celsius"].labels)["deviceName"] == "NVIDIA H200"
    assert "harchos_gpu_ecc_uncorrected_errors_total" not in found  # a card without the sensor is no failure


def test_a_spool_keeps_order_over_a_restart_and_stays_below_its_limit(tmp_path: Path) -> None:
    spool = RequestSpool(tmp_path, bytes_max=25)
    for body in (b"a" * 10, b"b" * 10, b"c" * 10):
        spool.add(body)
    assert spool.dropped == 1
    again = RequestSpool(tmp_path, bytes_max=25)
    assert again.oldest() == b"b" * 10
    again.take()
    assert again.oldest() == b"c" * 10
    again.take()
    assert again.oldest() is None
    assert again.held_bytes == 0
    again.add(b"d" * 26)
    assert (len(again), again.dropped) == (0, 1)


def test_a_body_that_is_not_as_it_was_written_is_set_aside_and_never_sent(tmp_path: Path) -> None:
    spool = RequestSpool(tmp_path)
    for body in (b"first body", b"second body"):
        spool.add(body)
    (tmp_path / "000000000000.rw").write_bytes(b"of an older release")
    path = next(tmp_path.glob("000000000001-*.rw"))
    path.write_bytes(b"firsT body")
    again = RequestSpool(tmp_path)
    sent = []
    while (body := again.oldest()) is not None:
        sent.append(body)
        again.take()
    assert sent == [b"of an older release", b"second body"]
    assert again.dropped == 1
    assert path.with_name(f"{path.name}.damaged").read_bytes() == b"firsT body"


class _Sensor:
    def read(self) -> Iterator[SensorReading]:
        yield SensorReading(series("load"), 1.0)


async def test_what_cannot_be_sent_waits_and_is_sent_in_order(tmp_path: Path) -> None:
    clock = SimClock()
    taken: list[bytes] = []
    statuses: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        assert "Authorization: Bearer secret" in head
        size = int(head.lower().partition("content-length: ")[2].partition("\r\n")[0])
        body = await reader.readexactly(size)
        status = statuses.pop(0) if statuses else 204
        if status == 204:
            taken.append(body)
        writer.write(f"HTTP/1.1 {status} x\r\nContent-Length: 0\r\n\r\n".encode())
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    spool = RequestSpool(tmp_path)
    sender = MetricSender(f"http://127.0.0.1:{port}/api/v1/write", lambda: "secret", [], [_Sensor()], spool, clock)
    statuses.extend([503, 503])
    await sender.step()
    await sender.step()
    assert (len(spool), taken) == (2, [])
    await sender.step()
    assert len(spool) == 0
    names = [decoded(bytes(cramjam.snappy.decompress_raw(body)))[0][0]["__name__"] for body in taken]
    assert names == ["load"] * 3
    statuses.append(400)  # refused for good: sending it again would only block the others
    await sender.step()
    assert len(spool) == 0
    server.close()
    await sender.step()  # nobody listens any more
    assert len(spool) == 1


def _process(proc: Path, pid: int, session: int, ticks: int, pages: int) -> None:
    (proc / str(pid)).mkdir(exist_ok=True)
    behind = ["S", "1", str(pid), str(session), *["0"] * 7, str(ticks), "0", *["0"] * 8, str(pages), "0"]
    (proc / str(pid) / "stat").write_text(f"{pid} (a (strange) name) {' '.join(behind)}\n")


def test_work_is_told_with_all_processes_of_its_session(tmp_path: Path) -> None:
    now = [0.0]
    ticks, page = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
    usage = TaskUsage(lambda: [RunningTask("wl_1", 10)], lambda: now[0], tmp_path)
    _process(tmp_path, 10, 9, ticks, 100)
    _process(tmp_path, 11, 9, 0, 50)
    _process(tmp_path, 99, 99, 5 * ticks, 1000)
    found = {dict(one.labels)["__name__"]: one.value for one in usage.read()}
    assert found == {"harchos_workload_memory_used_bytes": 150.0 * page}  # how fast is known from the second time on
    now[0] = 10.0
    _process(tmp_path, 11, 9, 15 * ticks, 50)
    found = {dict(one.labels)["__name__"]: one.value for one in usage.read()}
    assert found["harchos_workload_cpu_usage_cores"] == 1.5


async def test_a_clock_that_is_years_off_does_not_end_the_telemetry(tmp_path: Path) -> None:
    spool = RequestSpool(tmp_path)
    clock = SimClock(datetime(1970, 1, 1, tzinfo=UTC))
    sender = MetricSender("http://127.0.0.1:1/", lambda: "", [], [_Sensor()], spool, clock)
    await sender.step()
    assert len(spool) == 0
    await clock.advance(60 * 365 * 86_400)
    await sender.step()
    assert len(spool) == 1
