"""What do pipelines know of the world around their hub?"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec import Struct

from harch.federation.identity.identity import HubIdentity


class Surroundings(Struct, frozen=True, kw_only=True):
    """`identity` None: the hub is in no federation. `heard`: what other hubs say of themselves under a key.

    `authorities`: whose signature may loosen a tag, with public keys. `listen_host`: where peers are accepted, if it is
    not the address that they are told. `on_spans`: takes what workers tell of windows that are followed.
    """

    identity: HubIdentity | None = None
    listen_host: str = ""
    heard: Callable[[str], Mapping[str, bytes]] = lambda key: {}
    authorities: Callable[[], Mapping[str, bytes]] = dict
    on_spans: Callable[[bytes], None] = lambda payload: None
