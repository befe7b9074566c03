"""How does a service behind NATS hear of a command? Through a stream that leaves out duplicates, or as a request.

JetStream drops a message id that it has seen within its duplicate window, so the window has to be at least as long as a
command lives; that is asked of the server before anything is sent. A plain subject needs somebody who answers.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from typing import TYPE_CHECKING

from harch.base.egress import Guard, reason
from harch.base.errors import HarchError
from harch.pipelines.act.settings import NatsSink as Settings
from harch.pipelines.act.sinks.addresses import NatsTarget, nats_target
from harch.pipelines.act.sinks.base import Effect, Gate, Order, Outcome, Prepared, at_home, closed, encoded
from harch.pipelines.act.sinks.environment import from_environment

if TYPE_CHECKING:
    from nats.aio.client import Client

_FORBIDDEN = (".", "*", ">", " ", "\t", "\r", "\n")


class NatsSink:
    """One connection. A lost one is made anew here and not by the client, which would follow the server's own list of
    other servers to wherever they stand."""

    def __init__(
        self,
        settings: Settings,
        *,
        longest_ttl_s: float,
        guard: Guard | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._settings, self._longest_ttl_s = settings, longest_ttl_s
        self._guard = guard or at_home()
        self._target = _target(settings, environment)
        self._client: Client | None = None
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

    async def prepare(self, order: Order) -> Prepared:
        from nats.errors import Error
        from nats.js.errors import NotFoundError

        if any(sign in order.device for sign in _FORBIDDEN):
            return Prepared(f"the device's name {order.device!r} cannot be part of a subject", retry=False)
        try:
            async with asyncio.timeout(order.timeout_s):
                client = await self._connect()
                if not self._checked:
                    streams = client.jetstream()
                    name = await streams.find_stream_name_by_subject(_fill(self._settings.subject, order))
                    window_s = (await streams.stream_info(name)).config.duplicate_window or 0.0
                    if window_s < self._longest_ttl_s:
                        detail = (
                            f"stream {name} forgets keys after {window_s:g} s, commands live {self._longest_ttl_s:g} s"
                        )
                        return Prepared(detail, retry=False)
                    self._checked = True
        except NotFoundError:
            return Prepared("no stream takes the subject", retry=True)
        except (Error, TimeoutError, OSError) as error:
            return Prepared(f"the message server cannot be reached ({reason(error)})")
        return Prepared()

    async def execute(self, order: Order, gate: Gate) -> Outcome:
        from nats.errors import Error, NoRespondersError
        from nats.js.errors import APIError, NoStreamResponseError

        if any(sign in order.device for sign in _FORBIDDEN):
            return Outcome(Effect.NO, f"the device's name {order.device!r} cannot be part of a subject", retry=False)
        subject, sent = _fill(self._settings.subject, order), False
        headers = {"Nats-Msg-Id": order.key, "Harch-Fence": str(order.fence)}
        try:
            async with asyncio.timeout(order.timeout_s):
                client = await self._connect()
                if not client.is_connected:  # the client would keep the message and send it when it may be too late
                    return Outcome(Effect.NO, "the message server is not connected")
                if shut := gate():
                    return closed(shut)
                sent = True
                if not self._settings.jetstream:
                    await client.request(subject, encoded(order), timeout=order.timeout_s, headers=headers)
                    return Outcome(Effect.YES, "answered")
                ack = await client.jetstream().publish(
                    subject, encoded(order), timeout=order.timeout_s, headers=dict(headers)
                )
        except (NoRespondersError, NoStreamResponseError):
            return Outcome(Effect.NO, "nobody takes the subject")
        except APIError as error:
            return Outcome(Effect.NO, f"the stream refuses: {error.description}")
        except (Error, TimeoutError, OSError) as error:
            return Outcome(Effect.MAYBE if sent else Effect.NO, f"no answer ({reason(error)})")
        return Outcome(Effect.YES, "the stream had it before" if ack.duplicate else "the stream has it")

    async def probe(self, order: Order) -> Outcome:
        return Outcome(Effect.MAYBE, "a stream is asked by sending the same key again")

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()

    async def _connect(self) -> Client:
        async with self._connecting:
            if self._client is None or self._client.is_closed:
                self._client = await self._open()
            return self._client

    async def _open(self) -> Client:
        try:
            import nats
        except ImportError as error:
            raise HarchError(
                "E0776", "NATS needs the package `nats-py`", hint="pip install 'harch[pipelines]'"
            ) from error
        target = self._target
        failed: Exception = OSError("no address")
        for address in await self._guard.addresses_soon(target.host, target.port):
            try:
                return await nats.connect(
                    f"nats://{f'[{address}]' if ':' in address else address}:{target.port}",
                    user=target.user if target.password is not None else None,
                    password=target.password,
                    token=target.user if target.password is None else None,
                    tls=ssl.create_default_context() if target.tls else None,
                    tls_hostname=target.host,
                    user_credentials=self._settings.credentials_file or None,
                    # Nothing is held back while the server is away: a command that leaves later than its gate said is
                    # none.
                    pending_size=0,
                    allow_reconnect=False,
                    max_reconnect_attempts=1,
                    reconnect_time_wait=0.1,
                    connect_timeout=max(1, int(self._settings.timeout_s)),
                    error_cb=_quiet,
                )
            except (nats.errors.Error, OSError) as error:
                failed = error
        raise failed


def _target(settings: Settings, environment: Mapping[str, str] | None) -> NatsTarget:
    try:
        return nats_target(from_environment(settings.url, environment))
    except ValueError as error:
        hint = "write nats://host:port or tls://host:port"
        raise HarchError("E0776", f"the address of the message server {error}", hint=hint) from None


async def _quiet(error: Exception) -> None:
    """Errors come back from the call that met them."""


def _fill(subject: str, order: Order) -> str:
    return subject.replace("{device}", order.device).replace("{action}", order.action)
