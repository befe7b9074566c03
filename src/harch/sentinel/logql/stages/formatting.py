"""How are lines and labels rewritten? line_format, label_format, decolorize, drop and keep."""

from __future__ import annotations

import re

from harch.base.errors import HarchError
from harch.sentinel.logql.stages.page import Page
from harch.sentinel.logql.stages.wanting import ERROR, ERROR_DETAILS
from harch.sentinel.logql.syntax import stages
from harch.sentinel.logql.texts.templates import LineTemplate, compiled_template
from harch.sentinel.model.matchers import Matcher

TEMPLATE_ERROR = "TemplateFormatErr"
WRITTEN_CHARS_MAX = 64 << 20  # of one stage on one page
_COLOUR = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[@-Z\\-_])")


def format_lines(page: Page, stage: stages.LineFormat, now_ns: int) -> None:
    template = compiled_template(stage.template)
    columns = _columns(page, template)
    times, room = page.times_ns.tolist(), WRITTEN_CHARS_MAX
    for place, text in enumerate(page.texts):
        try:
            page.texts[place] = template.written(_labels(page, columns, place), text, times[place], now_ns)
        except HarchError as wrong:
            page.fail(place, TEMPLATE_ERROR, wrong.message)
        room = _room_left(room, page.texts[place])
    page.changed_texts = True


def _room_left(room: int, text: str) -> int:
    if len(text) > room:
        told = f"templates write more than {WRITTEN_CHARS_MAX >> 20} MiB for one page of lines"
        raise HarchError("E0687", told, hint="let them write less a line")
    return room - len(text)


def _columns(page: Page, template: LineTemplate) -> dict[str, list[str]] | None:
    """The labels that a plain template reads, once a page; None: it may read any."""
    return None if template.labels is None else {name: page.values(name) for name in template.labels}


def _labels(page: Page, columns: dict[str, list[str]] | None, place: int) -> dict[str, str]:
    if columns is None:
        return page.labels_at(place)
    return {name: values[place] for name, values in columns.items()}


def format_labels(page: Page, stage: stages.LabelFormat, now_ns: int) -> None:
    """One assignment after the other: each sees what those before it wrote."""
    for one in stage.assignments:
        if one.is_template:
            _write_label(page, one, now_ns)
        else:
            _rename_label(page, one)


def _rename_label(page: Page, one: stages.Assignment) -> None:
    values = page.values(one.value)
    if not any(values):
        return
    target = page.values(one.label)
    page.parsed[one.label] = [new or old for new, old in zip(values, target, strict=True)]
    if one.label != one.value:
        page.parsed[one.value] = [""] * len(page)


def _write_label(page: Page, one: stages.Assignment, now_ns: int) -> None:
    template = compiled_template(one.value)
    columns = _columns(page, template)
    times, texts, room = page.times_ns.tolist(), page.texts, WRITTEN_CHARS_MAX
    for place in range(len(page)):
        text = texts[place] if texts else ""
        try:
            value = template.written(_labels(page, columns, place), text, times[place], now_ns)
        except HarchError as wrong:
            page.fail(place, TEMPLATE_ERROR, wrong.message)
            continue
        room = _room_left(room, value)
        page.put(page.parsed, one.label, place, value)


def decolorize(page: Page) -> None:
    page.texts = [_COLOUR.sub("", text) if "\x1b" in text else text for text in page.texts]
    page.changed_texts = True


def drop_labels(page: Page, stage: stages.Drop) -> None:
    for one in stage.labels:
        name = one if isinstance(one, str) else one.name
        if isinstance(one, str):
            page.forget(name)
            if name == ERROR:
                page.forget(ERROR_DETAILS)
        else:
            _forget_where(page, one)


def _forget_where(page: Page, matcher: Matcher) -> None:
    for place, value in enumerate(page.values(matcher.name)):
        if value and matcher.matches(value):
            page.put(page.parsed, matcher.name, place, "")


def keep_labels(page: Page, stage: stages.Keep) -> None:
    """What is named stays, where its value matches; `__error__` always does."""
    plain = {one for one in stage.labels if isinstance(one, str)} | {ERROR, ERROR_DETAILS}
    matchers: dict[str, list[Matcher]] = {}
    for one in stage.labels:
        if isinstance(one, Matcher):
            matchers.setdefault(one.name, []).append(one)
    for name in page.names() - plain:
        if name not in matchers:
            page.forget(name)
            continue
        for place, value in enumerate(page.values(name)):
            if value and not any(matcher.matches(value) for matcher in matchers[name]):
                page.put(page.parsed, name, place, "")
