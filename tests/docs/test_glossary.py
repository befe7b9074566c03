"""Does the product speak the words of its glossary, and none that were retired?"""

from __future__ import annotations

from pathlib import Path

import pytest
from documents import ROOT

from house.source import Module, read_modules
from house.words import RetiredWord, Term, read_retired, read_terms, retired_names, retired_texts, words_of

TERMS = read_terms()
RETIRED = read_retired()


@pytest.fixture(scope="module")
def modules() -> dict[str, Module]:
    return read_modules()


def test_the_tables_are_read() -> None:
    assert len(TERMS) > 50
    assert RetiredWord("spill", "lending", everywhere=True) in RETIRED
    assert {"told", "tell"} <= {each.word for each in RETIRED}


@pytest.mark.parametrize("term", TERMS, ids=lambda term: term.name)
def test_a_term_names_the_module_where_reading_starts(term: Term, modules: dict[str, Module]) -> None:
    assert term.module in modules
    assert term.meaning


def test_a_term_stands_once() -> None:
    names = [term.name for term in TERMS]
    assert sorted(names) == sorted(set(names))


def test_retired_words_are_in_no_name(modules: dict[str, Module]) -> None:
    assert [str(found) for found in retired_names(modules.values(), RETIRED)] == []


def test_retired_words_are_in_nothing_that_users_read(modules: dict[str, Module]) -> None:
    assert [str(found) for found in retired_texts(modules.values(), RETIRED)] == []


def test_the_glossary_is_found_from_where_people_begin() -> None:
    assert "(docs/glossary.md)" in (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    assert "(glossary.md)" in (ROOT / "docs" / "architecture.md").read_text("utf-8")


@pytest.mark.parametrize("name", ["SpanAttributes", "span_attributes", "SPAN_ATTRIBUTES", "_spanAttributes"])
def test_a_name_in_any_case_is_its_words(name: str) -> None:
    assert words_of(name) == ["span", "attributes"]


def test_a_retired_word_that_comes_back_is_found_wherever_it_stands(tmp_path: Path) -> None:
    package = tmp_path / "harch"
    package.mkdir()
    (package / "desk.py").write_text(
        '"""What was told? Docstrings are for readers of the source."""\n'
        "import click\n"
        "def answer(told): self.desks = [spill for spill in told]\n"
        '@click.command()\ndef verb():\n    """Ask the desk."""\n'
        'MESSAGE, METRIC, KEY = "no desk here", "harch_desk_total", "desk"\n'
    )
    found = read_modules(tmp_path)
    words = [RetiredWord("desk", "", everywhere=True), RetiredWord("told", "", everywhere=False)]
    names = {each.place for each in retired_names(found.values(), [*words, RetiredWord("spill", "", everywhere=True)])}
    assert names == {"desk", "told", "desks", "spill"}
    assert {each.place for each in retired_texts(found.values(), words)} == {
        "Ask the desk.",
        "no desk here",
        "harch_desk_total",
    }
