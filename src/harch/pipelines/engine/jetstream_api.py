"""How does HarchOS administer streams? JetStream's own API in JSON, so that an audit sees every field that exists."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from harch.base.errors import HarchError
from harch.pipelines.client.aio import AioClient
from harch.pipelines.client.errors import JetStreamRefused, NatsError, as_harch_error
from harch.pipelines.engine.audit import UNANSWERED
from harch.pipelines.engine.streams import Found, StreamChange, StreamPlan, Verb

PAGES_MAX = 200
TIMEOUT_S = 10.0
FOREVER = "2999-01-01T00:00:00Z"  # a pause that only a person ends


class JetStreamAdmin:
    """The controller's hands. Give it a client with the controller's key; with any other, every call is refused."""

    def __init__(self, client: AioClient, *, timeout_s: float = TIMEOUT_S) -> None:
        self.client = client
        self._timeout_s = timeout_s

    async def call(self, what: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """One request of the API. Raises `JetStreamRefused` with its code."""
        payload = msgspec.json.encode(body) if body is not None else b""
        answer = await self.client.request(f"$JS.API.{what}", payload, timeout_s=self._timeout_s)
        decoded = msgspec.json.decode(answer.payload, type=dict[str, Any])
        failure = decoded.get("error")
        if isinstance(failure, dict):
            raise JetStreamRefused(int(failure.get("err_code", 0)), str(failure.get("description", "")))
        return decoded

    async def streams(self) -> list[dict[str, Any]]:
        """Configuration, state and cluster of every stream of the account.

        A cluster leaves streams out of its list while they move or have no leader; those come by name only.
        """
        listed = await self._pages("STREAM.LIST", "streams")
        known = {entry["config"]["name"] for entry in listed}
        silent = [name for name in await self._pages("STREAM.NAMES", "streams") if name not in known]
        return [*listed, *({"config": {"name": name}, UNANSWERED: True} for name in silent)]

    async def consumers(self, stream: str) -> list[dict[str, Any]]:
        return await self._pages(f"CONSUMER.LIST.{stream}", "consumers")

    async def found(self) -> Found:
        """What there is, in the form that plans are made from."""
        entries = await self.streams()
        if silent := [entry["config"]["name"] for entry in entries if UNANSWERED in entry]:
            raise NatsError(f"the stream `{silent[0]}` does not answer; nothing can be planned")
        streams = {entry["config"]["name"]: entry["config"] for entry in entries}
        consumers = {(name, entry["name"]): entry["config"] for name in streams for entry in await self.consumers(name)}
        return Found(streams=streams, consumers=consumers)

    async def apply(self, plan: StreamPlan) -> None:
        """All steps in order. Raises E0706 and does nothing if the plan has a refusal; E0705 if the engine says no."""
        if plan.refusals:
            first = plan.refusals[0]
            raise HarchError("E0706", f"{first.subject}: {first.detail}", hint=first.nearest_fix)
        for change in plan.changes:
            try:
                await self._apply(change)
            except JetStreamRefused as error:
                what = f"{change.stream}/{change.consumer}" if change.consumer else change.stream
                raise HarchError(
                    "E0705", f"{change.verb} {what}: {error.description}", hint="see the limits of the engine"
                ) from error
            except NatsError as error:
                raise as_harch_error(error, f"{change.verb} {change.stream}") from error

    async def pause_consumers(self, stream: str) -> int:
        """Stops all delivery from a stream until a person resumes it; returns how many consumers were paused."""
        consumers = await self.consumers(stream)
        for entry in consumers:
            await self.call(f"CONSUMER.PAUSE.{stream}.{entry['name']}", {"pause_until": FOREVER})
        return len(consumers)

    async def resume_consumers(self, stream: str) -> int:
        consumers = await self.consumers(stream)
        for entry in consumers:
            await self.call(f"CONSUMER.PAUSE.{stream}.{entry['name']}", {})
        return len(consumers)

    async def _apply(self, change: StreamChange) -> None:
        if change.consumer:
            action = "create" if change.verb is Verb.CREATE else "update"
            body = {"stream_name": change.stream, "config": change.config, "action": action}
            await self.call(f"CONSUMER.CREATE.{change.stream}.{change.consumer}", body)
        elif change.verb is Verb.DELETE:
            await self.call(f"STREAM.DELETE.{change.stream}")
        else:
            await self.call(f"STREAM.{change.verb.upper()}.{change.stream}", change.config)

    async def _pages(self, what: str, field: str) -> list[Any]:
        entries: list[Any] = []
        for _ in range(PAGES_MAX):
            page = await self.call(what, {"offset": len(entries)})
            entries += page.get(field) or []
            if len(entries) >= page.get("total", 0) or not page.get(field):
                break
        return entries
