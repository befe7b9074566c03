"""How does a service behind NATS hear of a command? Through a stream that leaves out duplicates, or as a request.

JetStream drops a message id that it has seen within its duplicate window, so the window has to be at least as long as a
command lives; that is asked of the server before anything is sent. A plain subject needs somebody who answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

from harch.base.egress import EgressGuard, reason
from harch.base.errors import HarchError
from harch.pipelines.act.settings import NatsSink as Settings
from harch.pipelines.act.sinks.addresses import NatsTarget, nats_target
from harch.pipelines.act.sinks.base import (
    Effect,
    PreparedRequest,
    SendGate,
    SinkOutcome,
    SinkRequest,
    at_home,
    closed,
    encoded,
    from_environment,
)
from harch.pipelines.client.aio import AioClient
from harch.pipelines.client.errors import JetStreamRefused, NatsError, NoResponders
from harch.pipelines.client.options import ClientOptions, Credentials, TlsFiles, read_credentials
from harch.pipelines.engine.jetstream_admin import JetStreamAdmin

_FORBIDDEN = (".", "*", ">", " ", "\t", "\r", "\n")


class NatsSinkAdapter:
    """One connection. A lost one is made anew here, not by the client: its address is looked up and checked again."""

    def __init__(
        self,
        settings: Settings,
        *,
        longest_ttl_s: float,
        guard: EgressGuard | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._settings, self._longest_ttl_s = settings, longest_ttl_s
        self._guard = guard or at_home()
        self._target = _target(settings, environment)
        self._client: AioClient | None = None
        self._connecting = asyncio.Lock()
        self._checked = not settings.jetstream

    @property
    def keeps_keys(self) -> bool:
        return self._settings.jetstream or self._settings.honours_key

    @property
    def reads_back(self) -> bool:
        return False

    @property
    def timeout_s(self) -> float:
        return self._settings.timeout_s

    async def prepare(self, order: SinkRequest) -> PreparedRequest:
        if any(sign in order.device for sign in _FORBIDDEN):
            return PreparedRequest(f"the device's name {order.device!r} cannot be part of a subject", retry=False)
        try:
            async with asyncio.timeout(order.timeout_s):
                client = await self._connect()
                if not self._checked:
                    return await self._check(JetStreamAdmin(client), _fill(self._settings.subject, order))
        except (NatsError, TimeoutError, OSError) as error:
            return PreparedRequest(f"the message server cannot be reached ({reason(error)})")
        return PreparedRequest()

    async def _check(self, api: JetStreamAdmin, subject: str) -> PreparedRequest:
        """Does a stream take the subject, and remember keys for as long as commands live?"""
        found = (await api.call("STREAM.NAMES", {"subject": subject})).get("streams") or []
        if not found:
            return PreparedRequest("no stream accepts the subject", retry=True)
        config = (await api.call(f"STREAM.INFO.{found[0]}"))["config"]
        window_s = config.get("duplicate_window", 0) / 1e9
        if window_s < self._longest_ttl_s:
            detail = f"stream {found[0]} deduplicates for {window_s:g} s, commands last {self._longest_ttl_s:g} s"
            return PreparedRequest(detail, retry=False)
        self._checked = True
        return PreparedRequest()

    async def execute(self, order: SinkRequest, gate: SendGate) -> SinkOutcome:
        if any(sign in order.device for sign in _FORBIDDEN):
            return SinkOutcome(
                Effect.NO, f"the device's name {order.device!r} cannot be part of a subject", retry=False
            )
        subject, sent, body = _fill(self._settings.subject, order), False, encoded(order)
        headers = {"Nats-Msg-Id": order.key, "Harch-Fence": str(order.fence)}
        try:
            async with asyncio.timeout(order.timeout_s):
                client = await self._connect()
                if shut := gate():
                    return closed(shut)
                sent = client.is_connected  # what is not connected keeps nothing to send when it may be too late
                if not self._settings.jetstream:
                    await client.request(subject, body, timeout_s=order.timeout_s, headers=headers)
                    return SinkOutcome(Effect.YES, "answered")
                ack = await client.publish_stored(subject, body, headers=headers, timeout_s=order.timeout_s)
        except NoResponders:
            return SinkOutcome(Effect.NO, "no subscribers on the subject")
        except JetStreamRefused as error:
            return SinkOutcome(Effect.NO, f"refused by the stream: {error.description}")
        except (NatsError, TimeoutError, OSError) as error:
            return SinkOutcome(Effect.MAYBE if sent else Effect.NO, f"no response ({reason(error)})")
        return SinkOutcome(
            Effect.YES, "duplicate, already in the stream" if ack.duplicate else "accepted by the stream"
        )

    async def probe(self, order: SinkRequest) -> SinkOutcome:
        return SinkOutcome(Effect.MAYBE, "a stream is queried by resending the same key")

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()

    async def _connect(self) -> AioClient:
        async with self._connecting:
            if self._client is None or not self._client.is_connected:
                await self.close()
                self._client = await self._open()
            return self._client

    async def _open(self) -> AioClient:
        target, credentials = self._target, self._credentials()
        failed: Exception = OSError("no address")
        for address in await self._guard.addresses_soon(target.host, target.port):
            scheme, host = "tls" if target.tls else "nats", f"[{address}]" if ":" in address else address
            client = AioClient(
                ClientOptions(
                    servers=(f"{scheme}://{host}:{target.port}",),
                    credentials=credentials,
                    tls=TlsFiles(server_name=target.host) if target.tls else None,
                    connect_timeout_s=max(1.0, self._settings.timeout_s),
                    reconnect_attempts_max=0,  # a command that leaves later than its gate said is none
                )
            )
            try:
                await client.connect()
                return client
            except (NatsError, OSError) as error:
                failed = error
        raise failed

    def _credentials(self) -> Credentials:
        """Of the file, else of the address: a name alone is a token."""
        target = self._target
        if self._settings.credentials_file:
            return read_credentials(Path(self._settings.credentials_file).read_text("utf-8"))
        if target.password is not None:
            return Credentials(user=target.user or "", password=target.password)
        return Credentials(token=target.user or "")


def _target(settings: Settings, environment: Mapping[str, str] | None) -> NatsTarget:
    try:
        return nats_target(from_environment(settings.url, environment))
    except ValueError as error:
        hint = "write nats://host:port or tls://host:port"
        raise HarchError("E0776", f"the address of the message server {error}", hint=hint) from None


def _fill(subject: str, order: SinkRequest) -> str:
    return subject.replace("{device}", order.device).replace("{action}", order.action)
