"""How does a device behind a broker hear of a command? QoS 1 with the key inside; only the device can say it obeyed.

The broker's acknowledgement says that the broker has the message, nothing more. A device that keeps keys makes repeats
harmless (`honours_key`); one that says on `state_topic`, retained, which key it carried out last can be read back.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from harch.base.egress import Guard, reason, tls_for
from harch.base.errors import HarchError
from harch.base.hosts import read_host
from harch.pipelines.act.settings import MqttSink as Settings
from harch.pipelines.act.sinks.base import (
    ANSWER_BYTES_MAX,
    Effect,
    Gate,
    Order,
    Outcome,
    Prepared,
    at_home,
    closed,
    encoded,
)
from harch.pipelines.act.sinks.environment import variable

if TYPE_CHECKING:
    from aiomqtt import Client

_FORBIDDEN = ("+", "#", "/", "\x00")


class MqttSink:
    """One connection, made when it is needed and thrown away when anything goes wrong with it."""

    def __init__(
        self, settings: Settings, *, guard: Guard | None = None, environment: Mapping[str, str] | None = None
    ) -> None:
        try:
            import aiomqtt
        except ImportError as error:
            raise HarchError(
                "E0776", "MQTT needs the package `aiomqtt`", hint="pip install 'harch[pipelines]'"
            ) from error
        self._mqtt = aiomqtt
        self._settings = settings
        self._guard = guard or at_home()
        self._username = variable(settings.username_env, environment) if settings.username_env else None
        self._password = variable(settings.password_env, environment) if settings.password_env else None
        self._client: Client | None = None
        self._stack = contextlib.AsyncExitStack()
        self._connecting = asyncio.Lock()

    @property
    def keeps_keys(self) -> bool:
        return self._settings.honours_key

    @property
    def reads_back(self) -> bool:
        return bool(self._settings.state_topic)

    @property
    def timeout_s(self) -> float:
        return self._settings.timeout_s

    async def prepare(self, order: Order) -> Prepared:
        if any(sign in order.device for sign in _FORBIDDEN):
            return Prepared(f"the device's name {order.device!r} cannot be part of a topic", retry=False)
        try:
            async with asyncio.timeout(order.timeout_s):
                await self._connect()
        except (self._mqtt.MqttError, TimeoutError, OSError) as error:
            return Prepared(f"the broker cannot be reached ({reason(error)})")
        return Prepared()

    async def execute(self, order: Order, gate: Gate) -> Outcome:
        if any(sign in order.device for sign in _FORBIDDEN):
            return Outcome(Effect.NO, f"the device's name {order.device!r} cannot be part of a topic", retry=False)
        sent = False
        try:
            async with asyncio.timeout(order.timeout_s):
                client = await self._connect()
                if shut := gate():
                    return closed(shut)
                sent = True
                await client.publish(
                    _fill(self._settings.topic, order),
                    encoded(order),
                    qos=1,
                    timeout=order.timeout_s,
                    properties=self._properties(order),
                )
        except (self._mqtt.MqttError, TimeoutError, OSError) as error:
            await self._disconnect()
            return Outcome(Effect.MAYBE if sent else Effect.NO, f"no answer of the broker ({reason(error)})")
        return Outcome(Effect.YES, "the broker has it")

    async def probe(self, order: Order) -> Outcome:
        """YES when the device names this key. Anything else is MAYBE: the message may still be on its way."""
        if not self._settings.state_topic:
            return Outcome(Effect.MAYBE, "there is no topic of the device's state", retry=False)
        try:
            async with asyncio.timeout(order.timeout_s), contextlib.AsyncExitStack() as stack:
                client = await self._open(stack)
                await client.subscribe(_fill(self._settings.state_topic, order), qos=1)
                async for message in client.messages:
                    if _names(message.payload, order.key):
                        return Outcome(Effect.YES, "the device says so", verified=True)
        except TimeoutError:
            return Outcome(Effect.MAYBE, "the device has not said so yet")
        except (self._mqtt.MqttError, OSError) as error:
            return Outcome(Effect.MAYBE, f"the broker cannot be asked ({reason(error)})")
        return Outcome(Effect.MAYBE, "the broker ended the connection")

    async def close(self) -> None:
        await self._disconnect()

    async def _connect(self) -> Client:
        async with self._connecting:
            if self._client is None:
                self._client = await self._open(self._stack)
            return self._client

    async def _disconnect(self) -> None:
        """With the connection go the messages that the client would have sent again by itself."""
        async with self._connecting:
            self._client = None
            stack, self._stack = self._stack, contextlib.AsyncExitStack()
            with contextlib.suppress(self._mqtt.MqttError, TimeoutError, OSError):
                await stack.aclose()

    async def _open(self, stack: contextlib.AsyncExitStack) -> Client:
        """The first of the broker's addresses that answers. Raises NotPermitted if none may be connected to."""
        failed: Exception = OSError("no address")
        for address in await self._guard.addresses_soon(self._settings.host, self._settings.port):
            try:
                return await stack.enter_async_context(self._new_client(address))
            except self._mqtt.MqttError as error:
                failed = error
        raise failed

    def _new_client(self, address: str) -> Client:
        version = self._mqtt.ProtocolVersion.V5 if self._settings.version == "5" else self._mqtt.ProtocolVersion.V311
        return self._mqtt.Client(
            address,
            self._settings.port,
            username=self._username,
            password=self._password,
            protocol=version,
            timeout=self._settings.timeout_s,
            tls_context=tls_for(read_host(self._settings.host)) if self._settings.tls else None,
        )

    def _properties(self, order: Order) -> Any:
        """With MQTT 5 the broker itself forgets a command whose time is over."""
        if self._settings.version != "5" or order.undo:
            return None
        from paho.mqtt.packettypes import PacketTypes
        from paho.mqtt.properties import Properties

        properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
        properties.MessageExpiryInterval = max(1, int(order.timeout_s))
        return properties


def _fill(topic: str, order: Order) -> str:
    return topic.replace("{device}", order.device).replace("{action}", order.action)


def _names(payload: Any, key: str) -> bool:
    if not isinstance(payload, bytes | bytearray) or len(payload) > ANSWER_BYTES_MAX:
        return False
    try:
        told = msgspec.json.decode(payload)
    except msgspec.DecodeError:
        return False
    return isinstance(told, dict) and told.get("key") == key
