"""What is a dashboard? A title and panels, each with a query that the terminal or the console draws."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import yaml

from harch.base.errors import HarchError

FILE_BYTES_MAX = 1024 * 1024
_SUFFIX = ".yaml"
_HINT = "docs/sentinel/dashboards.md shows the fields"


class DashboardPanel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One picture. `legend` names a curve from its labels: `{{hub_name}}`."""

    title: Annotated[str, msgspec.Meta(min_length=1, max_length=120)]
    query: Annotated[str, msgspec.Meta(min_length=1, max_length=10_000)]
    kind: Literal["line", "value", "bars", "table"] = "line"
    unit: Annotated[str, msgspec.Meta(max_length=16)] = ""
    legend: Annotated[str, msgspec.Meta(max_length=200)] = ""
    zero_based: bool = False


class Dashboard(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    title: Annotated[str, msgspec.Meta(min_length=1, max_length=120)]
    panels: Annotated[tuple[DashboardPanel, ...], msgspec.Meta(min_length=1, max_length=50)]
    description: str = ""
    range: str = "1h"
    refresh: str = "15s"


def shipped_names() -> list[str]:
    folder = files("harch.sentinel.dashboards") / "shipped"
    return sorted(entry.name.removesuffix(_SUFFIX) for entry in folder.iterdir() if entry.name.endswith(_SUFFIX))


def shipped(name: str) -> Dashboard:
    if name not in shipped_names():
        known = ", ".join(shipped_names())
        raise HarchError("E0679", f"no dashboard named `{name}`", hint=f"built-in: {known}; or use --file")
    text = (files("harch.sentinel.dashboards") / "shipped" / f"{name}{_SUFFIX}").read_text("utf-8")
    return parse_dashboard(text, name)


def read_dashboard(path: Path) -> Dashboard:
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise HarchError("E0679", f"{path} is larger than {FILE_BYTES_MAX} bytes", hint=_HINT)
        return parse_dashboard(path.read_text("utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as problem:
        raise HarchError("E0679", f"{path} cannot be read: {problem}", hint=_HINT) from problem


def parse_dashboard(text: str, where: str) -> Dashboard:
    """Raises E0679 with what is wrong and where."""
    try:
        found: Any = yaml.safe_load(text)
        return msgspec.convert(found, Dashboard)
    except (yaml.YAMLError, msgspec.ValidationError, RecursionError) as problem:
        raise HarchError("E0679", f"{where}: {problem}", hint=_HINT) from problem
