"""What exactly is to be done? A command, its identity, and the hash that a person approves.

`cmd_id` names the decision: the same pipeline, device, action, arguments and window give the same id, however often a
batch is delivered. `digest` covers every field, lifetime and mode included, so what was approved is what is sent.
"""

from __future__ import annotations

import hashlib
import math

import msgspec
from msgspec import Struct

from harch.pipelines.act.settings import Mode
from harch.pipelines.act.templates import Args

COMMAND_BYTES_MAX = 256 * 1024

# Sorted keys, shortest numbers, no spaces: equal values give equal bytes, on every machine.
_canonical = msgspec.json.Encoder(order="deterministic").encode


class Step(Struct, frozen=True):
    """One thing to do at one sink, and the arguments that would take it back."""

    sink: str
    args: Args
    undo: Args | None = None


class Command(Struct, frozen=True, kw_only=True):
    """One decided action. Times are milliseconds since 1970, UTC; `issued_ms` is the time of the decision, not of its
    delivery, so a delivery that comes late does not make a command younger."""

    cmd_id: str
    pipeline: str
    device: str
    action: str
    steps: tuple[Step, ...]
    window: int
    mode: Mode
    issued_ms: int
    expires_ms: int
    priority: int = 5
    juris_mask: int = 0
    policy_version: int = 0
    model: str = ""  # hash of the model that decided
    trace: str = ""
    dry_run: bool = False
    again: str = ""  # the replay that a person wants carried out once more; else the same decision is one command

    def key(self, step: int, *, undo: bool = False) -> str:
        """The idempotency key of one step: what a sink remembers."""
        return f"{self.cmd_id}:{step}:undo" if undo else f"{self.cmd_id}:{step}"

    def expired(self, now_ms: int) -> bool:
        return now_ms >= self.expires_ms


def command_id(pipeline: str, device: str, action: str, steps: tuple[Step, ...], window: int, again: str = "") -> str:
    """SHA-256 over canonical bytes. Raises ValueError for numbers that JSON cannot say."""
    for step in steps:
        for name, value in {**step.args, **(step.undo or {})}.items():
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError(f"argument `{name}` is not a finite number")
    named = (pipeline, device, action, steps, window)
    return hashlib.sha256(_canonical((*named, again) if again else named)).hexdigest()


def make_command(
    *,
    pipeline: str,
    device: str,
    action: str,
    steps: tuple[Step, ...],
    window: int,
    mode: Mode,
    issued_ms: int,
    ttl_s: float,
    priority: int = 5,
    juris_mask: int = 0,
    policy_version: int = 0,
    model: str = "",
    trace: str = "",
    dry_run: bool = False,
    again: str = "",
) -> Command:
    """A command with its id."""
    return Command(
        cmd_id=command_id(pipeline, device, action, steps, window, again),
        pipeline=pipeline,
        device=device,
        action=action,
        steps=steps,
        window=window,
        mode=mode,
        issued_ms=issued_ms,
        expires_ms=issued_ms + round(ttl_s * 1000),
        priority=priority,
        juris_mask=juris_mask,
        policy_version=policy_version,
        model=model,
        trace=trace,
        dry_run=dry_run,
        again=again,
    )


def digest(command: Command) -> str:
    """The hash of every field: what a person approves, and what is compared again before anything is sent."""
    return hashlib.sha256(_canonical(command)).hexdigest()


def is_itself(command: Command) -> bool:
    """Whether the id still belongs to the content."""
    named = (command.pipeline, command.device, command.action, command.steps, command.window, command.again)
    return command.cmd_id == command_id(*named)
