"""What does the audit chain hear of an action? Names, hashes and outcomes; never arguments, which may be personal."""

from __future__ import annotations

from harch.pipelines.act.ledger import Entry, State
from harch.sovereignty.audit.entry import Detail, Draft

INTENT = "action.intent"
OUTCOME = "action.outcome"
APPROVED = "action.approved"
REFUSED = "action.refused"

_VERDICTS = {State.DONE: "done", State.EXPIRED: "refused", State.REJECTED: "refused"}


def intent(entry: Entry, *, worker: str) -> Draft:
    """Before anything is sent. Where this cannot be written, nothing is sent."""
    return _draft(INTENT, entry, "allowed", actor=worker)


def outcome(entry: Entry, *, worker: str) -> Draft:
    """What became of it; comes again when a worker dies between this and the ledger."""
    return _draft(OUTCOME, entry, _VERDICTS.get(entry.state, "failed"), actor=worker)


def person(entry: Entry, *, by: str) -> Draft:
    """A person approved or refused it."""
    refused = entry.state is State.REJECTED
    return _draft(REFUSED if refused else APPROVED, entry, "refused" if refused else "allowed", actor=by)


def _draft(kind: str, entry: Entry, verdict: str, *, actor: str) -> Draft:
    command = entry.command
    details: dict[str, Detail] = {
        "action": command.action,
        "attempts": entry.attempts,
        "device": command.device,
        "digest": entry.digest,
        "dry_run": command.dry_run,
        "juris_mask": f"{command.juris_mask:x}",
        "mode": str(command.mode),
        "model": command.model,
        "sinks": tuple(step.sink for step in command.steps),
        "state": str(entry.state),
        "trace": command.trace,
    }
    return Draft(
        kind,
        command.cmd_id,
        verdict,
        actor=actor,
        authority=command.pipeline,
        policy_version=str(command.policy_version),
        details=details,
    )
