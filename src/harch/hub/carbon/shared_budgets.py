"""How much of a tenant's month did other hubs spend? Each tells the others, so that a budget is one over all of them.

It is as exact as hubs hear each other: within minutes, or while they are cut off, two may give out the same rest. Names
do not travel: only who knows a tenant can tell which figure is its own.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping

import msgspec
from msgspec import Struct

TENANTS_TOLD_MAX = 500  # those that spent most; what is told goes to every hub
HIDDEN_BYTES = 12


class SpentSaid(Struct, frozen=True, array_like=True):
    """Grams of this month by hidden name: spent, and set aside for what waits and runs."""

    month: str
    grams: dict[bytes, float]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(SpentSaid).decode


def spent_heard(said: bytes | None) -> SpentSaid | None:
    """None of what cannot be read: another version, or a liar. Nobody gives grams back to others."""
    try:
        found = None if said is None else _decode(said)
    except msgspec.DecodeError:
        return None
    if found is None or len(found.grams) > TENANTS_TOLD_MAX:
        return None
    return found if all(math.isfinite(grams) and grams >= 0 for grams in found.grams.values()) else None


class SharedBudgets:
    """What other hubs said last. Of a hub that is away, what it had spent by then still counts."""

    def __init__(self, federation: str) -> None:
        self._federation = federation
        self._heard: dict[str, SpentSaid] = {}

    def said(self, month: str, used_g: Mapping[str, float]) -> bytes:
        """`used_g`: by tenant with a budget."""
        most = sorted(used_g, key=lambda tenant: (-used_g[tenant], tenant))[:TENANTS_TOLD_MAX]
        return _encode(SpentSaid(month, {self._hidden(tenant): max(used_g[tenant], 0.0) for tenant in most}))

    def hear(self, told: Mapping[str, SpentSaid]) -> None:
        """By hub; this one is not among them."""
        self._heard.update(told)

    def elsewhere(self, month: str, tenants: Iterable[str]) -> dict[str, float]:
        """Grams that others spent of the same month, by tenant."""
        heard = [one.grams for one in self._heard.values() if one.month == month]
        hidden = {tenant: self._hidden(tenant) for tenant in tenants}
        return {tenant: sum(one.get(name, 0.0) for one in heard) for tenant, name in hidden.items()}

    def _hidden(self, tenant: str) -> bytes:
        name = f"{self._federation}\0{tenant}".encode()
        return hashlib.blake2b(name, digest_size=HIDDEN_BYTES).digest()
