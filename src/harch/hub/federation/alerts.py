"""How do the SENTINELs of hubs share silences, acknowledgements and sent notifications? Through their hubs' links.

A hub does not look into the records: it hands them to its peers in the same country and keeps theirs until its own
SENTINEL asks. Records name hosts and people, so they cross no border.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from msgspec import Struct, field

from harch.hub.federation.messages import AlertRecords
from harch.hub.views import PeerView

WAITING_MAX = 1000  # messages; beyond it the oldest go, and everything is asked for again
RECORDS_BYTES_MAX = 512 * 1024


class AlertExchange(Struct, frozen=True, kw_only=True):
    """What SENTINEL learns: records of others, its place among those that notify, and whether to tell everything."""

    records: tuple[bytes, ...] = ()
    position: int = 0
    publish_all: bool = field(default=False, name="tell_all")


class AlertPost:
    """`views` are the hubs as seen from here, this one among them."""

    def __init__(
        self,
        own_id: str,
        *,
        country: Callable[[], str],
        views: Callable[[], Iterable[PeerView]],
        send: Callable[[str, AlertRecords], object],
    ) -> None:
        self._own_id, self._country, self._views, self._send = own_id, country, views, send
        self._waiting: deque[bytes] = deque(maxlen=WAITING_MAX)
        self._send_all = True
        self._position = 0

    def exchange(self, records: bytes) -> AlertExchange:
        """Takes what is new here and gives what is new elsewhere. Empty bytes: nothing is new."""
        near = self._near(self._views())
        self._position = self._position_among(near)
        if records:
            for hub_id in near:
                self._send(hub_id, AlertRecords(records=records))
        known = AlertExchange(
            records=tuple(self._waiting),
            position=self._position,
            publish_all=self._send_all,
        )
        self._waiting.clear()
        self._send_all = False
        return known

    def has_news(self, position: int) -> bool:
        """Whether a SENTINEL that believes itself at this position would learn anything from an exchange."""
        return bool(self._waiting) or self._send_all or self._position != position

    def seen(self, views: Iterable[PeerView]) -> None:
        """How the other hubs are; called whenever that may have changed."""
        self._position = self._position_among(self._near(views))

    def linked(self, hub_id: str) -> None:
        """A hub that was away missed what was sent meanwhile."""
        self._send_all = True

    def came(self, hub_id: str, message: AlertRecords) -> None:
        if len(message.records) <= RECORDS_BYTES_MAX and hub_id in self._near(self._views()):
            self._waiting.append(message.records)

    def _position_among(self, near: list[str]) -> int:
        return sum(1 for hub_id in near if hub_id < self._own_id)

    def _near(self, views: Iterable[PeerView]) -> list[str]:
        """Other hubs of the same country that can be reached."""
        country = self._country()
        return [
            view.hub_id
            for view in views
            if not view.own and view.reachable and view.summary is not None and view.summary.country == country
        ]
