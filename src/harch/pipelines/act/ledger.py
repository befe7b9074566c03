"""What has become of a command? The states of the ledger and the only ways between them. No I/O, no clock.

PROPOSED -> [AWAIT_CONFIRM] -> AUTHORISED -> INTENT -> SENT -> DONE | FAILED | UNKNOWN; EXPIRED, REJECTED, DEAD.

INTENT is on disk before a sink hears of the command. Whoever finds INTENT or SENT without its worker must assume that
the command was carried out: it becomes UNKNOWN, and the sink is asked before anything is sent again. Each claim raises
`fence`; a result that carries an older fence comes from a worker that was overtaken, and changes nothing.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec
from msgspec import Struct, structs

from harch.base.errors import HarchError, InvariantBroken
from harch.pipelines.act.command import Command, digest, is_itself
from harch.pipelines.act.settings import Mode
from harch.pipelines.act.templates import Args

REASON_CHARS_MAX = 500


class State(StrEnum):
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


class Entry(Struct, frozen=True, kw_only=True):
    """A command and its story so far. `digest` is that of the command when it was proposed."""

    command: Command
    state: State
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


def unresolved(entry: Entry) -> bool:
    """Whether a device may be in the middle of it. Until that is over, a look at the device must find what this command
    left there, so no other command may go to the device."""
    under_way = entry.state in (State.INTENT, State.SENT, State.UNKNOWN)
    return not entry.closed and (under_way or entry.maybe_sent or entry.undoing or entry.steps_done > 0)


encode_entry = msgspec.json.Encoder().encode
decode_entry = msgspec.json.Decoder(Entry).decode


def proposed(command: Command, *, now_ms: int) -> Entry:
    return Entry(command=command, state=State.PROPOSED, digest=digest(command), changed_ms=now_ms)


def authorised(entry: Entry, *, now_ms: int) -> Entry:
    """The rule and the interlocks said yes; a command that needs a person waits for one."""
    _must(entry, State.PROPOSED)
    waits = entry.command.mode is Mode.CONFIRM
    return _to(entry, State.AWAIT_CONFIRM if waits else State.AUTHORISED, now_ms)


def approved(entry: Entry, approved_digest: str, by: str, *, now_ms: int) -> Entry:
    """A person approves exactly this. Raises E0772 or E0773, and then nothing is approved."""
    if entry.state is not State.AWAIT_CONFIRM:
        raise not_possible(entry, "approved")
    if entry.command.expired(now_ms):
        raise HarchError("E0772", "the command's time is over", hint="wait for the next decision")
    if not by.strip():
        raise HarchError("E0201", "an approval needs the name of a person", field="by", hint="say who approves")
    if approved_digest != entry.digest or digest(entry.command) != entry.digest:
        raise HarchError(
            "E0773",
            f"`{approved_digest[:16]}…` is not the hash of the command that waits",
            hint="list the waiting commands again and approve the hash shown",
        )
    return _to(entry, State.AUTHORISED, now_ms, approved_digest=approved_digest, approved_by=by[:200])


def rejected(entry: Entry, reason: str, *, now_ms: int, by: str = "") -> Entry:
    """Nothing of it was sent, and nothing will be."""
    if entry.closed or entry.steps_done or entry.maybe_sent or entry.state in (State.INTENT, State.SENT):
        raise not_possible(entry, "rejected")
    return _to(entry, State.REJECTED, now_ms, closed=True, reason=reason, approved_by=by or entry.approved_by)


def expired(entry: Entry, *, now_ms: int) -> Entry:
    if entry.closed or entry.steps_done or entry.maybe_sent or not entry.command.expired(now_ms):
        raise InvariantBroken("only an unsent command whose time is over expires", entry.cmd_id, entry.state)
    return _to(entry, State.EXPIRED, now_ms, closed=True, reason="its time was over before it was sent")


def altered(entry: Entry) -> str:
    """Why this is not what was proposed or approved; empty when it is."""
    if not is_itself(entry.command) or digest(entry.command) != entry.digest:
        return "the command is not the one that was proposed"
    if entry.command.mode is Mode.CONFIRM and entry.approved_digest != entry.digest:
        return "nobody approved exactly this command"
    return ""


def claimed(
    entry: Entry, worker: str, *, now_ms: int, busy_until_ms: int, undo: tuple[Args | None, ...] | None = None
) -> Entry:
    """The intent to send. What must never be sent is refused here once more, whatever the caller checked."""
    _must(entry, State.AUTHORISED, State.FAILED)
    if entry.closed or entry.undoing or now_ms < entry.due_ms:
        raise InvariantBroken("claimed out of turn", entry.cmd_id)
    if why := altered(entry):
        raise InvariantBroken(why, entry.cmd_id)
    if entry.command.expired(now_ms):
        raise InvariantBroken("an expired command is never sent", entry.cmd_id)
    return _to(
        entry,
        State.INTENT,
        now_ms,
        worker=worker,
        fence=entry.fence + 1,
        attempts=entry.attempts + 1,
        busy_until_ms=busy_until_ms,
        undo=entry.undo if undo is None else undo,
        reason="",
    )


def questioned(entry: Entry, worker: str, *, now_ms: int, busy_until_ms: int) -> Entry:
    """Takes over what may have been sent, in order to find out. Not before the request of the last claim is over."""
    _must(entry, State.INTENT, State.SENT, State.UNKNOWN)
    if entry.closed or now_ms < entry.busy_until_ms:
        raise InvariantBroken("a command under way is not taken over", entry.cmd_id)
    return _to(
        entry,
        State.UNKNOWN,
        now_ms,
        worker=worker,
        fence=entry.fence + 1,
        questions=entry.questions + 1,
        busy_until_ms=busy_until_ms,
        maybe_sent=True,
    )


def taking_back(entry: Entry, worker: str, reason: str, *, now_ms: int, busy_until_ms: int) -> Entry:
    """The intent to undo the steps that were carried out, last first."""
    if entry.closed or not entry.steps_done:
        raise InvariantBroken("there is nothing to take back", entry.cmd_id)
    return _to(
        entry,
        State.INTENT,
        now_ms,
        worker=worker,
        fence=entry.fence + 1,
        busy_until_ms=busy_until_ms,
        undoing=True,
        undo_attempts=entry.undo_attempts + 1,
        reason=entry.reason if entry.undoing else reason,
    )


def sent(entry: Entry, *, now_ms: int) -> Entry:
    _must(entry, State.INTENT)
    return _to(entry, State.SENT, now_ms)


def step_done(entry: Entry, *, now_ms: int) -> Entry:
    """One more step is known to have been carried out; after the last one the command is done."""
    _must(entry, State.INTENT, State.SENT, State.UNKNOWN)
    if entry.undoing or entry.steps_done >= len(entry.command.steps):
        raise InvariantBroken("no step is left", entry.cmd_id)
    count = entry.steps_done + 1
    if count < len(entry.command.steps):
        state = State.UNKNOWN if entry.state is State.UNKNOWN else State.INTENT
        # Found out after the fact: the next step may have been sent too. Just sent: the next one was not.
        return _to(entry, state, now_ms, steps_done=count, maybe_sent=state is State.UNKNOWN)
    return _to(entry, State.DONE, now_ms, steps_done=count, closed=True, maybe_sent=False)


def step_undone(entry: Entry, *, now_ms: int) -> Entry:
    _must(entry, State.INTENT)
    if not entry.undoing or not entry.steps_done:
        raise InvariantBroken("nothing is being taken back", entry.cmd_id)
    return _to(entry, State.INTENT, now_ms, steps_done=entry.steps_done - 1)


def failed(entry: Entry, reason: str, *, now_ms: int, due_ms: int) -> Entry:
    """The last request had no effect, or repeating it has none (then `maybe_sent` stays); again at `due_ms`."""
    _must(entry, State.AUTHORISED, State.FAILED, State.INTENT, State.SENT, State.UNKNOWN)
    claimed_before = entry.state in (State.INTENT, State.SENT, State.UNKNOWN)
    # What was refused before it was claimed counts as an attempt, too.
    attempts = entry.attempts if claimed_before or entry.undoing else entry.attempts + 1
    return _to(entry, State.FAILED, now_ms, due_ms=due_ms, busy_until_ms=0, attempts=attempts, reason=reason)


def cleared_up(entry: Entry) -> Entry:
    """The sink says that the step under way was not carried out."""
    return structs.replace(entry, maybe_sent=False)


def unknown(entry: Entry, reason: str, *, now_ms: int, due_ms: int) -> Entry:
    """Not before `due_ms`, when the request can no longer take effect, is asked what became of it."""
    _must(entry, State.INTENT, State.SENT, State.UNKNOWN)
    return _to(entry, State.UNKNOWN, now_ms, due_ms=due_ms, busy_until_ms=due_ms, maybe_sent=True, reason=reason)


def delayed(entry: Entry, *, due_ms: int) -> Entry:
    """Not now, for a reason that nobody has to remember."""
    return structs.replace(entry, due_ms=due_ms)


def given_up(entry: Entry, reason: str, *, now_ms: int, letter: bool, maybe_sent: bool) -> Entry:
    """No further attempt by itself. With a letter the command is DEAD; else it ends as what is known of it."""
    _must(entry, *State)
    end = State.DEAD if letter else State.UNKNOWN if maybe_sent else State.FAILED
    return _to(entry, end, now_ms, closed=True, letter=letter, maybe_sent=maybe_sent, reason=reason)


def replayed(entry: Entry, *, now_ms: int, not_carried_out: bool) -> Entry:
    """A dead command gets a new set of attempts, under the same id. Raises E0772 or E0774."""
    if entry.state is not State.DEAD or not entry.letter:
        raise not_possible(entry, "replayed")
    if not entry.command.steps:
        raise HarchError("E0772", "no command could be made of this input", hint=f"mend the cause: {entry.reason}")
    if entry.undo_attempts:
        raise HarchError("E0772", "it was taken back, and its keys are spent", hint="wait for the next decision")
    if entry.command.expired(now_ms):
        raise HarchError("E0772", "the command's time is over", hint="drop the letter")
    if entry.maybe_sent and not not_carried_out:
        raise HarchError(
            "E0774", "it may have been carried out", hint="look at the device, then replay with `not_carried_out`"
        )
    return _to(
        entry, State.AUTHORISED, now_ms, closed=False, letter=False, attempts=0, questions=0, due_ms=0,
        busy_until_ms=0, maybe_sent=False, reason="replayed",
    )  # fmt: skip


def dropped(entry: Entry, *, now_ms: int) -> Entry:
    """The letter goes; the entry stays, so that the command is still known."""
    if entry.state is not State.DEAD or not entry.letter:
        raise not_possible(entry, "dropped")
    return _to(entry, State.DEAD, now_ms, letter=False)


def not_possible(entry: Entry, what: str) -> HarchError:
    told = f"is {entry.state}" + (f" ({entry.reason})" if entry.reason else "")
    return HarchError("E0772", f"command `{entry.cmd_id[:16]}…` {told} and cannot be {what}", hint="list it again")


def _must(entry: Entry, *states: State) -> None:
    if entry.closed or entry.state not in states:
        raise InvariantBroken("no such way between states", entry.cmd_id, entry.state)


def _to(entry: Entry, state: State, now_ms: int, **changes: Any) -> Entry:
    if "reason" in changes:
        changes["reason"] = str(changes["reason"])[:REASON_CHARS_MAX]
    return structs.replace(entry, state=state, changed_ms=now_ms, **changes)
