"""What exactly is to be done, and what has become of it?

A command, its identity and hash, the states of the ledger and the only ways between them. No I/O, no clock.
"""

# harch: pure

from __future__ import annotations

import hashlib
import math
from enum import StrEnum
from typing import Any

import msgspec
from msgspec import Struct, structs

from harch.base.errors import HarchError, InvariantBroken
from harch.pipelines.act.expressions import Args
from harch.pipelines.act.settings import Mode

# What exactly is to be done? A command, its identity, and the hash that a person approves.
#
# `cmd_id` names the decision: the same pipeline, device, action, arguments and window give the same id, however often a
# batch is delivered. `digest` covers every field, lifetime and mode included, so what was approved is what is sent.


COMMAND_BYTES_MAX = 256 * 1024

# Sorted keys, shortest numbers, no spaces: equal values give equal bytes, on every machine.
_canonical = msgspec.json.Encoder(order="deterministic").encode


class CommandStep(Struct, frozen=True):
    """One thing to do at one sink, and the arguments that would take it back."""

    sink: str
    args: Args
    undo: Args | None = None


class ActionCommand(Struct, frozen=True, kw_only=True):
    """One decided action. Times are milliseconds since 1970, UTC; `issued_ms` is the time of the decision, not of its
    delivery, so a delivery that comes late does not make a command younger."""

    cmd_id: str
    pipeline: str
    device: str
    action: str
    steps: tuple[CommandStep, ...]
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


