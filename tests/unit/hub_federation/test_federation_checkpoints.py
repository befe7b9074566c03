"""Each peer is shown what it does not know yet, keeps what others show, and tells of a contradiction."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from harch.base.clock import SystemClock
from harch.base.errors import HarchError
from harch.hub.federation import checkpoints as module
from harch.hub.federation.checkpoints import CheckpointPost
from harch.hub.federation.messages import CheckpointKept, CheckpointSent
from harch.sovereignty.audit.chain import ChainHead
from harch.sovereignty.audit.checkpoints import SignedCheckpoint, sign
from harch.sovereignty.audit.verification import Loss

KEY = Ed25519PrivateKey.generate()


class Chain:
    """An audit chain that others see grow. `keeping` raises what it is told to."""

    def __init__(self) -> None:
        self.seq = 1
        self.kept: list[SignedCheckpoint] = []
        self.refusal: HarchError | None = None
        self.loss: Loss | None = None
        self.kept_of: dict[str, SignedCheckpoint] = {}
        self.confronted: list[tuple[str, SignedCheckpoint]] = []

    async def newest_kept(self, hub: str) -> SignedCheckpoint | None:
        return self.kept_of.get(hub)

    async def confront(self, signed: SignedCheckpoint, source: str) -> None:
        self.confronted.append((source, signed))

    async def head(self) -> SignedCheckpoint:
        return sign(ChainHead(self.seq, f"{self.seq:064x}"), hub="dakhla", at="2026-01-01T00:00:00.000Z", key=KEY)

    async def key_statements(self) -> list[Any]:
        return []

    async def keep(self, signed: SignedCheckpoint, statements: object) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.kept.append(signed)


class Bench:
    def __init__(self) -> None:
        self.chain = Chain()
        self.sent: list[tuple[str, int]] = []
        self.given_back: list[tuple[str, int]] = []
        self.notes: list[tuple[str, str, str]] = []
        audit: Any = self.chain
        self.post = CheckpointPost(
            audit,
            SystemClock(),
            send=self._send,
            note=lambda *line: self.notes.append(line),
            takes_back=lambda hub_id: hub_id != "of an older version",
        )

    def _send(self, hub_id: str, message: CheckpointSent | CheckpointKept) -> None:
        to = self.sent if isinstance(message, CheckpointSent) else self.given_back
        to.append((hub_id, message.checkpoint.checkpoint.seq))

    async def until_sent(self, *expected: tuple[str, int]) -> None:
        async with asyncio.timeout(5):
            while self.sent != list(expected):
                await asyncio.sleep(0.001)


@pytest.fixture
async def bench(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    monkeypatch.setattr(module, "SHOW_EVERY_S", 0.005)
    made = Bench()
    task = asyncio.create_task(made.post.run())
    yield made
    task.cancel()
    made.post.close()


async def test_a_peer_is_shown_the_newest_when_it_is_linked_and_whenever_it_has_changed(bench: Bench) -> None:
    bench.post.linked("dakar")
    await bench.until_sent(("dakar", 1))
    bench.post.linked("tangier")
    await bench.until_sent(("dakar", 1), ("tangier", 1))
    bench.post.unlinked("tangier")
    bench.chain.seq = 7
    await bench.until_sent(("dakar", 1), ("tangier", 1), ("dakar", 7))


async def test_a_hub_shows_its_own_chain_only_and_a_contradiction_is_told(bench: Bench) -> None:
    shown = CheckpointSent(checkpoint=await bench.chain.head())
    bench.post.came("tangier", shown)
    bench.post.came("dakhla", shown)
    await asyncio.sleep(0)
    assert bench.chain.kept == [shown.checkpoint]
    bench.chain.refusal = HarchError("E0920", "two histories")
    bench.post.came("dakhla", shown)
    await asyncio.sleep(0)
    assert bench.notes == [("audit.contradicted", "dakhla", "two histories")]


async def test_a_hub_that_comes_back_is_shown_what_is_kept_of_it(bench: Bench) -> None:
    for hub_id in ("dakar", "of an older version"):
        bench.chain.kept_of[hub_id] = sign(ChainHead(9, "9" * 64), hub=hub_id, at="2026-01-01T00:00:00.000Z", key=KEY)
        bench.post.linked(hub_id)
    await bench.until_sent(("dakar", 1), ("of an older version", 1))
    assert bench.given_back == [("dakar", 9)]
    back = CheckpointKept(checkpoint=await bench.chain.head())
    bench.post.came_back("dakar", back)
    await asyncio.sleep(0)
    assert bench.chain.confronted == [("dakar", back.checkpoint)]


async def test_a_chain_that_lacks_its_end_is_not_shown(bench: Bench) -> None:
    bench.chain.loss = Loss(found=ChainHead(1, "1" * 64), lost=ChainHead(9, "9" * 64), source="dakar")
    bench.post.linked("dakar")
    await asyncio.sleep(0.05)
    assert bench.sent == []
