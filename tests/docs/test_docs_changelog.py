"""Is there something to read in the next release notes, in a form that towncrier takes?"""

from __future__ import annotations

import tomllib

from documents import ROOT

_FRAGMENTS = sorted(path for path in (ROOT / "changelog.d").iterdir() if path.suffix == ".md")


def test_changelog_fragments_have_a_known_type_and_end_in_sentences() -> None:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["towncrier"]
    types = {entry["directory"] for entry in config["type"]}
    assert _FRAGMENTS, "a change comes with a fragment, e.g. changelog.d/+my-change.added.md"
    for fragment in _FRAGMENTS:
        assert fragment.name.split(".")[-2] in types, fragment.name
        assert fragment.read_text("utf-8").strip().endswith("."), fragment.name
