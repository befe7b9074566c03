"""The index of grams never denies a text that is there, and only what an expression surely needs is looked up."""

from __future__ import annotations

import numpy as np
import re2
from hypothesis import example, given, settings
from hypothesis import strategies as st

from harch.sentinel.archive.gram_kernels import with_all
from harch.sentinel.archive.literals import required_literals
from harch.sentinel.archive.string_columns import bitmap_of, grams_in, passing, string_column
from harch.sentinel.model.logs import FilterKind, LineFilter

TEXTS = st.lists(st.text(alphabet="abc01 -ö", max_size=30), min_size=1, max_size=8)


def may_contain(texts: list[str], literal: str) -> bool:
    bits = np.frombuffer(bitmap_of([string_column(texts)]), np.uint8)
    out = np.ones(1, np.bool_)
    with_all(bits, np.zeros(1, np.int64), np.array([len(bits)]), grams_in([literal]), out)
    return bool(out[0])


@settings(deadline=None)
@given(TEXTS, st.data())
def test_every_part_of_a_line_is_found(texts: list[str], data: st.DataObject) -> None:
    line = data.draw(st.sampled_from(texts))
    begin = data.draw(st.integers(0, len(line)))
    assert may_contain(texts, line[begin : data.draw(st.integers(begin, len(line)))])


def test_a_text_that_is_nowhere_is_mostly_denied() -> None:
    texts = [f"request {number:08x} took {number % 977} ms" for number in range(5000)]
    denied = sum(not may_contain(texts, f"request {number:08x} took") for number in range(10**6, 10**6 + 50))
    assert denied >= 45


@settings(deadline=None, max_examples=300)
@given(
    st.text(alphabet="abcd.*+?()[]{}^$\\-xdw ,1|Q", max_size=14), st.lists(st.text(alphabet="abcd1 -x", max_size=12))
)
@example("ab{2}cd", ["abbcd"])
@example(r"a\.b+[c]d?x", ["a.bcx"])
@example(r"(abc)?d", ["d"])
def test_what_an_expression_needs_is_in_all_that_it_matches(expression: str, texts: list[str]) -> None:
    options = re2.Options()
    options.dot_nl, options.log_errors = True, False
    try:
        pattern = re2.compile(expression, options)
    except re2.error:
        return
    needed = required_literals(expression)
    for text in texts:
        if pattern.search(text):
            assert all(literal in text for literal in needed), (expression, needed, text)


@settings(deadline=None)
@given(TEXTS, st.text(alphabet="abc01 -ö.", max_size=6), st.integers(0, 3))
def test_filters_of_columns_take_what_filters_of_texts_take(texts: list[str], wanted: str, cut: int) -> None:
    column = string_column(texts).slice(min(cut, len(texts)))
    held = texts[cut:]
    pattern = re2.compile(f"(?s){wanted}")
    assert passing(column, LineFilter(FilterKind.CONTAINS, wanted)).tolist() == [wanted in text for text in held]
    matching = [pattern.search(text) is not None for text in held]
    assert passing(column, LineFilter(FilterKind.MATCHES, wanted)).tolist() == matching
