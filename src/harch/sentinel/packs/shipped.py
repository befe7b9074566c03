"""Where are the shipped rule files? Beside this module, in the wheel as in a clone."""

from __future__ import annotations

from importlib.resources import files


def shipped_files() -> dict[str, str]:
    """Their texts by name, sorted."""
    found = (entry for entry in files("harch.sentinel.packs").iterdir() if entry.name.endswith(".yaml"))
    return {entry.name: entry.read_text(encoding="utf-8") for entry in sorted(found, key=lambda entry: entry.name)}
