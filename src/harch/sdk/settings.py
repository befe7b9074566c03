"""Which hub does the client talk to, and with which key?"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from harch.base.config import home_from_env, ports_from_env
from harch.base.errors import HarchError
from harch.base.hosts import address_of
from harch.base.http_address import http_address

_KEY_BYTES_MAX = 4096


@dataclass(frozen=True, slots=True)
class Settings:
    """Address and key. `key_source` says where the key came from, never what it is."""

    url: str
    api_key: str | None
    key_source: str

    @property
    def is_loopback(self) -> bool:
        host = http_address(self.url).host
        address = address_of(host)
        return host == "localhost" if address is None else address.is_loopback


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
    try:
        http_address(url)
    except ValueError as error:
        hint = "e.g. HARCH_URL=http://127.0.0.1:7701"
        raise HarchError("E0201", f"`{url}` is not the address of a hub: it {error}", hint=hint) from None
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
