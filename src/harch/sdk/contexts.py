"""Which federations does this user know? Contexts: a name, the addresses of its hubs, and the file that holds its key.

They stand in `contexts.toml` in the user's configuration folder, so that every verb finds its federation from any
folder. Keys stay in files of their own.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from harch.base.errors import HarchError

FILE_BYTES_MAX = 256 * 1024
CONTEXTS_MAX = 100
HUBS_MAX = 100  # of one context
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True)
class HubContext:
    """One federation. The first hub is asked first; the others where it does not answer."""

    name: str
    hubs: tuple[str, ...]
    key_file: str


@dataclass(frozen=True, slots=True)
class KnownContexts:
    """All of them, by name. `current` is the one that is used where nothing else says which; it may be empty."""

    current: str = ""
    by_name: Mapping[str, HubContext] = field(default_factory=dict)

    def named(self, name: str) -> HubContext:
        """Raises E0201 for one that is not known."""
        found = self.by_name.get(name)
        if found is None:
            hint = f"choose one of {', '.join(sorted(self.by_name))}" if self.by_name else "`harch login URL` adds one"
            raise HarchError("E0201", f"no context named `{name}`", hint=hint)
        return found

    def with_context(self, one: HubContext) -> KnownContexts:
        """The first one becomes the current one; later ones wait for `harch context use`."""
        return replace(self, current=self.current or one.name, by_name={**self.by_name, one.name: one})

    def without(self, name: str) -> KnownContexts:
        self.named(name)
        rest = {key: one for key, one in self.by_name.items() if key != name}
        return KnownContexts("" if self.current == name else self.current, rest)

    def using(self, name: str) -> KnownContexts:
        return replace(self, current=self.named(name).name)


def contexts_file() -> Path:
    """Of this user; XDG says where."""
    configured = os.environ.get("XDG_CONFIG_HOME", "")
    folder = Path(configured) if os.path.isabs(configured) else Path.home() / ".config"
    return folder / "harch" / "contexts.toml"


def context_in_use() -> HubContext | None:
    """HARCH_CONTEXT, else the current one."""
    wanted = os.environ.get("HARCH_CONTEXT", "")
    known = read_contexts(contexts_file())
    name = wanted or known.current
    return known.named(name) if name else None


def hubs_beside(url: str, key_file: Path) -> tuple[str, ...]:
    """The other hubs of a federation that was started here: of the context that has this hub and this key file.

    None where no context is that one, or where the file of contexts cannot be used: this hub is known without it.
    """
    try:
        known = read_contexts(contexts_file())
    except HarchError:
        return ()
    path = str(key_file.absolute())
    for one in known.by_name.values():
        if one.key_file == path and url in one.hubs:
            return tuple(hub for hub in one.hubs if hub != url)
    return ()


def read_contexts(path: Path) -> KnownContexts:
    """None are known where there is no file. Raises E0202 for one that is not as it should be."""
    try:
        with path.open("rb") as file:
            text = file.read(FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        return KnownContexts()
    except OSError as error:
        raise _unusable(path, error.strerror or str(error)) from error
    if len(text) > FILE_BYTES_MAX:
        raise _unusable(path, f"it is larger than {FILE_BYTES_MAX // 1024} KiB")
    try:
        return _known(tomllib.loads(text.decode()))
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, TypeError, ValueError) as error:
        raise _unusable(path, str(error)) from error


@contextlib.contextmanager
def changing_contexts(path: Path) -> Iterator[list[KnownContexts]]:
    """Yields what is known in a list of one; what stands there in the end is written. One writer at a time."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with path.with_suffix(".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = [read_contexts(path)]
        yield found
        beside = path.with_suffix(".new")
        with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            file.write(as_toml(found[0]))
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)


def checked_context(name: str, hubs: tuple[str, ...], key_file: str) -> HubContext:
    """Raises E0201 for a name that could not be typed, and for a context without hubs."""
    if not _NAME.fullmatch(name):
        raise HarchError("E0201", f"`{name}` is not a name", hint="use letters, digits, dots, dashes and underscores")
    if not 1 <= len(hubs) <= HUBS_MAX:
        raise HarchError("E0201", f"a context has 1 to {HUBS_MAX} hubs, not {len(hubs)}", hint="name them with --hub")
    return HubContext(name, hubs, key_file)


def as_toml(known: KnownContexts) -> str:
    lines = [
        "# Written by harch. `harch context use NAME` changes the current one.",
        f"current = {_text(known.current)}",
    ]
    for name, one in sorted(known.by_name.items()):
        hubs = ", ".join(map(_text, one.hubs))
        lines += ["", f"[contexts.{_text(name)}]", f"hubs = [{hubs}]", f"key_file = {_text(one.key_file)}"]
    return "\n".join(lines) + "\n"


def _text(value: str) -> str:
    """A string of JSON is one of TOML, but for DEL. Raises E0201 for a path that is no text."""
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise HarchError("E0201", f"{value!r} is no text", hint="choose a path that is UTF-8") from error
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _known(document: Mapping[str, object]) -> KnownContexts:
    tables, current = document.get("contexts", {}), document.get("current", "")
    if not isinstance(tables, dict) or not isinstance(current, str) or len(tables) > CONTEXTS_MAX:
        raise ValueError(f"it must have `current` and at most {CONTEXTS_MAX} tables `contexts.NAME`")
    found = {}
    for name, table in tables.items():
        hubs, key_file = table.get("hubs"), table.get("key_file", "")
        if not isinstance(hubs, list) or not all(isinstance(url, str) for url in hubs) or not isinstance(key_file, str):
            raise TypeError(f"context `{name}` must have `hubs`, a list of addresses, and `key_file`, a path")
        try:
            found[name] = checked_context(name, tuple(hubs), key_file)
        except HarchError as error:
            raise ValueError(error.message) from error
    return KnownContexts(current if current in found else "", found)


def _unusable(path: Path, why: str) -> HarchError:
    return HarchError("E0202", f"{path} cannot be used: {why}", hint="mend it, or remove it and add contexts anew")
