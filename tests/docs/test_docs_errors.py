"""Does the page of error codes agree with the registry?"""

from __future__ import annotations

import re

import pytest
from documents import DOCS
from error_page import EXIT_MEANINGS, FAMILIES, render

from harch.base.errors import REGISTRY, ErrorKind, InvariantBroken


def test_the_page_of_error_codes_is_current() -> None:
    page = (DOCS / "errors.md").read_text("utf-8")
    assert page == render(), "run: .venv/bin/python tests/docs/error_page.py > docs/errors.md"


@pytest.mark.parametrize("kind", REGISTRY.values(), ids=lambda kind: kind.code)
def test_every_code_can_be_linked_and_says_what_it_means(kind: ErrorKind) -> None:
    assert f"\n### {kind.code}\n" in render()
    assert kind.code[:3] in FAMILIES
    assert kind.exit_code in EXIT_MEANINGS
    assert 400 <= kind.status < 600
    assert kind.status != 422, "published clients know 400 for validation errors, not 422"
    assert kind.explanation.endswith((".", "!", "?")), "an explanation is made of sentences"


def test_a_code_of_no_family_is_a_mistake() -> None:
    with pytest.raises(InvariantBroken):
        render([ErrorKind("E9999", "No such family", 500, "Nothing.")])


def test_codes_that_the_source_raises_are_registered() -> None:
    source = DOCS.parent / "src" / "harch"
    raised = {
        (code, path.name)
        for path in source.rglob("*.py")
        for code in re.findall(r'HarchError\(\s*"(E\d{4})"', path.read_text("utf-8"))
    }
    assert {pair for pair in raised if pair[0] not in REGISTRY} == set()
