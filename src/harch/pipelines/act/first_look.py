"""What does the ledger hear of a new command? That it may go on, or why not. Asked again right before it is sent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from harch.base.rejection import Rejection
from harch.pipelines.act import ledger
from harch.pipelines.act.command import COMMAND_BYTES_MAX, Command
from harch.pipelines.act.guards import Guards
from harch.pipelines.act.ledger import Entry
from harch.pipelines.act.settings import ActionSettings, ActSettings


@dataclass(frozen=True, slots=True)
class FirstLook:
    """`country_bits`: the bit of each country in a jurisdiction mask; a sink's country that is not in it is refused."""

    settings: ActSettings
    guards: Guards
    country_bits: Mapping[str, int]
    stopped: Callable[[ActionSettings], str]

    def entry(self, command: Command, *, now_ms: int) -> Entry:
        """The first entry of a command: authorised, waiting for a person, rejected or expired."""
        entry = ledger.proposed(command, now_ms=now_ms)
        if command.expired(now_ms):
            return ledger.expired(entry, now_ms=now_ms)
        action = next(action for action in self.settings.actions if action.name == command.action)
        refusal = (
            self._residency(command)  # first: nothing else may be learnt about data that must not go there
            or _too_large(command)
            or self.guards.interlock(command, action, now_ms=now_ms, stopped=self.stopped(action))
        )
        if refusal is not None:
            return ledger.rejected(entry, f"{refusal.rule}: {refusal.detail}", now_ms=now_ms)
        return ledger.authorised(entry, now_ms=now_ms)

    def _residency(self, command: Command) -> Rejection | None:
        for step in command.steps:
            country = self.settings.sinks[step.sink].country
            if country and not command.juris_mask & self.country_bits.get(country, 0):
                detail = f"sink `{step.sink}` stands in {country}, which mask {command.juris_mask:x} does not hold"
                return Rejection(command.cmd_id, "residency", detail, "use a sink where the data may go")
        return None


def unmade(command: Command, reason: str, *, now_ms: int) -> Entry:
    """A letter about an action that was called for and could not be made into a command."""
    entry = ledger.proposed(command, now_ms=now_ms)
    return ledger.given_up(entry, f"no command could be made: {reason}", now_ms=now_ms, letter=True, maybe_sent=False)


def _too_large(command: Command) -> Rejection | None:
    size = sum(len(name) + len(str(value)) for step in command.steps for name, value in step.args.items())
    if size <= COMMAND_BYTES_MAX:
        return None
    return Rejection(command.cmd_id, "size", f"{size} bytes of arguments, allowed are {COMMAND_BYTES_MAX}", "send less")
