"""What does a hub answer about its policies? Which bundle is in force."""

# harch: pure

from __future__ import annotations

from msgspec import Struct


class PolicyStatus(Struct, frozen=True, kw_only=True):
    """What is in force. `digest` is the version that the audit chain names; `problem` is why everything is refused."""

    active: bool
    digest: str
    name: str = ""
    version: str = ""
    activated_at: str = ""
    actor: str = ""
    problem: str = ""
    worker_starts: int = 0
