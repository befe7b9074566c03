"""What does a hub answer about API keys? A key without its secret, and whose key the caller has shown."""

# harch: pure

from __future__ import annotations

from datetime import datetime

from msgspec import Struct


class KeyView(Struct, frozen=True, kw_only=True):
    """`key` is there once only: in the answer that creates it."""

    id: str
    name: str
    prefix: str
    tenant: str
    role: str
    scopes: list[str]
    created_at: datetime
    last_used_at: datetime | None
    revoked: bool
    agents: list[str] = []  # whose key it is, of one with the role `agent`
    expires_at: None = None
    key: str | None = None


class Identity(Struct, frozen=True, kw_only=True):
    """Whose key this is."""

    id: str = ""
    name: str = ""
    tenant: str = ""
    role: str = ""
    scopes: list[str] = []
    email: str = ""
    plan: str = ""
    created_at: datetime | None = None
    api_keys: tuple[KeyView, ...] = ()
