"""Which jurisdictions does this machine know? The shipped ones, with what the operator's own file adds or replaces."""

from __future__ import annotations

from functools import lru_cache

from harch.base.config import home_from_env
from harch.base.errors import HarchError
from harch.sovereignty.jurisdiction_file import parse_jurisdictions, shipped_jurisdictions
from harch.sovereignty.jurisdictions import Jurisdictions

FILE_NAME = "jurisdictions.toml"  # in the state folder (HARCH_HOME), so that hubs, agents and the CLI read the same


@lru_cache(maxsize=1)
def jurisdictions_in_force() -> Jurisdictions:
    """Read once per process. A file with a mistake is an error (E0903), never silently ignored."""
    path = home_from_env().root / FILE_NAME
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return shipped_jurisdictions()
    except (OSError, UnicodeDecodeError) as error:
        raise HarchError("E0903", f"{path} cannot be read: {error}", hint="mend or remove the file") from error
    return parse_jurisdictions(text, str(path))
