"""Was this message answered before? The newest identities of which the next stage, or the ledger, has what they became.

JetStream leaves out an id that it remembers, and forgets it with a kill of its server if the message was read and
removed by then. What is stored again so comes to a worker that still runs, and is recognised here: no window is decided
by two versions of a model because of it.
"""

from __future__ import annotations

from harch.pipelines.client.protocol import Message

KEPT_MAX = 65_536
_ID = "Nats-Msg-Id"


class Answered:
    """At most `kept_max` identities; the oldest goes first."""

    def __init__(self, kept_max: int = KEPT_MAX) -> None:
        self._kept_max = kept_max
        self._seen: dict[str, None] = {}

    def has(self, message: Message) -> bool:
        return message.headers().get(_ID, "") in self._seen

    def add(self, message: Message) -> None:
        """Features of the hot lane have no identity, and are never known."""
        if identity := message.headers().get(_ID):
            self._seen[identity] = None
            while len(self._seen) > self._kept_max:
                del self._seen[next(iter(self._seen))]
