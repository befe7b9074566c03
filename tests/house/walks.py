"""How many stations does each walk through the code have? A job, a sample and an event, on the architecture page."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "architecture.md"
FLOWS = ("a job", "a sample", "an event")
STATIONS_MAX = 12
_HEADING = re.compile(r"^### ([^\n]+)$\n(.*?)(?=^##|\Z)", re.MULTILINE | re.DOTALL)
_STATION = re.compile(r"^\d+\. .*\(\.\./src/harch/\S+\.py\)", re.MULTILINE)


def stations_of(page: str) -> dict[str, int | None]:
    """The numbered stations that link to a module, below the heading of each flow; None without such a heading."""
    sections = {title.casefold(): text for title, text in _HEADING.findall(page)}
    return {flow: len(_STATION.findall(sections[flow])) if flow in sections else None for flow in FLOWS}
