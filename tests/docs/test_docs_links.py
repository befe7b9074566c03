"""Do links lead somewhere, and only to places inside the repository?"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from documents import DOCS, ROOT, name, pages, text_without_code

_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)(?:\s+\"[^\"]*\")?\)")
_URL = re.compile(r"(?:https?|wss?|ftp)://([^/\s:)>\"'`]+)")
# Hosts that a page may name: the machine it runs on.
_HOSTS_ALLOWED = {"127.0.0.1", "localhost"}
_RESERVED = ".example.org"  # for examples, by RFC 2606: nobody can have it
_BARE_HOSTS = re.compile(
    r"\b(?:pypi\.org|pythonhosted\.org|npmjs\.com|registry\.npmjs\.org|unpkg\.com|jsdelivr\.net|googleapis\.com|github\.io)\b"
)


def _anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#{1,6}\s+(.+?)\s*$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", pages(), ids=name)
def test_every_link_resolves_inside_the_repository(page: Path) -> None:
    for target in _LINK.findall(text_without_code(page)):
        if re.match(r"[a-z]+:", target):
            continue  # addresses of other hosts are the next test's business
        path_text, _, anchor = target.partition("#")
        linked = (page.parent / path_text).resolve() if path_text else page
        assert linked.is_relative_to(ROOT), f"{target} leaves the repository"
        assert linked.exists(), f"{target} does not exist"
        if page.is_relative_to(DOCS):
            is_source = linked.is_relative_to(ROOT / "src")  # for readers of a checkout
            assert linked.is_relative_to(DOCS) or is_source, f"{target} is not part of the built site"
        if anchor:
            assert anchor in _anchors(linked), f"{target}: no such heading"


@pytest.mark.parametrize("page", [*pages(), ROOT / "mkdocs.yml"], ids=name)
def test_no_page_names_an_outside_host(page: Path) -> None:
    text = page.read_text("utf-8")
    hosts = {host for host in _URL.findall(text) if not host.endswith(_RESERVED)}
    assert hosts - _HOSTS_ALLOWED == set()
    assert _BARE_HOSTS.findall(text) == []


def test_every_page_is_in_the_navigation_and_every_entry_is_a_page() -> None:
    def leaves(entry: object) -> list[str]:
        if isinstance(entry, str):
            return [entry]
        children = entry.values() if isinstance(entry, dict) else entry
        assert isinstance(children, list) or hasattr(children, "__iter__")
        return [leaf for child in children for leaf in leaves(child)]

    listed = leaves(yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))["nav"])
    assert len(listed) == len(set(listed))
    assert set(listed) == {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")}
