"""What can go wrong between us and the message engine? Typed errors, so that callers react to the kind and not to text.

They are ordinary exceptions of the hot lane; what reaches a person is wrapped as E0701 (`as_harch_error`).
"""

from __future__ import annotations

from harch.base.errors import HarchError


class NatsError(Exception):
    """Anything that the message engine, or the way to it, refused."""


class ProtocolError(NatsError):
    """The other side sent bytes that are no NATS. The connection cannot be trusted any more and is closed."""


class ConnectionLost(NatsError):
    """The connection ended. What was sent just before may or may not have arrived; the caller decides on a replay."""


class AuthorizationFailed(NatsError):
    """The engine does not accept our credentials. Trying again would not help, so nothing does."""


class PermissionDenied(NatsError):
    """The engine refused one subject to this user."""


class NoResponders(NatsError):
    """Nobody listens to that request."""


class RequestTimeout(NatsError):
    """No answer in time. A user without permission sees the same, so look into the engine's violations too."""


class TooLarge(NatsError):
    """The message is larger than the engine takes."""


class JetStreamRefused(NatsError):
    """JetStream answered a publish with an error instead of a sequence number."""

    def __init__(self, code: int, description: str) -> None:
        super().__init__(f"JetStream refused: {description} ({code})")
        self.code = code
        self.description = description


def as_harch_error(error: NatsError, doing: str) -> HarchError:
    """For people: what was tried, what the engine said, and where to look."""
    return HarchError(
        "E0701",
        f"{doing}: {str(error) or type(error).__name__}",
        hint="see the message engine's log; a missing permission appears there as `Permissions Violation`",
    )
