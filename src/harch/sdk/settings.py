"""Which hub does the client talk to, and with which key?"""

from __future__ import annotations

import os
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

from harch.base.config import home_from_env, ports_from_env
from harch.base.errors import HarchError

_KEY_BYTES_MAX = 4096


@dataclass(frozen=True, slots=True)
class Settings:
    """Address and key. `key_source` says where the key came from, never what it is."""

    url: str
    api_key: str | None
    key_source: str

    @property
    def is_loopback(self) -> bool:
        host = urlsplit(self.url).hostname or ""
        try:
            return ip_address(host).is_loopback
        except ValueError:
            return host == "localhost"


def settings_from_env(url: str | None = None, api_key: str | None = None) -> Settings:
    """Arguments first, then HARCH_URL and HARCH_API_KEY, then the key file of the state folder."""
    address = normal_url(url or os.environ.get("HARCH_URL") or f"http://127.0.0.1:{ports_from_env().api(0)}")
    if api_key:
        return Settings(address, api_key, "argument")
    if key := os.environ.get("HARCH_API_KEY"):
        return Settings(address, key.strip(), "HARCH_API_KEY")
    key_file = home_from_env().admin_key
    return Settings(address, _read_key(key_file), str(key_file))


def normal_url(url: str) -> str:
    """Scheme and host without the trailing slash and `/v1`, which the client adds itself."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise HarchError("E0201", f"`{url}` is not the address of a hub", hint="e.g. HARCH_URL=http://127.0.0.1:7701")
    return url.rstrip("/").removesuffix("/v1")


def _read_key(path: Path) -> str | None:
    """The key, or None where there is no file: public calls work without one."""
    try:
        with path.open(encoding="utf-8") as file:
            return file.read(_KEY_BYTES_MAX).strip() or None
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise HarchError(
            "E0101", f"the key file {path} cannot be read: {error}", hint="run as its owner, or set HARCH_API_KEY"
        ) from error
