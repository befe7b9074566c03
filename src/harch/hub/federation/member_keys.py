"""Whose signature is it? The keys of the members, as the federation's authority has signed them."""

from __future__ import annotations

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from harch.federation.identity.members import Roster


class MemberKeys:
    """The gossip's verifier. A member record that changes is seen by the next question."""

    def __init__(self, roster: Roster) -> None:
        self._roster = roster
        self._keys: dict[bytes, Ed25519PublicKey] = {}

    def verify(self, hub: str, statement: bytes, signature: bytes) -> bool:
        member = self._roster.get(hub)
        if member is None or member.retired:
            return False
        key = self._keys.get(member.state_key)
        if key is None:
            key = self._keys[member.state_key] = member.public_key
        try:
            key.verify(signature, statement)
        except InvalidSignature:
            return False
        return True
