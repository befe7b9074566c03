"""What went wrong, and what can a person do about it? One registry of codes for CLI, API and docs."""

from __future__ import annotations

from dataclasses import dataclass, field

from harch.base.codes import api, content, logs, observability, rules, streams
from harch.base.error_kind import (
    EXIT_CHANGES,
    EXIT_ERROR,
    EXIT_INFEASIBLE,
    EXIT_OK,
    EXIT_REFUSED,
    EXIT_USAGE,
    ErrorKind,
)

__all__ = [
    "EXIT_CHANGES",
    "EXIT_ERROR",
    "EXIT_INFEASIBLE",
    "EXIT_OK",
    "EXIT_REFUSED",
    "EXIT_USAGE",
    "REGISTRY",
    "ErrorKind",
    "HarchError",
    "InvariantBroken",
    "Problems",
]


class HarchError(Exception):
    """An error for people: code, one sentence, and a hint on what to do next."""

    def __init__(
        self,
        code: str,
        message: str,
        *,
        hint: str = "",
        field: str | None = None,
        meta: dict[str, object] | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.kind = REGISTRY[code]
        self.message = message
        self.hint = hint
        self.field = field
        self.meta = meta or {}
        self.retry_after_s = retry_after_s

    @property
    def code(self) -> str:
        return self.kind.code

    def __str__(self) -> str:
        head = f"error[{self.code}]: {self.message}"
        return f"{head}\n\nhint: {self.hint}" if self.hint else head


@dataclass(slots=True)
class Problems:
    """Collects every mistake of an input, so that people mend a file once and not once per mistake."""

    limit: int = 20
    found: list[tuple[str, str]] = field(default_factory=list)

    def add(self, where: str, what: str) -> None:
        if len(self.found) < self.limit:
            self.found.append((where, what))

    def __bool__(self) -> bool:
        return bool(self.found)

    def __str__(self) -> str:
        return "; ".join(f"{where}: {what}" for where, what in self.found)


class InvariantBroken(Exception):
    """Something happened that must never happen. Never caught for control flow: the process edge logs it and stops."""

    def __init__(self, rule: str, *subjects: object) -> None:
        super().__init__(f"invariant broken: {rule} ({', '.join(str(subject) for subject in subjects)})")
        self.rule = rule
        self.subjects = subjects


def _registry(*kinds: ErrorKind) -> dict[str, ErrorKind]:
    registry = {kind.code: kind for kind in kinds}
    if len(registry) != len(kinds):
        raise InvariantBroken("an error code is registered twice")
    return registry


REGISTRY = _registry(
    *api.REQUEST_KINDS,
    *api.RESOURCE_KINDS,
    *observability.TELEMETRY_KINDS,
    *logs.KINDS,
    *observability.ALERTING_KINDS,
    *streams.KINDS,
    *rules.KINDS,
    *content.KINDS,
)
