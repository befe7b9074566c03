"""What does ACT need of an adapter?

To look before it sends, to do one operation once, and to say what became of it; secrets come from variables that the
spec names.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Protocol

import msgspec
from msgspec import Struct

from harch.base.egress import EgressGuard
from harch.base.errors import HarchError
from harch.pipelines.act.expressions import Args
from harch.sovereignty.jurisdictions import EgressRule

ANSWER_BYTES_MAX = 64 * 1024

# Why nothing may be sent now; empty when it may. Adapters ask after connecting, right before the request leaves.
SendGate = Callable[[], str]


class Effect(StrEnum):
    YES = "yes"
    NO = "no"
    MAYBE = "maybe"


class SinkOutcome(Struct, frozen=True):
    """What became of a request. NO is a promise: it was not carried out and will not be. In doubt it is MAYBE.

    `retry`: whether trying again could help. `verified`: the adapter read it back itself.
    """

    effect: Effect
    detail: str = ""
    retry: bool = True
    verified: bool = False


class PreparedRequest(Struct, frozen=True):
    """Whether a step could be carried out, asked before any step is; `undo`: what would take it back."""

    refusal: str = ""
    retry: bool = True
    undo: Args | None = None


class SinkRequest(Struct, frozen=True, kw_only=True):
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

    async def prepare(self, order: SinkRequest) -> PreparedRequest: ...

    async def execute(self, order: SinkRequest, gate: SendGate) -> SinkOutcome: ...

    async def probe(self, order: SinkRequest) -> SinkOutcome:
        """Was it carried out? Sends nothing that could change anything."""
        ...

    async def close(self) -> None: ...


def at_home() -> EgressGuard:
    """For a sink of which nothing else was proved: this machine alone."""
    return EgressGuard(EgressRule().refusal)


def closed(reason: str) -> SinkOutcome:
    """The gate was closed: nothing left the machine."""
    return SinkOutcome(Effect.NO, reason, retry=True)


def encoded(order: SinkRequest) -> bytes:
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


# Where do secrets of sinks come from? From variables that the spec names as `env:NAME`, read once, never shown.


_PREFIX = "env:"


def from_environment(value: str, environment: Mapping[str, str] | None = None) -> str:
    """The value itself, or that of the variable it names. Raises E0776 where the variable is not set."""
    return variable(value[len(_PREFIX) :], environment) if value.startswith(_PREFIX) else value


def variable(name: str, environment: Mapping[str, str] | None = None) -> str:
    found = (os.environ if environment is None else environment).get(name)
    if found is None:
        raise HarchError("E0776", f"the variable `{name}` is not set", hint=f"set {name} for the ACT stage")
    return found
