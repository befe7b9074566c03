"""Which Pythons does this node have, and which of them does an environment mean?

Looked for where Debian, python.org's installer, pyenv and uv put them; each is asked, because a name promises nothing.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from msgspec import Struct

QUERY_TIMEOUT_S = 5.0
QUERIES_AT_ONCE = 4
CANDIDATES_MAX = 64
MINOR_MIN = 8  # what uv still installs packages for
_NAME = re.compile(r"python3\.(\d{1,2})")
_SYSTEM_FOLDERS = ("/usr/bin", "/usr/local/bin")
_QUERY = (
    "import os, sys\n"
    "print('%d.%d.%d' % sys.version_info[:3], sys.implementation.name, sep='\\n')\n"
    "print(os.path.realpath(getattr(sys, '_base_executable', sys.executable)))\n"
    "print(os.path.realpath(sys.base_prefix))"
)


class Python(Struct, frozen=True):
    """`executable` and `prefix` are real paths, of the installation and not of a virtual environment."""

    version: str
    implementation: str
    executable: str
    prefix: str

    @property
    def numbers(self) -> tuple[int, ...]:
        return tuple(int(part) for part in self.version.split("."))


def choose(wanted: str | None, own: Python, found: Sequence[Python]) -> Python | None:
    """The newest that is of the wanted version; without one, the agent's own."""
    if wanted is None:
        return own
    numbers = tuple(int(part) for part in wanted.split("."))
    fitting = [one for one in (own, *found) if one.numbers[: len(numbers)] == numbers]
    return max(fitting, key=lambda one: one.numbers, default=None)


def versions(pythons: Iterable[Python]) -> str:
    """For people: `3.11.7, 3.12.3`."""
    return ", ".join(sorted({one.version for one in pythons}, key=lambda text: tuple(map(int, text.split(".")))))


def own_python() -> Python:
    return Python(
        platform.python_version().rstrip("+"),
        sys.implementation.name,
        os.path.realpath(getattr(sys, "_base_executable", sys.executable)),
        os.path.realpath(sys.base_prefix),
    )


def find_pythons(environ: Mapping[str, str]) -> list[Python]:
    """Every CPython that answers, once for each installation."""
    with ThreadPoolExecutor(QUERIES_AT_ONCE) as pool:
        answers = list(pool.map(_query, _candidates(environ)))
    found = {one.executable: one for one in answers if one is not None and one.implementation == "cpython"}
    return sorted(found.values(), key=lambda one: (one.numbers, one.executable))


def _candidates(environ: Mapping[str, str]) -> list[str]:
    home = environ.get("HOME", "/nonexistent")
    data = environ.get("XDG_DATA_HOME", f"{home}/.local/share")
    pyenv = Path(environ.get("PYENV_ROOT", f"{home}/.pyenv")) / "versions"
    managed = Path(environ.get("UV_PYTHON_INSTALL_DIR", f"{data}/uv/python"))
    folders = [*environ.get("PATH", "").split(os.pathsep), *_SYSTEM_FOLDERS]
    for versions_folder in (pyenv, managed):
        folders += sorted(str(path) for path in versions_folder.glob("*/bin"))
    found: dict[str, None] = {}
    for folder in dict.fromkeys(folders):
        if os.path.basename(folder) != "shims":  # scripts of pyenv, which start what is found without them, slowly
            found |= dict.fromkeys(os.path.realpath(path) for path in _interpreters_in(folder))
    return list(found)[:CANDIDATES_MAX]


def _interpreters_in(folder: str) -> list[str]:
    try:
        names = sorted(os.listdir(folder or "."))
    except OSError:
        return []
    matches = ((_NAME.fullmatch(name), name) for name in names)
    return [os.path.join(folder, name) for match, name in matches if match and int(match[1]) >= MINOR_MIN]


def _query(executable: str) -> Python | None:
    try:
        answer = subprocess.run(
            [executable, "-I", "-S", "-c", _QUERY],
            env={"PATH": "/usr/bin:/bin"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=QUERY_TIMEOUT_S,
            check=True,
        )
        lines = answer.stdout.decode().splitlines()
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return Python(*lines) if len(lines) == len(Python.__struct_fields__) else None
