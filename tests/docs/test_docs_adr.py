"""Is every decision numbered, complete and in the index?"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from documents import DOCS, name

ADRS = sorted(path for path in (DOCS / "adr").glob("*.md") if path.name != "README.md")
_SECTIONS = ("## Status", "## Context", "## Decision", "## Consequences", "## Alternatives")
_STATES = ("Accepted", "Superseded", "Rejected", "Proposed")


def test_decisions_are_numbered_without_gaps() -> None:
    assert [int(path.name[:4]) for path in ADRS] == list(range(1, len(ADRS) + 1))


@pytest.mark.parametrize("adr", ADRS, ids=name)
def test_a_decision_has_its_number_and_all_sections_in_order(adr: Path) -> None:
    text = adr.read_text("utf-8")
    assert re.match(rf"# {int(adr.name[:4])}\. \S", text)
    positions = [text.find(f"\n{section}\n") for section in _SECTIONS]
    assert -1 not in positions, dict(zip(_SECTIONS, positions, strict=True))
    assert positions == sorted(positions)
    assert text.split("## Status\n\n", 1)[1].startswith(_STATES)


def test_the_index_lists_every_decision_under_its_own_title() -> None:
    index = (DOCS / "adr" / "README.md").read_text("utf-8")
    for adr in ADRS:
        title = adr.read_text("utf-8").splitlines()[0].split(". ", 1)[1]
        assert f"[{title}]({adr.name})" in index
    assert len(re.findall(r"\(\d{4}-[^)]*\.md\)", index)) == len(ADRS)
