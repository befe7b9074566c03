"""What is a hub called? `spiffe://TRUST-DOMAIN/hub/HUB-ID`, the name that its certificate carries."""

from __future__ import annotations

import re
from typing import NamedTuple

from harch.base.errors import HarchError

TRUST_DOMAIN_DEFAULT = "harch.internal"

_TRUST_DOMAIN = re.compile(r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?")
_HUB_ID = re.compile(r"[a-z0-9]([a-z0-9_-]{0,61}[a-z0-9])?")
_URI = re.compile(rf"spiffe://({_TRUST_DOMAIN.pattern})/hub/({_HUB_ID.pattern})")


class HubName(NamedTuple):
    """One hub of one federation. Two federations may each have a `dakar`; their trust domains tell them apart."""

    trust_domain: str
    hub_id: str

    @property
    def uri(self) -> str:
        return f"spiffe://{self.trust_domain}/hub/{self.hub_id}"


def hub_name(trust_domain: str, hub_id: str) -> HubName:
    """A checked name. Raises E0201 for what cannot stand in a certificate, a folder name and a URI alike."""
    if not _TRUST_DOMAIN.fullmatch(trust_domain):
        raise HarchError(
            "E0201", f"`{trust_domain}` is not a trust domain", hint="use a name like `gpu.example.org`, lower case"
        )
    if not _HUB_ID.fullmatch(hub_id):
        raise HarchError(
            "E0201", f"`{hub_id}` is not a hub id", hint="use lower-case letters, digits, `-` and `_`, e.g. `dakar`"
        )
    return HubName(trust_domain, hub_id)


def parse_uri(uri: str) -> HubName | None:
    """The name that a URI says; None for any other URI."""
    match = _URI.fullmatch(uri)
    return HubName(match[1], match[3]) if match else None
