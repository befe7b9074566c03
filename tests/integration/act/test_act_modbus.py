"""The Modbus sink against pymodbus' own server: registers are written once, in time, and read back."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from pymodbus.constants import ExcCodes
from pymodbus.server import ModbusTcpServer
from pymodbus.simulator import DataType, SimData, SimDevice

from harch.pipelines.act.settings import ModbusSink as Settings
from harch.pipelines.act.sinks.base import Effect, SinkRequest
from harch.pipelines.act.sinks.modbus import ModbusSinkAdapter, decode, encode

WRITES = (5, 6, 15, 16)


class Plc:
    """A device with 100 holding registers and 16 coils; counts writes, and can lose its answers."""

    def __init__(self) -> None:
        self.writes: list[list[int]] = []
        self.lose_answers = False
        self.refuse: ExcCodes | None = None
        self.port = 0

    async def action(
        self, function_code: int, start: int, address: int, count: int, current: list[int], values: Any
    ) -> ExcCodes | None:
        if function_code in WRITES:
            if self.refuse is not None:
                return self.refuse
            self.writes.append([int(value) for value in values or ()])  # pymodbus tells no values of a coil
        return None

    def packet(self, sending: bool, data: bytes) -> bytes:
        return b"" if sending and self.lose_answers else data

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Plc]:
        coils = [SimData(0, count=16, values=False, datatype=DataType.BITS)]
        registers = [SimData(0, count=100, values=0, datatype=DataType.REGISTERS)]
        server = ModbusTcpServer(
            SimDevice(1, (coils, coils, registers, registers), action=self.action),
            address=("127.0.0.1", 0),
            trace_packet=self.packet,
        )
        await server.serve_forever(background=True)
        self.port = server.transport.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            await server.shutdown()


@pytest.fixture
async def plc() -> AsyncIterator[Plc]:
    async with Plc().serving() as device:
        yield device


def sink_at(plc: Plc, **changes: Any) -> ModbusSinkAdapter:
    return ModbusSinkAdapter(
        Settings(**{"host": "127.0.0.1", "port": plc.port, "register": 10, "timeout_s": 20.0, **changes})
    )


def order(value: float | bool, *, key: str = "a:0", timeout_s: float = 20.0) -> SinkRequest:
    return SinkRequest(
        key=key, cmd_id="a", device="d", action="open", args={"value": value}, fence=1, timeout_s=timeout_s,
        expires_ms=2**53,
    )  # fmt: skip


def now() -> str:
    return ""


@pytest.mark.parametrize(
    ("type", "value", "scale"),
    [("uint16", 40_000, 1), ("int16", -3.5, 10), ("uint32", 3e9, 1), ("int32", -70_000, 1), ("float32", 2.5, 1)],
)
async def test_a_value_is_written_and_read_back(plc: Plc, type: str, value: float, scale: float) -> None:
    sink = sink_at(plc, type=type, scale=scale)
    assert (await sink.prepare(order(value))).undo == {"value": 0.0}
    assert (await sink.probe(order(value))).effect is Effect.NO
    assert (await sink.execute(order(value), now)).effect is Effect.YES
    assert (await sink.probe(order(value))).effect is Effect.YES
    assert (await sink.prepare(order(value))).undo == {"value": value}
    await sink.close()


async def test_a_coil_is_switched_and_read_back(plc: Plc) -> None:
    sink = sink_at(plc, type="coil", register=3)
    assert (await sink.execute(order(True), now)).effect is Effect.YES
    assert (await sink.probe(order(True))).effect is Effect.YES
    assert (await sink.probe(order(False))).effect is Effect.NO
    await sink.close()


async def test_a_lost_answer_is_maybe_and_is_not_repeated_by_the_client(plc: Plc) -> None:
    sink = sink_at(plc, timeout_s=1.0)
    assert (await sink.execute(order(1), now)).effect is Effect.YES  # connected
    plc.lose_answers = True
    assert (await sink.execute(order(7, timeout_s=1.0), now)).effect is Effect.MAYBE
    plc.lose_answers = False
    assert plc.writes == [[1], [7]]
    found = await sink.probe(order(7))
    assert (found.effect, found.verified) == (Effect.YES, True)
    await sink.close()


async def test_a_keyed_write_happens_once_however_often_it_is_asked_for(plc: Plc) -> None:
    sink = sink_at(plc, keyed=True)
    assert sink.keeps_keys
    for _ in range(5):
        assert (await sink.execute(order(7), now)).effect is Effect.YES
    assert len(plc.writes) == 1
    assert (await sink.execute(order(7, key="b:0"), now)).effect is Effect.YES
    assert len(plc.writes) == 2, "another command with the same value"
    assert (await sink.probe(order(7, key="a:0"))).effect is Effect.NO
    await sink.close()


async def test_a_closed_gate_writes_nothing(plc: Plc) -> None:
    sink = sink_at(plc)
    outcome = await sink.execute(order(7), lambda: "expired")
    assert (outcome.effect, outcome.detail) == (Effect.NO, "expired")
    assert plc.writes == []
    await sink.close()


async def test_a_refusal_is_a_clear_no_and_only_a_busy_device_is_asked_again(plc: Plc) -> None:
    sink = sink_at(plc)
    plc.refuse = ExcCodes.ILLEGAL_ADDRESS
    outcome = await sink.execute(order(7), now)
    assert (outcome.effect, outcome.retry) == (Effect.NO, False)
    plc.refuse = ExcCodes.DEVICE_BUSY
    outcome = await sink.execute(order(7), now)
    assert (outcome.effect, outcome.retry) == (Effect.NO, True)
    assert "cannot be read" not in outcome.detail
    assert (await sink_at(plc, register=99, type="uint32").prepare(order(1))).refusal
    await sink.close()


async def test_a_device_that_is_not_there_is_a_clear_no() -> None:
    async with Plc().serving() as gone:
        pass
    sink = sink_at(gone, timeout_s=2.0)
    outcome = await sink.execute(order(7, timeout_s=2.0), now)
    assert (outcome.effect, outcome.retry) == (Effect.NO, True)
    assert (await sink.prepare(order(7, timeout_s=2.0))).refusal
    assert (await sink.probe(order(7, timeout_s=2.0))).effect is Effect.MAYBE


@pytest.mark.parametrize(
    ("type", "value"), [("uint16", -1), ("uint16", 65_536), ("int16", 40_000), ("coil", 2), ("uint16", "7")]
)
def test_a_value_that_does_not_fit_is_never_cut_off(type: str, value: Any) -> None:
    settings = Settings(host="h", register=1, type=type)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"fit|coil|number"):
        encode({"value": value}, settings)


def test_what_is_encoded_is_decoded() -> None:
    settings = Settings(host="h", register=1, type="int32", scale=100)
    assert decode(encode({"value": -12.34}, settings), settings) == pytest.approx(-12.34)