def command_id(
    pipeline: str, device: str, action: str, steps: tuple[CommandStep, ...], window: int, again: str = ""
) -> str:
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
    steps: tuple[CommandStep, ...],
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
) -> ActionCommand:
    """A command with its id."""
    return ActionCommand(
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


def digest(command: ActionCommand) -> str:
    """The hash of every field: what a person approves, and what is compared again before anything is sent."""
    return hashlib.sha256(_canonical(command)).hexdigest()


def is_itself(command: ActionCommand) -> bool:
    """Whether the id still belongs to the content."""
    named = (command.pipeline, command.device, command.action, command.steps, command.window, command.again)
    return command.cmd_id == command_id(*named)


# What has become of a command? The states of the ledger and the only ways between them. No I/O, no clock.
#
# PROPOSED -> [AWAIT_CONFIRM] -> AUTHORISED -> INTENT -> SENT -> DONE | FAILED | UNKNOWN; EXPIRED, REJECTED, DEAD.
#
# INTENT is on disk before a sink hears of the command. Whoever finds INTENT or SENT without its worker must assume that
# the command was carried out: it becomes UNKNOWN, and the sink is asked before anything is sent again. Each claim
# raises
# `fence`; a result that carries an older fence comes from a worker that was overtaken, and changes nothing.


REASON_CHARS_MAX = 500


class CommandState(StrEnum):
    PROPOSED = "proposed"
    AWAIT_CONFIRM = "await-confirm"
    AUTHORISED = "authorised"
    INTENT = "intent"
    SENT = "sent"
    DONE = "done"
    FAILED = "failed"  # known not to have happened; tried again at `due_ms`, unless closed
    UNKNOWN = "unknown"  # may have happened; read back before anything else
    EXPIRED = "expired"
    REJECTED = "rejected"
    DEAD = "dead"  # given up; a letter for a person, if the action keeps letters


class LedgerEntry(Struct, frozen=True, kw_only=True):
    """A command and its story so far. `digest` is that of the command when it was proposed."""

    command: ActionCommand
    state: CommandState
    digest: str
    changed_ms: int
    closed: bool = False
    fence: int = 0
    worker: str = ""
    busy_until_ms: int = 0  # until then a request may be under way, and nobody else touches the command
    due_ms: int = 0
    attempts: int = 0  # claims in order to send
    questions: int = 0  # claims in order to find out
    steps_done: int = 0
    undo: tuple[Args | None, ...] = ()  # per step, as prepared
    undoing: bool = False
    undo_attempts: int = 0
    maybe_sent: bool = False  # an earlier request may have been carried out, and nobody has found out
    approved_digest: str = ""
    approved_by: str = ""
    letter: bool = False
    reason: str = ""

    @property
    def cmd_id(self) -> str:
        return self.command.cmd_id


def unresolved(entry: LedgerEntry) -> bool:
    """Whether a device may be in the middle of it. Until that is over, a look at the device must find what this command
    left there, so no other command may go to the device."""
    under_way = entry.state in (CommandState.INTENT, CommandState.SENT, CommandState.UNKNOWN)
    return not entry.closed and (under_way or entry.maybe_sent or entry.undoing or entry.steps_done > 0)


encode_entry = msgspec.json.Encoder().encode
decode_entry = msgspec.json.Decoder(LedgerEntry).decode


def proposed(command: ActionCommand, *, now_ms: int) -> LedgerEntry:
    return LedgerEntry(command=command, state=CommandState.PROPOSED, digest=digest(command), changed_ms=now_ms)


def authorised(entry: LedgerEntry, *, now_ms: int) -> LedgerEntry:
    """The rule and the interlocks said yes; a command that needs a person waits for one."""
    _must(entry, CommandState.PROPOSED)
    waits = entry.command.mode is Mode.CONFIRM
    return _to(entry, CommandState.AWAIT_CONFIRM if waits else CommandState.AUTHORISED, now_ms)


def approved(entry: LedgerEntry, approved_digest: str, by: str, *, now_ms: int) -> LedgerEntry:
    """A person approves exactly this. Raises E0772 or E0773, and then nothing is approved."""
    if entry.state is not CommandState.AWAIT_CONFIRM:
        raise not_possible(entry, "approved")
    if entry.command.expired(now_ms):
        raise HarchError("E0772", "the command has expired", hint="wait for the next decision")
    if not by.strip():
        raise HarchError("E0201", "an approval needs the name of a person", field="by", hint="name the approver")
    if approved_digest != entry.digest or digest(entry.command) != entry.digest:
        raise HarchError(
            "E0773",
            f"`{approved_digest[:16]}…` is not the hash of the pending command",
            hint="list the pending commands again and approve the hash listed",
        )
    return _to(entry, CommandState.AUTHORISED, now_ms, approved_digest=approved_digest, approved_by=by[:200])


def rejected(entry: LedgerEntry, reason: str, *, now_ms: int, by: str = "") -> LedgerEntry:
    """Nothing of it was sent, and nothing will be."""
    if entry.closed or entry.steps_done or entry.maybe_sent or entry.state in (CommandState.INTENT, CommandState.SENT):
        raise not_possible(entry, "rejected")
    return _to(entry, CommandState.REJECTED, now_ms, closed=True, reason=reason, approved_by=by or entry.approved_by)


def expired(entry: LedgerEntry, *, now_ms: int) -> LedgerEntry:
    if entry.closed or entry.steps_done or entry.maybe_sent or not entry.command.expired(now_ms):
        raise InvariantBroken("only an unsent, overdue command expires", entry.cmd_id, entry.state)
    return _to(entry, CommandState.EXPIRED, now_ms, closed=True, reason="expired before it was sent")


def altered(entry: LedgerEntry) -> str:
    """Why this is not what was proposed or approved; empty when it is."""
    if not is_itself(entry.command) or digest(entry.command) != entry.digest:
        return "the command differs from the one proposed"
    if entry.command.mode is Mode.CONFIRM and entry.approved_digest != entry.digest:
        return "this exact command was not approved"
    return ""


def claimed(
    entry: LedgerEntry, worker: str, *, now_ms: int, busy_until_ms: int, undo: tuple[Args | None, ...] | None = None
) -> LedgerEntry:
    """The intent to send. What must never be sent is refused here once more, whatever the caller checked."""
    _must(entry, CommandState.AUTHORISED, CommandState.FAILED)
    if entry.closed or entry.undoing or now_ms < entry.due_ms:
        raise InvariantBroken("claimed out of turn", entry.cmd_id)
    if why := altered(entry):
        raise InvariantBroken(why, entry.cmd_id)
    if entry.command.expired(now_ms):
        raise InvariantBroken("an expired command is never sent", entry.cmd_id)
    return _to(
        entry,
        CommandState.INTENT,
        now_ms,
        worker=worker,
        fence=entry.fence + 1,
        attempts=entry.attempts + 1,
        busy_until_ms=busy_until_ms,
        undo=entry.undo if undo is None else undo,
        reason="",
    )


def questioned(entry: LedgerEntry, worker: str, *, now_ms: int, busy_until_ms: int) -> LedgerEntry:
    """Takes over what may have been sent, in order to find out. Not before the request of the last claim is over."""
    _must(entry, CommandState.INTENT, CommandState.SENT, CommandState.UNKNOWN)
    if entry.closed or now_ms < entry.busy_until_ms:
        raise InvariantBroken("a command under way is not taken over", entry.cmd_id)
    return _to(
        entry,
        CommandState.UNKNOWN,
        now_ms,
        worker=worker,
        fence=entry.fence + 1,
        questions=entry.questions + 1,
        busy_until_ms=busy_until_ms,
        maybe_sent=True,
    )


def taking_back(entry: LedgerEntry, worker: str, reason: str, *, now_ms: int, busy_until_ms: int) -> LedgerEntry:
    """The intent to undo the steps that were carried out, last first."""
    if entry.closed or not entry.steps_done:
        raise InvariantBroken("there is nothing to take back", entry.cmd_id)
    return _to(
        entry,
        CommandState.INTENT,
        now_ms,
        worker=worker,
        fence=entry.fence + 1,
        busy_until_ms=busy_until_ms,
        undoing=True,
        undo_attempts=entry.undo_attempts + 1,
        reason=entry.reason if entry.undoing else reason,
    )


def sent(entry: LedgerEntry, *, now_ms: int) -> LedgerEntry:
    _must(entry, CommandState.INTENT)
    return _to(entry, CommandState.SENT, now_ms)


def step_done(entry: LedgerEntry, *, now_ms: int) -> LedgerEntry:
    """One more step is known to have been carried out; after the last one the command is done."""
    _must(entry, CommandState.INTENT, CommandState.SENT, CommandState.UNKNOWN)
    if entry.undoing or entry.steps_done >= len(entry.command.steps):
        raise InvariantBroken("no step is left", entry.cmd_id)
    count = entry.steps_done + 1
    if count < len(entry.command.steps):
        state = CommandState.UNKNOWN if entry.state is CommandState.UNKNOWN else CommandState.INTENT
        # Found out after the fact: the next step may have been sent too. Just sent: the next one was not.
        return _to(entry, state, now_ms, steps_done=count, maybe_sent=state is CommandState.UNKNOWN)
    return _to(entry, CommandState.DONE, now_ms, steps_done=count, closed=True, maybe_sent=False)


def step_undone(entry: LedgerEntry, *, now_ms: int) -> LedgerEntry:
    _must(entry, CommandState.INTENT)
    if not entry.undoing or not entry.steps_done:
        raise InvariantBroken("nothing is being taken back", entry.cmd_id)
    return _to(entry, CommandState.INTENT, now_ms, steps_done=entry.steps_done - 1)


def failed(entry: LedgerEntry, reason: str, *, now_ms: int, due_ms: int) -> LedgerEntry:
    """The last request had no effect, or repeating it has none (then `maybe_sent` stays); again at `due_ms`."""
    _must(
        entry,
        CommandState.AUTHORISED,
        CommandState.FAILED,
        CommandState.INTENT,
        CommandState.SENT,
        CommandState.UNKNOWN,
    )
    claimed_before = entry.state in (CommandState.INTENT, CommandState.SENT, CommandState.UNKNOWN)
    # What was refused before it was claimed counts as an attempt, too.
    attempts = entry.attempts if claimed_before or entry.undoing else entry.attempts + 1
    return _to(entry, CommandState.FAILED, now_ms, due_ms=due_ms, busy_until_ms=0, attempts=attempts, reason=reason)


def cleared_up(entry: LedgerEntry) -> LedgerEntry:
    """The sink says that the step under way was not carried out."""
    return structs.replace(entry, maybe_sent=False)


def unknown(entry: LedgerEntry, reason: str, *, now_ms: int, due_ms: int) -> LedgerEntry:
    """Not before `due_ms`, when the request can no longer take effect, is asked what became of it."""
    _must(entry, CommandState.INTENT, CommandState.SENT, CommandState.UNKNOWN)
    return _to(entry, CommandState.UNKNOWN, now_ms, due_ms=due_ms, busy_until_ms=due_ms, maybe_sent=True, reason=reason)


def delayed(entry: LedgerEntry, *, due_ms: int) -> LedgerEntry:
    """Not now, for a reason that nobody has to remember."""
    return structs.replace(entry, due_ms=due_ms)


def given_up(entry: LedgerEntry, reason: str, *, now_ms: int, letter: bool, maybe_sent: bool) -> LedgerEntry:
    """No further attempt by itself. With a letter the command is DEAD; else it ends as what is known of it."""
    _must(entry, *CommandState)
    end = CommandState.DEAD if letter else CommandState.UNKNOWN if maybe_sent else CommandState.FAILED
    return _to(entry, end, now_ms, closed=True, letter=letter, maybe_sent=maybe_sent, reason=reason)


def replayed(entry: LedgerEntry, *, now_ms: int, not_carried_out: bool) -> LedgerEntry:
    """A dead command gets a new set of attempts, under the same id. Raises E0772 or E0774."""
    if entry.state is not CommandState.DEAD or not entry.letter:
        raise not_possible(entry, "replayed")
    if not entry.command.steps:
        raise HarchError("E0772", "no command could be created from this input", hint=f"fix the cause: {entry.reason}")
    if entry.undo_attempts:
        raise HarchError("E0772", "it was undone, and its keys are used up", hint="wait for the next decision")
    if entry.command.expired(now_ms):
        raise HarchError("E0772", "the command has expired", hint="drop the letter")
    if entry.maybe_sent and not not_carried_out:
        raise HarchError(
            "E0774", "it may have been executed", hint="check the device, then replay with `not_carried_out`"
        )
    return _to(
        entry, CommandState.AUTHORISED, now_ms, closed=False, letter=False, attempts=0, questions=0, due_ms=0,
        busy_until_ms=0, maybe_sent=False, reason="replayed",
    )  # fmt: skip


def dropped(entry: LedgerEntry, *, now_ms: int) -> LedgerEntry:
    """The letter goes; the entry stays, so that the command is still known."""
    if entry.state is not CommandState.DEAD or not entry.letter:
        raise not_possible(entry, "dropped")
    return _to(entry, CommandState.DEAD, now_ms, letter=False)


def not_possible(entry: LedgerEntry, what: str) -> HarchError:
    detail = f"is {entry.state}" + (f" ({entry.reason})" if entry.reason else "")
    return HarchError("E0772", f"command `{entry.cmd_id[:16]}…` {detail} and cannot be {what}", hint="list it again")


def _must(entry: LedgerEntry, *states: CommandState) -> None:
    if entry.closed or entry.state not in states:
        raise InvariantBroken("no such way between states", entry.cmd_id, entry.state)


def _to(entry: LedgerEntry, state: CommandState, now_ms: int, **changes: Any) -> LedgerEntry:
    if "reason" in changes:
        changes["reason"] = str(changes["reason"])[:REASON_CHARS_MAX]
    return structs.replace(entry, state=state, changed_ms=now_ms, **changes)
