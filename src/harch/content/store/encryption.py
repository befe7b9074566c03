"""How is a chunk kept from readers of the disk? Sealed with AES-256-GCM under the key of its tenant.

A tenant's key is random, and wrapped by the hub's master key where it is written down. No chunk is sealed with it
directly: each pack draws a random salt, from which and the tenant's key a key of its own is derived, and numbers its
records; so key and nonce never meet twice, however many chunks a tenant has. Records that move to another pack keep
their salt and number. The tenant's key id and the whole head (name, sizes, codec) are authenticated with the payload.
"""

# harch: pure

from __future__ import annotations

from functools import lru_cache

import blake3
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from harch.base.errors import HarchError
from harch.content.frames import ChunkFrame
from harch.content.store.records import (
    HEAD_BYTES,
    TAG_BYTES,
    DamagedRecord,
    RecordHead,
    encode_head,
    read_head,
)

MASTER_KEY_BYTES = 32
TENANT_KEY_BYTES = 32
_WRAP_NONCE_BYTES = 12
_CIPHERS_MAX = 256  # of one tenant, ready for use
_WRAPPING = b"HarchOS content store: key of a tenant, version 1\x00"


class TenantKey:
    """Seals and opens the records of one tenant. Several threads may use it."""

    def __init__(self, key_id: bytes, key: bytes) -> None:
        self.id = key_id
        self._key = key
        self._cipher = lru_cache(maxsize=_CIPHERS_MAX)(self._derive)

    def seal(self, frame: ChunkFrame, salt: bytes, number: int) -> tuple[RecordHead, bytes, bytes]:
        """Head, encoded head, and payload. No salt may be used again with the same number."""
        sealed_bytes = len(frame.payload) + TAG_BYTES
        head = RecordHead(frame.id, frame.size, frame.codec, sealed_bytes, salt, number)
        encoded = encode_head(head)
        return head, encoded, self._cipher(salt).encrypt(_nonce(number), frame.payload, self.id + encoded)

    def open(self, record: memoryview, chunk: bytes) -> ChunkFrame:
        """The chunk of that name, still compressed. Raises DamagedRecord."""
        head = read_head(record)
        if head.chunk != chunk or len(record) != head.record_bytes:
            raise DamagedRecord("another record stands here")
        try:
            payload = self._cipher(head.salt).decrypt(
                _nonce(head.number), record[HEAD_BYTES:], self.id + bytes(record[:HEAD_BYTES])
            )
        except InvalidTag as error:
            raise DamagedRecord("it is not what was sealed") from error
        return ChunkFrame(chunk, head.size, head.codec, payload)

    def _derive(self, salt: bytes) -> AESGCM:
        return AESGCM(blake3.blake3(salt, key=self._key).digest())


def wrap_key(key: bytes, *, master_key: bytes, context: bytes, nonce: bytes) -> bytes:
    """`context` says whose key it is: wrapped for one, it cannot be unwrapped for another."""
    return nonce + AESGCM(master_key).encrypt(nonce, key, _WRAPPING + context)


def unwrap_key(wrapped: bytes, *, master_key: bytes, context: bytes) -> bytes:
    """Raises E1110 if this was wrapped by another master key, for another context, or is damaged."""
    nonce, sealed = wrapped[:_WRAP_NONCE_BYTES], wrapped[_WRAP_NONCE_BYTES:]
    try:
        return AESGCM(master_key).decrypt(nonce, sealed, _WRAPPING + context)
    except (InvalidTag, ValueError) as error:
        raise HarchError(
            "E1110",
            "the content store was written with another master key, or its keys are damaged",
            hint="give the hub the master key that it had when the store was made",
        ) from error


def check_master_key(master_key: bytes) -> None:
    if len(master_key) != MASTER_KEY_BYTES:
        raise ValueError(f"a master key has {MASTER_KEY_BYTES} bytes")


def _nonce(number: int) -> bytes:
    return number.to_bytes(12, "big")
