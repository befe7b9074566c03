"""Is every command that a page has its reader type executed by a test, or is it said why not?"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from documents import DOCS, ROOT, name

from e2e.guide_page import GUIDES, fences

# Pages with commands that no test types in order, each with the reason.
NOT_EXECUTED = {
    "CONTRIBUTING.md": "its commands are the tests",
    "docs/internals/testing.md": "its commands are the tests",
    "docs/pipelines/sense.md": "sends to a pipeline that the reader has",
    "docs/reference/listeners.md": "starts one hub of a real federation with other limits",
}
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *(page for page in sorted(DOCS.rglob("*.md")) if page.relative_to(DOCS).parts[0] not in ("adr", "benchmarks")),
]
COMMAND = re.compile(r"^(?:\$ |(?:\S*/)?(?:harch|make|curl|pip|python3?) (?!\S+[,:] ))", re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_commands_are_in_fences_that_say_so(page: Path) -> None:
    unlabelled = [fence for fence in fences(page) if fence.language in ("", "bash", "shell", "console")]
    assert [fence.line for fence in unlabelled] == []
    shown = [fence for fence in fences(page) if fence.language == "text" and not fence.title]
    assert [fence.line for fence in shown if COMMAND.search(fence.body)] == []


def test_every_page_with_commands_is_executed_or_says_why_not() -> None:
    with_commands = {name(page) for page in PAGES if any(fence.language == "sh" for fence in fences(page))}
    assert with_commands == set(GUIDES) | set(NOT_EXECUTED)
    assert not set(GUIDES) & set(NOT_EXECUTED)
