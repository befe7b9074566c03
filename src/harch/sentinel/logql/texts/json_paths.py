"""Which part of a JSON line? `request.headers["user-agent"]`, `servers[0]`."""

from __future__ import annotations

import re
from functools import lru_cache

from harch.base.errors import HarchError

Path = tuple[str | int, ...]

_FIRST = re.compile(r'(?P<name>[a-zA-Z_][a-zA-Z0-9_]*)|\["(?P<quoted>(?:[^"\\]|\\.)*)"\]|\[(?P<place>\d{1,9})\]')
_NEXT = re.compile(r'\.(?P<name>[a-zA-Z_][a-zA-Z0-9_]*)|\["(?P<quoted>(?:[^"\\]|\\.)*)"\]|\[(?P<place>\d{1,9})\]')
PARTS_MAX = 50


@lru_cache(maxsize=1024)
def json_path(expression: str) -> Path:
    """Raises E0685 for what is no path."""
    parts: list[str | int] = []
    position = 0
    while position < len(expression):
        found = (_NEXT if parts else _FIRST).match(expression, position)
        if found is None or len(parts) >= PARTS_MAX:
            break
        if found["place"] is not None:
            parts.append(int(found["place"]))
        else:
            quoted = found["quoted"]
            parts.append(found["name"] if quoted is None else re.sub(r"\\(.)", r"\1", quoted))
        position = found.end()
    if not parts or position < len(expression):
        hint = 'write e.g. `request.method`, `servers[0]` or `headers["user-agent"]`'
        raise HarchError("E0685", f"`{expression[:80]}` is no path to a field", hint=hint)
    return tuple(parts)
