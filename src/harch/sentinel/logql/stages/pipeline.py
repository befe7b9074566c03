"""What does a whole pipeline do to a page? Stage after stage, once it is known what the store has done already."""

from __future__ import annotations

from dataclasses import dataclass

from harch.sentinel.logql.stages.filtering import filter_labels, filter_lines
from harch.sentinel.logql.stages.formatting import decolorize, drop_labels, format_labels, format_lines, keep_labels
from harch.sentinel.logql.stages.page import Page
from harch.sentinel.logql.stages.parsing import PARSERS
from harch.sentinel.logql.stages.wanting import LabelsRead
from harch.sentinel.logql.syntax import stages
from harch.sentinel.logql.syntax.stages import Stage


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Stages in order. `wanted` says which labels the answer needs; None: all of them."""

    stages: tuple[Stage, ...]
    wanted: LabelsRead | None
    now_ns: int

    def run(self, page: Page) -> None:
        for stage in self.stages:
            if not len(page):
                return
            self._apply(stage, page)

    def _apply(self, stage: Stage, page: Page) -> None:
        match stage:
            case stages.LineFilter():
                filter_lines(page, stage)
            case stages.LabelFilter():
                filter_labels(page, stage)
            case stages.LineFormat():
                format_lines(page, stage, self.now_ns)
            case stages.LabelFormat():
                format_labels(page, stage, self.now_ns)
            case stages.Decolorize():
                decolorize(page)
            case stages.Drop():
                drop_labels(page, stage)
            case stages.Keep():
                keep_labels(page, stage)
            case _:
                PARSERS[type(stage)](page, stage, self.wanted)


def may_drop_lines(pipeline: tuple[Stage, ...]) -> bool:
    """Whether fewer lines may come out than went in."""
    return any(isinstance(stage, stages.LineFilter | stages.LabelFilter) for stage in pipeline)
