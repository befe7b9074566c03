"""What does ACT ask of an adapter? To look before it sends, to do one thing once, and to say what became of it."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Protocol

import msgspec
from msgspec import Struct

from harch.base.egress import Guard
from harch.pipelines.act.templates import Args
from harch.sovereignty.places import EgressRule

ANSWER_BYTES_MAX = 64 * 1024

# Why nothing may be sent now; empty when it may. Adapters ask after connecting, right before the request leaves.
Gate = Callable[[], str]


class Effect(StrEnum):
    YES = "yes"
    NO = "no"
    MAYBE = "maybe"


class Outcome(Struct, frozen=True):
    """What became of a request. NO is a promise: it was not carried out and will not be. In doubt it is MAYBE.

    `retry`: whether trying again could help. `verified`: the adapter read it back itself.
    """

    effect: Effect
    detail: str = ""
    retry: bool = True
    verified: bool = False


class Prepared(Struct, frozen=True):
    """Whether a step could be carried out, asked before any step is; `undo`: what would take it back."""

    refusal: str = ""
    retry: bool = True
    undo: Args | None = None


class Order(Struct, frozen=True, kw_only=True):
    """One request. `key` is the same for every attempt; `fence` grows with each, so a far side can refuse old ones."""

    key: str
    cmd_id: str
    device: str
    action: str
    args: Args
    fence: int
    timeout_s: float
    expires_ms: int
    undo: bool = False
    trace: str = ""
    juris_mask: int = 0


class Sink(Protocol):
    """An adapter. `keeps_keys`: the same key again has no second effect. `reads_back`: `probe` can answer yes or no."""

    @property
    def keeps_keys(self) -> bool: ...

    @property
    def reads_back(self) -> bool: ...

    @property
    def timeout_s(self) -> float:
        """No call takes longer; a request that was not answered by then is MAYBE."""
        ...

    async def prepare(self, order: Order) -> Prepared: ...

    async def execute(self, order: Order, gate: Gate) -> Outcome: ...

    async def probe(self, order: Order) -> Outcome:
        """Was it carried out? Sends nothing that could change anything."""
        ...

    async def close(self) -> None: ...


def at_home() -> Guard:
    """For a sink of which nothing else was proved: this machine alone."""
    return Guard(EgressRule().refusal)


def closed(reason: str) -> Outcome:
    """The gate was closed: nothing left the machine."""
    return Outcome(Effect.NO, reason, retry=True)


def encoded(order: Order) -> bytes:
    """The body that message sinks send: everything a device needs in order to do it once, and in time."""
    return msgspec.json.encode(
        {
            "key": order.key,
            "cmd_id": order.cmd_id,
            "device": order.device,
            "action": order.action,
            "args": order.args,
            "undo": order.undo,
            "fence": order.fence,
            "expires_ms": order.expires_ms,
            "trace": order.trace,
        }
    )
