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

from harch.base.egress import EgressGuard, reason, tls_for
from harch.base.errors import HarchError
from harch.base.hosts import read_host
from harch.pipelines.act.settings import MqttSink as Settings
from harch.pipelines.act.sinks.base import (
    ANSWER_BYTES_MAX,
    Effect,
    PreparedRequest,
    SendGate,
    SinkOutcome,
    SinkRequest,
    at_home,
    closed,
    encoded,
    variable,
)

if TYPE_CHECKING:
    from aiomqtt import Client

_FORBIDDEN = ("+", "#", "/", "\x00")


class MqttSinkAdapter:
    """One connection, made when it is needed and thrown away when anything goes wrong with it."""

    def __init__(
        self, settings: Settings, *, guard: EgressGuard | None = None, environment: Mapping[str, str] | None = None
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

    async def prepare(self, order: SinkRequest) -> PreparedRequest:
        if any(sign in order.device for sign in _FORBIDDEN):
            return PreparedRequest(f"the device's name {order.device!r} cannot be part of a topic", retry=False)
        try:
            async with asyncio.timeout(order.timeout_s):
                await self._connect()
        except (self._mqtt.MqttError, TimeoutError, OSError) as error:
            return PreparedRequest(f"the broker cannot be reached ({reason(error)})")
        return PreparedRequest()

    async def execute(self, order: SinkRequest, gate: SendGate) -> SinkOutcome:
        if any(sign in order.device for sign in _FORBIDDEN):
            return SinkOutcome(Effect.NO, f"the device's name {order.device!r} cannot be part of a topic", retry=False)
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
            return SinkOutcome(Effect.MAYBE if sent else Effect.NO, f"no response from the broker ({reason(error)})")
        return SinkOutcome(Effect.YES, "accepted by the broker")

    async def probe(self, order: SinkRequest) -> SinkOutcome:
        """YES when the device names this key. Anything else is MAYBE: the message may still be on its way."""
        if not self._settings.state_topic:
            return SinkOutcome(Effect.MAYBE, "no topic for the device state", retry=False)
        try:
            async with asyncio.timeout(order.timeout_s), contextlib.AsyncExitStack() as stack:
                client = await self._open(stack)
                await client.subscribe(_fill(self._settings.state_topic, order), qos=1)
                async for message in client.messages:
                    if _names(message.payload, order.key):
                        return SinkOutcome(Effect.YES, "confirmed by the device", verified=True)
        except TimeoutError:
            return SinkOutcome(Effect.MAYBE, "not yet confirmed by the device")
        except (self._mqtt.MqttError, OSError) as error:
            return SinkOutcome(Effect.MAYBE, f"cannot query the broker ({reason(error)})")
        return SinkOutcome(Effect.MAYBE, "the broker closed the connection")

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

    def _properties(self, order: SinkRequest) -> Any:
        """With MQTT 5 the broker itself forgets a command whose time is over."""
        if self._settings.version != "5" or order.undo:
            return None
        from paho.mqtt.packettypes import PacketTypes
        from paho.mqtt.properties import Properties

        properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
        properties.MessageExpiryInterval = max(1, int(order.timeout_s))
        return properties


def _fill(topic: str, order: SinkRequest) -> str:
    return topic.replace("{device}", order.device).replace("{action}", order.action)


def _names(payload: Any, key: str) -> bool:
    if not isinstance(payload, bytes | bytearray) or len(payload) > ANSWER_BYTES_MAX:
        return False
    try:
        decoded = msgspec.json.decode(payload)
    except msgspec.DecodeError:
        return False
    return isinstance(decoded, dict) and decoded.get("key") == key
