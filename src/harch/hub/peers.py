"""How are the other hubs? Reads their public summaries over HTTP, and never presents an old one as fresh."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import httpx
import msgspec

from harch.base.clock import Clock
from harch.hub.views import HubSummary, PeerView

POLL_S = 2.0
TIMEOUT_S = 2.0
SUMMARY_BYTES_MAX = 256 * 1024


@dataclass(slots=True)
class _Peer:
    hub_id: str
    url: str
    summary: HubSummary | None = None
    received_s: float = 0.0
    error: str = "has not answered yet"


class PeerWatch:
    """One poll per peer every two seconds; a failed one keeps the last summary and says that it is old."""

    def __init__(self, urls: dict[str, str], clock: Clock) -> None:
        self._peers = [_Peer(hub_id, url) for hub_id, url in urls.items()]
        self._clock = clock
        self._decoder = msgspec.json.Decoder(HubSummary)

    async def run(self) -> None:
        """Until cancelled."""
        async with httpx.AsyncClient(timeout=TIMEOUT_S, trust_env=False) as client:
            while True:
                async with asyncio.TaskGroup() as group:
                    for peer in self._peers:
                        group.create_task(self._poll(client, peer))
                await self._clock.sleep(POLL_S)

    def views(self) -> list[PeerView]:
        now_s = self._clock.monotonic_s()
        return [
            PeerView(
                hub_id=peer.hub_id,
                url=peer.url,
                reachable=not peer.error,
                age_s=round(now_s - peer.received_s, 1) if peer.summary else None,
                summary=peer.summary,
                error=peer.error,
            )
            for peer in self._peers
        ]

    async def _poll(self, client: httpx.AsyncClient, peer: _Peer) -> None:
        try:
            response = await client.get(f"{peer.url}/v1/summary")
            response.raise_for_status()
            if len(response.content) > SUMMARY_BYTES_MAX:
                raise ValueError(f"its summary is larger than {SUMMARY_BYTES_MAX} bytes")
            summary = self._decoder.decode(response.content)
            if summary.hub_id != peer.hub_id:
                raise ValueError(f"answers as `{summary.hub_id}`")
        except (httpx.HTTPError, msgspec.DecodeError, ValueError) as error:
            peer.error = str(error) or type(error).__name__
            return
        peer.summary, peer.received_s, peer.error = summary, self._clock.monotonic_s(), ""
