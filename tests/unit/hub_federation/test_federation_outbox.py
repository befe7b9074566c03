"""What fits into no frame goes in parts; a single piece that does not fit comes back as refused."""

from __future__ import annotations

from msgspec.structs import replace

from harch.federation import offers as o
from harch.federation.links.frames import FrameTooLarge
from harch.hub.federation.outbox import PeerOutbox
from unit.hub_federation.samples import GRANT, LEASE


class SmallFrames:
    """Frames that hold as many grants, or reports, as `room` says."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.sent: list[o.LendingMessage] = []
        self.heard: list[o.LendingMessage] = []
        self.post = PeerOutbox()
        self.post.connect(self._send, lambda hub_id, message: self.heard.append(message))

    def _send(self, hub_id: str, message: o.LendingMessage) -> bool:
        if isinstance(message, o.Grants) and len(message.grants) > self.room:
            raise FrameTooLarge("too large")
        self.sent.append(message)
        return True


def test_many_grants_go_in_parts_and_each_goes_once() -> None:
    frames = SmallFrames(room=2)
    grants = tuple(replace(GRANT, bid_id=str(number)) for number in range(7))
    frames.post.send("dakar", o.Grants(grants))
    assert [grant for message in frames.sent for grant in message.grants] == list(grants)  # type: ignore[union-attr]
    assert frames.heard == []


def test_what_can_never_be_sent_is_as_good_as_refused() -> None:
    frames = SmallFrames(room=0)
    frames.post.send("dakar", o.Grants((GRANT,)))
    assert frames.sent == []
    assert frames.heard == [o.Granted(refused=((LEASE, "its description is too large to be sent"),))]
