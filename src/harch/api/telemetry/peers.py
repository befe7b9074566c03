"""How do silences reach the other hubs? SENTINEL asks its hub every second, and tells it what is new here."""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import Awaitable, Callable

import httpx
import msgspec

from harch.base.clock import Clock
from harch.base.errors import HarchError
from harch.sentinel.alerts.records import decode_records, encode_records
from harch.sentinel.alerts.service import AlertService
from harch.sentinel.alerts.shared_state import EXPORT_RECORDS_MAX, SharedState

EVERY_S = 1.0
ALL_AGAIN_S = 600.0  # everything is told again, so that what got lost on the way is lost for minutes at most
PIECE_BYTES_MAX = 256 * 1024  # of one exchange; what does not fit follows with the next
_log = logging.getLogger("harch.sentinel")


class AlertPeers:
    """Keeps the shared state of alerts alike at all hubs of a country. `position` says who notifies first."""

    def __init__(
        self,
        hub_url: str,
        token: str,
        clock: Clock,
        transport: httpx.AsyncBaseTransport | None = None,
        on_heard: Callable[[int], Awaitable[None]] | None = None,
    ) -> None:
        """`on_heard` is told with each answer of the hub how many keys it has revoked so far."""
        self._url = f"{hub_url}/v1/sentinel/alert-records"
        self._clock, self._on_heard = clock, on_heard
        self._client = httpx.AsyncClient(timeout=5, trust_env=False, transport=transport, headers={"X-API-Key": token})
        self._told = 0  # up to which number of our records the others know
        self._told_all_s = clock.monotonic_s()
        self.position = 0
        self.heard_s = clock.monotonic_s()  # when the hub answered last

    async def run(self, service: AlertService) -> None:
        """Until cancelled. A hub that does not answer is asked again; nothing is lost meanwhile."""
        try:
            while True:
                try:
                    await self.exchange(service)
                except (httpx.HTTPError, msgspec.ValidationError, HarchError, ValueError) as problem:
                    _log.debug("no exchange of alert records: %s", problem)
                await self._clock.sleep(EVERY_S)
        finally:
            await self._client.aclose()

    async def exchange(self, service: AlertService) -> None:
        piece, number = _news(service.desk.shared, self._told)
        answer = await self._client.post(self._url, json={"records": base64.b64encode(piece).decode()})
        answer.raise_for_status()
        heard = answer.json()
        self.heard_s = self._clock.monotonic_s()
        if self._on_heard is not None:
            await self._on_heard(int(heard.get("revoked", 0)))
        self._told = number
        for text in heard["records"]:
            await service.merge(decode_records(base64.b64decode(text)))
            await asyncio.sleep(0)
        self.position = int(heard["position"])
        if heard["tell_all"] or self._clock.monotonic_s() - self._told_all_s > ALL_AGAIN_S:
            self._told, self._told_all_s = 0, self._clock.monotonic_s()


def _news(shared: SharedState, after: int) -> tuple[bytes, int]:
    """As many changes as fit into one exchange, and the number to go on from."""
    limit = EXPORT_RECORDS_MAX
    while True:
        records, number = shared.export_changes(after, limit=limit)
        body = encode_records(records) if records else b""
        if len(body) <= PIECE_BYTES_MAX or limit == 1:
            return body, number
        limit //= 2
