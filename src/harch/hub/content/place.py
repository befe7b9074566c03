"""Where is this hub's content? The store in its state folder or bucket, opened with the hub's own key."""

from __future__ import annotations

import secrets
from pathlib import Path

from harch.base.clock import Clock
from harch.base.errors import HarchError
from harch.base.seal import LINE
from harch.base.state_files import read_sealed, rewrite
from harch.content.store import ContentStore, StoreSettings, open_store
from harch.hub.content.settings import GB, ContentSettings

FOLDER = "content"
KEY_FILE = "content.key"
KEY_BYTES = 32


def open_content(state_dir: Path, settings: ContentSettings, clock: Clock) -> ContentStore:
    """Raises E1030 for a key file that is damaged, E1110 for a place that cannot be used."""
    place, quotas = settings.store, settings.quotas
    store = open_store(
        state_dir / FOLDER,
        master_key=_master_key(state_dir / KEY_FILE),
        settings=StoreSettings(
            location=place.url,
            endpoint=place.endpoint,
            region=place.region,
            access_key_id=_secret(place.access_key_file),
            secret_access_key=_secret(place.secret_key_file),
            grace_s=settings.retention.garbage_hours * 3600,
            quota_bytes=quotas.default_bytes_max,
        ),
        clock=clock,
    )
    for tenant, gigabytes in quotas.tenants_gb.items():
        store.set_quota(tenant, round(gigabytes * GB))
    return store


def _master_key(path: Path) -> bytes:
    """Made at the first start. Without it nothing that is stored can be read: it belongs into every backup."""
    if not path.exists():
        rewrite(path, LINE.seal(secrets.token_bytes(KEY_BYTES).hex().encode()))
    try:
        key = bytes.fromhex(read_sealed(path).decode())
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise HarchError("E1030", f"{path} holds no key", hint="restore it: content cannot be read without it")
    return key


def _secret(path: str) -> str:
    if not path:
        return ""
    try:
        return Path(path).read_text("utf-8").strip()
    except OSError as error:
        raise HarchError(
            "E0202", f"{path} cannot be read: {error.strerror}", hint="check `[store]` of content.toml"
        ) from error
