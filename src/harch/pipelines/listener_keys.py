"""Who may send to a listener of a pipeline? Whoever shows its key. Workers know the digest of a key, and not the key.

Any process of the machine can connect to loopback, and an event can open a valve: so no listener is without a key.
"""

# harch: pure

from __future__ import annotations

import hmac
from collections.abc import Mapping
from hashlib import sha256

from harch.base.errors import HarchError

KEY_CHARS_MIN, KEY_CHARS_MAX = 16, 512
LOOPBACK = "127.0.0.1"  # where workers listen; senders from elsewhere go through their hub, which has TLS and roles
HINT = "`harch pipeline key NAME SOURCE` prints it; send it as X-API-Key, or as Authorization: Bearer"


def key_digest(key: str) -> str:
    """Keys are long and random, so that a plain digest is safe to keep."""
    return sha256(key.encode()).hexdigest()


def is_key(presented: str, digest: str) -> bool:
    """Compared in constant time. Where there is no digest, no key is right."""
    return bool(digest) and hmac.compare_digest(key_digest(presented), digest)


def check_headers(headers: Mapping[str, str], digest: str) -> None:
    """`headers` by their names in small letters. Raises E0101 without a key, E0102 for another."""
    bearer = headers.get("authorization", "")
    presented = headers.get("x-api-key", "") or (bearer[7:].strip() if bearer[:7].lower() == "bearer " else "")
    if is_key(presented, digest):
        return
    if not presented:
        raise HarchError("E0101", "this listener requires its key", hint=HINT)
    raise HarchError("E0102", "wrong key for this listener", hint=HINT)
