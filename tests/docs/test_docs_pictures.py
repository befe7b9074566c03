"""Do pictures show what the pages say, to everybody, in both colour schemes?"""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path

import drawing
import pytest
from documents import DOCS, ROOT, name, pages
from pictures import FOLDER, rendered
from plots import Bar, Plot, published

_CONTENT_PX = 343  # the column of text on a phone that is 390 pixels wide
_HEADING = re.compile(r"^#+\s+(.*?)\s*$")
_IMAGE = re.compile(r"!\[([^\]]*)\]\(([^)\s]+\.svg)\)")
_TAG = re.compile(r"<(?:img|source)\b[^>]*>")
# Papers on which text of a role stands in some picture.
_PAPERS = {
    "ink": ("page", "box", "hub-paper", "law-paper", "sun-paper"),
    "soft": ("page", "box", "hub-paper", "law-paper", "sun-paper"),
    "hub": ("page", "hub-paper"),
    "law": ("page", "law-paper"),
}


def _plain(text: str) -> str:
    return re.sub(r"[`*]", "", text)


def _passages(page: Path, section: str) -> list[str]:
    """Table rows, list items and paragraphs under one heading, without marks for bold and code."""
    passages: list[str] = []
    inside, found, fence, goes_on = False, False, False, False
    for line in page.read_text("utf-8").splitlines():
        fence ^= line.startswith("```")
        heading = None if fence else _HEADING.match(line)
        if heading:
            inside = _plain(heading[1]) == _plain(section)
            found |= inside
        elif inside and goes_on and line.strip() and not line.startswith(("|", "- ")):
            passages[-1] += " " + _plain(line.strip())
        elif inside:
            passages.append(_plain(line))
            goes_on = bool(line.strip()) and not line.startswith("|")
    assert found, f"{page.name} has no heading `{section}`"
    return passages


def _has_figure(text: str, figure: str) -> bool:
    return re.search(rf"(?<![\d.,\-]){re.escape(figure)}(?![\d]|[.,]\d)", text) is not None


def _shown(page: Path) -> list[tuple[str, str]]:
    """Alternative text and target of every picture on a page, written as Markdown or as HTML."""
    text = page.read_text("utf-8")
    shown = [(alt, target) for alt, target in _IMAGE.findall(text)]
    for tag in _TAG.findall(text):
        values = dict(re.findall(r'(\w+)="([^"]*)"', tag))
        shown.append(
            (values.get("alt", "source" if tag.startswith("<source") else ""), values.get("src") or values["srcset"])
        )
    return shown


def test_the_pictures_in_the_repository_are_those_that_are_drawn() -> None:
    kept = {path.name: path.read_text("utf-8") for path in FOLDER.iterdir()}
    made = rendered()
    assert sorted(kept) == sorted(made), "run: make pictures"
    assert [name for name in made if kept[name] != made[name]] == [], "run: make pictures"


@pytest.mark.parametrize("plot", published(), ids=lambda plot: plot.file)
def test_every_figure_of_a_plot_stands_on_its_page_where_the_plot_says(plot: Plot) -> None:
    page = DOCS / "benchmarks" / plot.page

    def missing(bar: Bar) -> bool:
        rows = [passage for passage in _passages(page, bar.section) if _plain(bar.row) in passage]
        return not any(_has_figure(row, bar.value) for row in rows)

    bars = [bar for panel in plot.panels for bar in panel.bars]
    assert [bar for bar in bars if missing(bar)] == []
    whole = _plain(page.read_text("utf-8"))
    assert [bar for bar in bars if bar.goal and not _has_figure(whole, bar.goal)] == []
    assert [panel.title for panel in plot.panels if not panel.better and any(bar.goal for bar in panel.bars)] == []


def test_every_page_of_benchmarks_shows_its_plots() -> None:
    wanted = {(plot.page, f"../pictures/plot-{plot.file}.svg") for plot in published()}
    shown = {(page.name, target) for page in (DOCS / "benchmarks").glob("*.md") for _, target in _shown(page)}
    assert wanted == shown
    assert {page for page, _ in wanted} == {page.name for page in (DOCS / "benchmarks").glob("*.md")}


def test_every_picture_is_shown_somewhere_and_described_in_words() -> None:
    used = set()
    for page in pages():
        for alt, target in _shown(page):
            assert (page.parent / target).is_file(), f"{name(page)}: {target}"
            assert alt == "source" or len(alt.split()) >= 8, f"{name(page)}: describe {target}"
            used.add((page.parent / target).resolve())
    assert used == set(FOLDER.iterdir())


def test_pictures_load_nothing_and_run_nothing() -> None:
    for file, content in rendered().items():
        without_namespace = content.replace('xmlns="http://www.w3.org/2000/svg"', "")
        assert re.findall(r"//|url\(|href|@import|<script|<image|\son\w+=", without_namespace) == [], file


def test_text_of_every_picture_can_be_read_on_a_phone() -> None:
    for file, content in rendered().items():
        width = int(re.search(r'width="(\d+)"', content)[1])  # type: ignore[index]
        if not file.endswith("-wide.svg"):  # shown on wide screens only
            assert drawing.SMALL_PX * min(1, _CONTENT_PX / width) >= 12, file


def test_text_has_enough_contrast_to_its_paper_in_both_schemes() -> None:
    def luminance(colour: str) -> float:
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    pairs = [(role, paper) for role, papers in _PAPERS.items() for paper in papers]
    for (role, paper), scheme in product(pairs, (0, 1)):
        dark, light = sorted((luminance(drawing.COLOURS[role][scheme]), luminance(drawing.PAPERS[paper][scheme])))
        assert (light + 0.05) / (dark + 0.05) >= 4.5, (role, paper, scheme)


def test_text_that_would_leave_its_box_is_an_error() -> None:
    picture = drawing.Picture(200, 100, "one box")
    with pytest.raises(drawing.DoesNotFit, match="one box"):
        picture.box(10, 10, 60, ["more than a box holds"])


def test_the_readme_shows_the_architecture() -> None:
    assert "docs/pictures/architecture-wide.svg" in [target for _, target in _shown(ROOT / "README.md")]
