"""How does a federation get among those that the user knows? Written down once it has started, or by hand."""

from __future__ import annotations

from pathlib import Path

from harch.base.config import PORT_BASE_DEFAULT, Ports
from harch.base.errors import HarchError


def remember(name: str, hubs: tuple[str, ...], key_file: Path) -> str:
    """Adds a context or replaces it, and returns the name of the current one. Raises HarchError and OSError."""
    from harch.sdk.contexts import changing_contexts, checked_context, contexts_file
    from harch.sdk.settings import normal_url

    context = checked_context(name, tuple(map(normal_url, hubs)), str(key_file))
    with changing_contexts(contexts_file()) as known:
        known[0] = known[0].with_context(context)
        return known[0].current


def remember_local(ports: Ports, hubs: tuple[str, ...], key_file: Path) -> str:
    """For `harch up`, in words: a federation that cannot be written down runs all the same."""
    name = "local" if ports.base == PORT_BASE_DEFAULT else f"local-{ports.base}"
    try:
        current = remember(name, hubs, key_file)
    except (HarchError, OSError) as error:
        return f"not written: {error}"
    return f"{name} (in use)" if current == name else f"{name} (`harch context use {name}` selects it)"
