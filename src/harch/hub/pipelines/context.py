"""What does a hub give its pipelines? Its identity, listeners, authorities and what other hubs publish."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec import Struct

from harch.base.listen.gate import Gates
from harch.federation.identity.hub_identity import HubIdentity


class HubContext(Struct, frozen=True, kw_only=True):
    """`identity` None: the hub is in no federation. `heard`: what other hubs say of themselves under a key.

    `authorities`: whose signature may loosen a tag, with public keys. `listen_host`: where peers are accepted, if it is
    not the address that they connect to. `gates`: of this process's listeners. `on_spans`: takes what workers tell of
    windows that are followed.
    """

    identity: HubIdentity | None = None
    listen_host: str = ""
    gates: Gates | None = None
    peer_signals: Callable[[str], Mapping[str, bytes]] = lambda key: {}
    authorities: Callable[[], Mapping[str, bytes]] = dict
    on_spans: Callable[[bytes], None] = lambda payload: None
