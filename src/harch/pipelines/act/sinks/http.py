"""How does a webhook hear of a command? One request with its Idempotency-Key; what was not answered is MAYBE."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import httpx

from harch.base.egress import EgressGuard, NotPermitted
from harch.base.guarded_http import GuardedTransport
from harch.pipelines.act.settings import HttpSink as Settings
from harch.pipelines.act.sinks.base import (
    ANSWER_BYTES_MAX,
    Effect,
    PreparedRequest,
    SendGate,
    SinkOutcome,
    SinkRequest,
    at_home,
    closed,
    from_environment,
)

# The last thing that httpcore tells before bytes of the request leave. The gate is asked there, after DNS, TCP and TLS.
_BEFORE_SEND = frozenset({"http11.send_request_headers.started", "http2.send_request_headers.started"})
_NOT_OBEYED_RETRY = frozenset({425, 429})


class _GateClosed(Exception):
    pass


class HttpSinkAdapter:
    """2xx: carried out. 4xx: refused, by a server that understood. Anything else: nobody knows."""

    def __init__(
        self,
        settings: Settings,
        *,
        guard: EgressGuard | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._settings = settings
        headers = {name: from_environment(value, environment) for name, value in settings.headers.items()}
        self._client = httpx.AsyncClient(
            headers=headers,
            timeout=settings.timeout_s,
            follow_redirects=False,
            transport=GuardedTransport(guard or at_home()),
            trust_env=False,
        )

    @property
    def keeps_keys(self) -> bool:
        return self._settings.honours_key

    @property
    def reads_back(self) -> bool:
        return bool(self._settings.status_url)

    @property
    def timeout_s(self) -> float:
        return self._settings.timeout_s

    async def prepare(self, order: SinkRequest) -> PreparedRequest:
        return PreparedRequest()

    async def execute(self, order: SinkRequest, gate: SendGate) -> SinkOutcome:
        sent = False

        async def trace(event: str, info: dict[str, Any]) -> None:
            nonlocal sent
            if event in _BEFORE_SEND:
                if reason := gate():
                    raise _GateClosed(reason)
                sent = True

        url = self._settings.undo_url if order.undo else self._settings.url
        request = self._client.build_request(
            self._settings.method,
            _fill(url, order),
            headers={
                "Idempotency-Key": order.key,
                "X-Command-Fence": str(order.fence),
                "X-Command-Expires-Ms": str(order.expires_ms),
                **({"traceparent": order.trace} if order.trace else {}),
            },
            json={"cmd_id": order.cmd_id, "device": order.device, "action": order.action, "args": order.args},
            timeout=order.timeout_s,
            extensions={"trace": trace},
        )
        try:
            status, body = await self._request(request, order.timeout_s)
        except _GateClosed as error:
            return closed(str(error))
        except NotPermitted as error:
            return SinkOutcome(Effect.NO, f"cannot connect: {error}")
        except (httpx.HTTPError, TimeoutError) as error:
            # Before the first byte of the request left, nothing can have happened.
            effect = Effect.MAYBE if sent else Effect.NO
            return SinkOutcome(effect, f"{type(error).__name__} of {request.url.host}")
        if 200 <= status < 300:
            return SinkOutcome(Effect.YES, f"status {status}")
        if 300 <= status < 500 and status != 408:
            detail = f"status {status}: {body[:200].decode('utf-8', 'replace')}"
            return SinkOutcome(Effect.NO, detail, retry=status in _NOT_OBEYED_RETRY)
        return SinkOutcome(Effect.MAYBE, f"status {status}")

    async def probe(self, order: SinkRequest) -> SinkOutcome:
        if not self._settings.status_url:
            return SinkOutcome(Effect.MAYBE, "no status address", retry=False)
        request = self._client.build_request("GET", _fill(self._settings.status_url, order), timeout=order.timeout_s)
        try:
            status, _ = await self._request(request, order.timeout_s)
        except NotPermitted as error:
            return SinkOutcome(Effect.MAYBE, f"cannot connect: {error}")
        except (httpx.HTTPError, TimeoutError) as error:
            return SinkOutcome(Effect.MAYBE, f"{type(error).__name__} of {request.url.host}")
        effect = {200: Effect.YES, 404: Effect.NO}.get(status, Effect.MAYBE)
        return SinkOutcome(effect, f"status address returned {status}", verified=effect is Effect.YES)

    async def close(self) -> None:
        await self._client.aclose()

    async def _request(self, request: httpx.Request, timeout_s: float) -> tuple[int, bytes]:
        """Status and the beginning of the body. The time counts for all of it, so a far side that talks slowly or
        without end is cut off."""
        async with asyncio.timeout(timeout_s):
            answer = await self._client.send(request, stream=True)
            try:
                body = b""
                if answer.status_code >= 300:
                    async for chunk in answer.aiter_bytes(8192):
                        body += chunk
                        if len(body) >= ANSWER_BYTES_MAX:
                            break
                return answer.status_code, body
            finally:
                await answer.aclose()


def _fill(url: str, order: SinkRequest) -> str:
    """Names go into the path only as data: `../` and `?` of a device's name stay part of its name."""
    fields = {"device": order.device, "action": order.action, "key": order.key, "cmd_id": order.cmd_id}
    for name, value in fields.items():
        url = url.replace("{" + name + "}", quote(value, safe=""))
    return url
