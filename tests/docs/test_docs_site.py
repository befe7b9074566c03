"""Does the site build without a network, and does a reader's browser stay on it?"""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

from documents import DOCS

_POLICY = "default-src 'self'"
# What makes the theme's script fetch from other hosts; the page's policy forbids it as well.
_TRIGGERS = ("mermaid", "glightbox", "data-md-component=source")


class _Addresses(HTMLParser):
    """Collects what a browser would load or follow, and the triggers above."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.triggers: list[str] = []
        self.policy = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {key: value or "" for key, value in attrs}
        self.found += [values[key] for key in ("href", "src", "srcset", "action", "poster", "data") if key in values]
        if values.get("http-equiv") == "Content-Security-Policy":
            self.policy = values.get("content", "")
        words = {*values.get("class", "").split(), f"data-md-component={values.get('data-md-component', '')}"}
        self.triggers += [word for word in words if word in _TRIGGERS]


def test_every_page_is_built(site: Path) -> None:
    sources = {page.relative_to(DOCS) for page in DOCS.rglob("*.md")}
    expected = {
        source.parent / ("index.html" if source.stem == "README" else f"{source.stem}.html") for source in sources
    }
    assert {path for path in expected if not (site / path).is_file()} == set()


def test_no_page_of_the_site_leads_to_another_host(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert pages
    for page in pages:
        addresses = _Addresses()
        addresses.feed(page.read_text("utf-8"))
        outside = [address for address in addresses.found if re.match(r"\s*(?:[a-z]+:)?//", address)]
        assert outside == [], page
        assert addresses.triggers == [], page
        assert _POLICY in addresses.policy, page
    for sheet in site.rglob("*.css"):
        assert re.findall(r"url\(\s*['\"]?(?:https?:)?//", sheet.read_text("utf-8")) == [], sheet
