"""What may an operator set about content? Its place, quotas and retention, in one TOML file, `content.toml`."""

from __future__ import annotations

import tomllib
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from harch.base.errors import HarchError

FILE_NAME = "content.toml"
FILE_BYTES_MAX = 1024 * 1024
GB = 10**9
_HINT = "docs/reference/content.md describes every key and shows a complete file"

_Gigabytes = Annotated[float, Meta(ge=0, le=10**9)]


class StorePlace(Struct, frozen=True, forbid_unknown_fields=True):
    """Where packs are kept: `url` empty for the hub's own folder, else `s3://BUCKET/PREFIX`.

    Credentials of a bucket come from `access_key_file` and `secret_key_file`, or from the environment.
    """

    url: Annotated[str, Meta(max_length=1024)] = ""
    endpoint: Annotated[str, Meta(max_length=1024)] = ""
    region: Annotated[str, Meta(max_length=64)] = ""
    access_key_file: str = ""
    secret_key_file: str = ""


class Quotas(Struct, frozen=True, forbid_unknown_fields=True):
    """What tenants may keep at this hub, in gigabytes after compression. `default_gb` absent: no limit."""

    default_gb: _Gigabytes | None = None
    tenants_gb: Annotated[dict[str, _Gigabytes], Meta(max_length=10_000)] = {}

    @property
    def default_bytes_max(self) -> int | None:
        return None if self.default_gb is None else round(self.default_gb * GB)


class Retention(Struct, frozen=True, forbid_unknown_fields=True):
    """How long what nobody holds any more is kept."""

    code_days: Annotated[float, Meta(gt=0, le=3660)] = 30  # since it was last used
    borrowed_hours: Annotated[float, Meta(ge=0, le=8784)] = 24  # of other hubs' work that has ended, where tags permit
    garbage_hours: Annotated[float, Meta(gt=0, le=8784)] = 1  # of chunks that never became part of anything

    @property
    def code(self) -> timedelta:
        return timedelta(days=self.code_days)

    @property
    def borrowed(self) -> timedelta:
        return timedelta(hours=self.borrowed_hours)


class ContentSettings(Struct, frozen=True, forbid_unknown_fields=True):
    store: StorePlace = StorePlace()
    quotas: Quotas = Quotas()
    retention: Retention = Retention()


def read_settings(folder: Path) -> ContentSettings:
    """Of the file in the hub's state folder; as shipped if there is none. Raises E0201 and E0202."""
    path = folder / FILE_NAME
    try:
        with path.open("rb") as file:
            raw = file.read(FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        return ContentSettings()
    except OSError as error:
        raise HarchError("E0202", f"{path} cannot be read: {error.strerror}", hint=_HINT) from error
    if len(raw) > FILE_BYTES_MAX:
        raise HarchError("E0201", f"{path} is larger than {FILE_BYTES_MAX} bytes", hint=_HINT)
    return parse_settings(raw, str(path))


def parse_settings(raw: bytes, source: str) -> ContentSettings:
    try:
        return msgspec.convert(tomllib.loads(raw.decode()), ContentSettings)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise HarchError("E0202", f"{source}: {error}", hint=_HINT) from error
    except msgspec.ValidationError as error:
        raise HarchError("E0201", f"{source}: {error}", hint=_HINT) from error
