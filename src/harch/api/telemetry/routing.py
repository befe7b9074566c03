"""Which function answers which path, and for whom? A table; names in braces take any one segment of the path."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from urllib.parse import unquote

from harch.api.telemetry.answer import Answer
from harch.api.telemetry.permissions import ACCESS, Access, Table, allowed
from harch.api.telemetry.request import TelemetryRequest
from harch.base.errors import HarchError

WRITE_BYTES_MAX = 32 * 1024 * 1024
FORM_BYTES_MAX = 2 * 1024 * 1024

Handler = Callable[[TelemetryRequest, Mapping[str, str]], Answer | Awaitable[Answer]]


class Work(Enum):
    """Which threads do it? Writes never wait behind queries, and what is quick behind neither."""

    QUICK = "quick"
    LOOP = "loop"  # the handler is awaited: it waits for a disk or a network without holding a thread
    QUERY = "query"
    WRITE = "write"


@dataclass(frozen=True, slots=True)
class Route:
    methods: Sequence[str]
    path: str
    handler: Handler
    work: Work = Work.QUERY
    body_bytes_max: int = FORM_BYTES_MAX
    is_form: bool = True  # whether a POST carries its parameters as a form
    over_hubs: Handler | None = None  # answers instead, as `LOOP`, when the request names other hubs
    is_small: Callable[[TelemetryRequest], bool] | None = None  # then it is answered without the way over a thread


class Routes:
    """Finds the route of a request. Exact paths are looked up, others compared segment by segment."""

    def __init__(self, routes: Sequence[Route], access: Table = ACCESS) -> None:
        """Raises InvariantBroken for a route of which the table does not say who may call it."""
        self._access = {
            (method, one.path): allowed(access, method, one.path) for one in routes for method in one.methods
        }
        self._exact: dict[str, list[Route]] = {}
        self._templates: list[tuple[tuple[str, ...], Route]] = []
        for route in routes:
            if "{" in route.path:
                self._templates.append((tuple(route.path.split("/")), route))
            else:
                self._exact.setdefault(route.path, []).append(route)

    def find(self, method: str, path: str) -> tuple[Route, dict[str, str], Access]:
        """Raises E0207 for a path that is not served, E0208 for a method that it does not take."""
        path = path.rstrip("/") or "/"
        candidates: list[tuple[Route, dict[str, str]]] = [(route, {}) for route in self._exact.get(path, ())]
        segments = path.split("/")
        for template, route in self._templates:
            names = _match(template, segments)
            if names is not None:
                candidates.append((route, names))
        for route, names in candidates:
            if method in route.methods:
                return route, names, self._access[method, route.path]
        if candidates:
            allowed = ", ".join(sorted({name for route, _ in candidates for name in route.methods}))
            raise HarchError("E0208", f"{path} does not take {method}", hint=f"use {allowed}")
        raise HarchError("E0207", f"SENTINEL serves no {path}", hint="docs/sentinel/api.md lists what it serves")


def _match(template: Sequence[str], segments: Sequence[str]) -> dict[str, str] | None:
    if len(template) != len(segments):
        return None
    names = {}
    for expected, found in zip(template, segments, strict=True):
        if expected.startswith("{"):
            names[expected[1:-1]] = unquote(found)
        elif expected != found:
            return None
    return names
