"""How do events get in?

One small adapter per way in: `http`, `mqtt`, `file` and `batches` (TCP and NATS), all with one method.

An input reads, and gives whole messages to an `Intake`. What it cannot use goes to the quarantine with a reason;
nothing from outside ends an input.
"""

from __future__ import annotations

from typing import Protocol


class Input(Protocol):
    """Runs until it is cancelled, or until there is nothing more to read."""

    async def run(self) -> None: ...
