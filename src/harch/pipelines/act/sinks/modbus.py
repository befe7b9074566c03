"""How does a controller hear of a command? A Modbus/TCP write in one frame, and the same registers read back.

A set point is a value, not an event: writing it twice leaves one state. With `keyed` four more registers take 64 bits
of the command's key in the same frame, so the device itself tells which command it carried out last.
"""

from __future__ import annotations

import asyncio
import struct
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from harch.base.egress import EgressGuard, reason
from harch.base.errors import HarchError
from harch.pipelines.act.expressions import Args, Scalar
from harch.pipelines.act.settings import ModbusSink as Settings
from harch.pipelines.act.sinks.base import Effect, PreparedRequest, SendGate, SinkOutcome, SinkRequest, at_home, closed

if TYPE_CHECKING:
    from pymodbus.client import AsyncModbusTcpClient

_FORMATS = {"uint16": ">H", "int16": ">h", "uint32": ">I", "int32": ">i", "float32": ">f"}
_BUSY = 6  # the exception code of a device that could not do it now; every other says that it never will


class ModbusSinkAdapter:
    """One connection, one request at a time. The client's own repetitions are off: only the ledger repeats."""

    def __init__(self, settings: Settings, *, guard: EgressGuard | None = None) -> None:
        try:
            import pymodbus.client  # noqa: F401 - whether it is there; each connection makes a client of its own
        except ImportError as error:
            hint = "pip install 'harch[pipelines]'"
            raise HarchError("E0776", "Modbus needs the package `pymodbus`", hint=hint) from error
        self._settings = settings
        self._guard = guard or at_home()
        self._connection: AsyncModbusTcpClient | None = None
        self._one_at_a_time = asyncio.Lock()

    @property
    def keeps_keys(self) -> bool:
        return self._settings.keyed

    @property
    def reads_back(self) -> bool:
        return True

    @property
    def timeout_s(self) -> float:
        return self._settings.timeout_s

    async def prepare(self, order: SinkRequest) -> PreparedRequest:
        """Reads what stands there: whether it can be reached, and what would take the command back."""
        try:
            encode(order.args, self._settings)
        except ValueError as error:
            return PreparedRequest(str(error), retry=False)
        try:
            async with asyncio.timeout(order.timeout_s), self._one_at_a_time:
                found = await self._read(order)
        except (TimeoutError, OSError, _exceptions()) as error:
            return PreparedRequest(f"the device cannot be read ({reason(error)})")
        if isinstance(found, SinkOutcome):
            return PreparedRequest(found.detail, retry=found.retry)
        return PreparedRequest(undo={self._settings.value: decode(found, self._settings)})

    async def execute(self, order: SinkRequest, gate: SendGate) -> SinkOutcome:
        try:
            values = encode(order.args, self._settings)
        except ValueError as error:
            return SinkOutcome(Effect.NO, str(error), retry=False)
        sent = False
        try:
            async with asyncio.timeout(order.timeout_s), self._one_at_a_time:
                if not await self._is_connected():
                    return SinkOutcome(Effect.NO, "the device cannot be reached")
                if self._settings.keyed and await self._read(order) == [*values, *key_registers(order.key)]:
                    return SinkOutcome(Effect.YES, "the device already had it", verified=True)
                if shut := gate():
                    return closed(shut)
                sent = True
                answer = await self._write(order, values)
        except (TimeoutError, OSError, _exceptions()) as error:
            self._hang_up()  # a late answer must not be taken for that of the next request
            effect = Effect.MAYBE if sent else Effect.NO
            return SinkOutcome(effect, f"no response from the device ({reason(error)})")
        if answer.isError():
            code = getattr(answer, "exception_code", 0)
            return SinkOutcome(Effect.NO, f"refused by the device: exception {code}", retry=code == _BUSY)
        return SinkOutcome(Effect.YES, "accepted by the device")

    async def probe(self, order: SinkRequest) -> SinkOutcome:
        expected = encode(order.args, self._settings)
        if self._settings.keyed:
            expected = [*expected, *key_registers(order.key)]
        try:
            async with asyncio.timeout(order.timeout_s), self._one_at_a_time:
                found = await self._read(order)
        except (TimeoutError, OSError, _exceptions()) as error:
            self._hang_up()
            return SinkOutcome(Effect.MAYBE, f"the device cannot be read ({reason(error)})")
        if isinstance(found, SinkOutcome):
            return SinkOutcome(Effect.MAYBE, found.detail, retry=found.retry)
        if found == expected:
            return SinkOutcome(Effect.YES, "the registers match", verified=True)
        return SinkOutcome(Effect.NO, f"the registers hold {decode(found, self._settings)}")

    async def close(self) -> None:
        self._hang_up()

    async def _is_connected(self) -> bool:
        """Connects if it has to, to an address that was judged a moment ago. Raises NotPermitted."""
        from pymodbus.client import AsyncModbusTcpClient

        if self._connection is not None and self._connection.connected:
            return True
        self._hang_up()
        settings = self._settings
        for address in await self._guard.addresses_soon(settings.host, settings.port):
            client = AsyncModbusTcpClient(
                address, port=settings.port, timeout=settings.timeout_s, retries=0, reconnect_delay=0
            )
            if await client.connect():
                self._connection = client
                return True
            client.close()
        return False

    def _hang_up(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    @property
    def _client(self) -> AsyncModbusTcpClient:
        if self._connection is None:
            raise OSError("not connected")
        return self._connection

    async def _read(self, order: SinkRequest) -> list[int] | SinkOutcome:
        if not await self._is_connected():
            raise OSError("not connected")
        at, unit = self._settings.register, self._unit(order)
        if self._settings.type == "coil":
            answer: Any = await self._client.read_coils(at, count=1, device_id=unit)
        else:
            answer = await self._client.read_holding_registers(at, count=self._width(), device_id=unit)
        if answer.isError():
            code = getattr(answer, "exception_code", 0)
            return SinkOutcome(Effect.NO, f"the device refuses reads: exception {code}", retry=code == _BUSY)
        return [int(answer.bits[0])] if self._settings.type == "coil" else list(answer.registers)

    async def _write(self, order: SinkRequest, values: list[int]) -> Any:
        at, unit = self._settings.register, self._unit(order)
        if self._settings.type == "coil":
            return await self._client.write_coil(at, bool(values[0]), device_id=unit)
        if self._settings.keyed:
            values = [*values, *key_registers(order.key)]
        return await self._client.write_registers(at, values, device_id=unit)

    def _width(self) -> int:
        return struct.calcsize(_FORMATS[self._settings.type]) // 2 + (4 if self._settings.keyed else 0)

    def _unit(self, order: SinkRequest) -> int:
        return self._settings.units.get(order.device, self._settings.unit)


def encode(args: Args, settings: Settings) -> list[int]:
    """The registers of a value, high word first. Raises ValueError for what does not fit; nothing is ever cut off."""
    value = args.get(settings.value)
    if value is None or isinstance(value, str):
        raise ValueError(f"`{settings.value}` is {value!r}, not a number")
    if settings.type == "coil":
        if value not in (0, 1):
            raise ValueError(f"a coil takes true or false, not {value!r}")
        return [int(value)]
    number = value * settings.scale if settings.type == "float32" else round(value * settings.scale)
    try:
        packed = struct.pack(_FORMATS[settings.type], number)
    except (struct.error, OverflowError) as error:
        raise ValueError(f"{number!r} does not fit into {settings.type}") from error
    return list(struct.unpack(f">{len(packed) // 2}H", packed))


def decode(registers: list[int], settings: Settings) -> Scalar:
    """The value that stands in the registers; a key behind it is left out."""
    if settings.type == "coil":
        return bool(registers[0])
    width = struct.calcsize(_FORMATS[settings.type])
    packed = struct.pack(f">{width // 2}H", *registers[: width // 2])
    number = struct.unpack(_FORMATS[settings.type], packed)[0]
    return float(number) / settings.scale if settings.scale != 1.0 else float(number)


def key_registers(key: str) -> list[int]:
    """64 bits of a key in four registers."""
    return list(struct.unpack(">4H", sha256(key.encode()).digest()[:8]))


def _exceptions() -> type[Exception]:
    from pymodbus.exceptions import ModbusException

    return ModbusException
