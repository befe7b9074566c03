"""What does the engine's log say that somebody must hear? Refused subjects, refused keys and slow consumers. No I/O.

A client that lacks a permission sees only that nobody answers, so this is where the reason comes from.
"""

# harch: pure

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct

LINE_CHARS_MAX = 2000
_TIME = r"^\[\d+\] (?P<at>\S+ \S+) \[(?P<level>\w+)\] "
_VIOLATION = re.compile(
    _TIME + r".*?(?:\"(?P<account>[^\"/]*)/nkey:(?P<key>U[A-Z2-7]+)\".*?)?"
    r"(?P<kind>Publish|Subscription|Permissions) Violation(?:.*?Subject (?:\")?(?P<subject>[^\",]+))?"
)
_REFUSED = re.compile(_TIME + r".*?authentication error(?:.*?Nkey \"(?P<key>[^\"]+)\")?")
_SLOW = re.compile(_TIME + r".*Slow Consumer (?:Detected)?.*")


class EngineEventKind(StrEnum):
    PUBLISH_REFUSED = "publish_refused"
    SUBSCRIBE_REFUSED = "subscribe_refused"
    PERMISSION_REFUSED = "permission_refused"
    KEY_REFUSED = "key_refused"
    SLOW_CONSUMER = "slow_consumer"
    STARTED = "started"
    ENDED = "ended"
    GIVEN_UP = "given_up"


class EngineEvent(Struct, frozen=True, kw_only=True):
    """One thing that happened at a server; `user` is the name behind the key where it is known."""

    server: str
    what: EngineEventKind
    user: str = ""
    account: str = ""
    subject: str = ""
    detail: str = ""


_KINDS = {
    "Publish": EngineEventKind.PUBLISH_REFUSED,
    "Subscription": EngineEventKind.SUBSCRIBE_REFUSED,
    "Permissions": EngineEventKind.PERMISSION_REFUSED,
}


def read_line(line: str, server: str, users: Mapping[str, str]) -> EngineEvent | None:
    """The event in a line, if there is one. `users` maps public keys to names; an unknown key is shown shortened."""
    line = line[:LINE_CHARS_MAX]
    if (found := _VIOLATION.match(line)) is not None:
        return EngineEvent(
            server=server,
            what=_KINDS[found["kind"]],
            user=_user(found["key"], users),
            account=found["account"] or "",
            subject=found["subject"] or "",
        )
    if (found := _REFUSED.match(line)) is not None:
        return EngineEvent(server=server, what=EngineEventKind.KEY_REFUSED, user=_user(found["key"], users))
    if _SLOW.match(line):
        return EngineEvent(server=server, what=EngineEventKind.SLOW_CONSUMER, detail=line[-200:].strip())
    return None


def reread_outcome(line: str) -> bool | None:
    """Whether the server took a new configuration, if the line is about that."""
    if "Reloaded server configuration" in line:
        return True
    return False if "Failed to reload server configuration" in line else None


def _user(key: str | None, users: Mapping[str, str]) -> str:
    return users.get(key, f"{key[:8]}…") if key else ""


class LineCutter:
    """Bytes of a growing file into whole lines; a line without an end is kept up to a limit."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[str]:
        *lines, self._rest = (self._rest + data).split(b"\n")
        self._rest = self._rest[-LINE_CHARS_MAX:]
        return [line.decode("utf-8", "replace") for line in lines]
