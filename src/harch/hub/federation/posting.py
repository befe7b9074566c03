"""How does what the job machine says about work reach another hub? In frames: what is too large goes in parts."""

from __future__ import annotations

import logging
from collections.abc import Callable

from harch.federation import offers as o
from harch.federation.links.frames import FrameTooLarge

_log = logging.getLogger("harch.hub")


class WorkPost:
    """`send` is the mesh's; `hear` hands the job machine a message as if that hub had said it."""

    def __init__(
        self, send: Callable[[str, o.SpillMessage], object], hear: Callable[[str, o.SpillMessage], None]
    ) -> None:
        self._send, self._hear = send, hear

    def send(self, hub_id: str, message: o.SpillMessage) -> None:
        """If there is no link it is lost, and said again when the link is back."""
        try:
            self._send(hub_id, message)
        except FrameTooLarge:
            parts = _halves(message)
            for part in parts:
                self.send(hub_id, part)
            if not parts:
                self._too_large(hub_id, message)

    def _too_large(self, hub_id: str, message: o.SpillMessage) -> None:
        """One piece of work whose description fits into no frame: it never left, so it is as good as refused."""
        _log.error("a message for %s is too large to be sent: %s", hub_id, type(message).__name__)
        if isinstance(message, o.Grants):
            refused = tuple((grant.lease, "its description is too large to be sent") for grant in message.grants)
            self._hear(hub_id, o.Granted(refused=refused))


def _halves(message: o.SpillMessage) -> list[o.SpillMessage]:
    """The same said in two messages; nothing if it cannot be divided."""
    match message:
        case o.Grants(many) if len(many) > 1:
            middle = len(many) // 2
            return [o.Grants(many[:middle]), o.Grants(many[middle:])]
        case o.Reports(many) if len(many) > 1:
            middle = len(many) // 2
            return [o.Reports(many[:middle]), o.Reports(many[middle:])]
        case _:
            return []
