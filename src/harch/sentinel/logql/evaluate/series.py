"""Which series does each line count for? Labels of lines become numbers of series, made once for equal labels."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from harch.base.errors import HarchError
from harch.sentinel.logql.stages.page import Page
from harch.sentinel.logql.stages.wanting import ERROR, ERROR_DETAILS
from harch.sentinel.logql.syntax.nodes import Grouping
from harch.sentinel.model.labels import Labels
from harch.sentinel.model.selection import Ints, SeriesTable
from harch.sentinel.promql.evaluate.labels.columns import labels_text


@dataclass(slots=True)
class SeriesFound:
    """The series of one aggregation. `grouping` says which labels they keep; None: all but `left_out`."""

    series_max: int
    grouping: Grouping | None = None
    left_out: frozenset[str] = frozenset()
    known: dict[Labels, int] = field(default_factory=dict)

    @property
    def count(self) -> int:
        return len(self.known)

    def table(self) -> SeriesTable:
        return SeriesTable.of(list(self.known))

    def by_labels(self) -> Ints:
        """The series in the order of their labels: stores hand out lines in any order, and answers do not show it."""
        return np.array([self.known[labels] for labels in sorted(self.known)], np.int64)

    def of_lines(self, page: Page) -> Ints:
        """The series of every line. Raises E0686 for lines that went wrong on the way."""
        if page.has_errors():
            self._refuse(page)
        layered = [name for name in dict.fromkeys((*page.metadata, *page.parsed)) if self._keeps(name)]
        if not layered:
            by_stream = np.array([self._code(dict(labels)) for labels in page.streams], np.int64)
            return by_stream[page.stream_at]
        columns = [page.values(name) for name in layered]
        rows = zip(page.codes, *columns, strict=True)
        seen: dict[tuple[object, ...], int] = {}
        codes = np.empty(len(page), np.int64)
        for place, row in enumerate(rows):
            code = seen.get(row)
            if code is None:
                labels = dict(page.streams[page.codes[place]])
                labels.update({name: values[place] for name, values in zip(layered, columns, strict=True)})
                code = seen[row] = self._code(labels)
            codes[place] = code
        return codes

    def _keeps(self, name: str) -> bool:
        if self.grouping is None:
            return name not in self.left_out
        return (name in self.grouping.labels) is not self.grouping.without and name not in self.left_out

    def _code(self, labels: dict[str, str]) -> int:
        key = tuple(sorted((name, value) for name, value in labels.items() if value and self._keeps(name)))
        code = self.known.setdefault(key, len(self.known))
        if len(self.known) > self.series_max:
            raise HarchError(
                "E0687",
                f"the query makes more than {self.series_max} series of its lines",
                hint="group by fewer labels: sum by (…) (…), or extract fewer",
            )
        return code

    def _refuse(self, page: Page) -> None:
        errors = page.values(ERROR)
        place = next(place for place, error in enumerate(errors) if error)
        labels = {name: value for name, value in page.labels_at(place).items() if name != ERROR_DETAILS}
        details = page.value(ERROR_DETAILS, place)
        raise HarchError(
            "E0686",
            f"pipeline error: '{errors[place]}' for series: '{labels_text(labels)}': {details}",
            hint='leave such lines out with `| __error__=""`, or look at them with a query for lines',
        )
