"""What does a hub answer about pipelines? The values that `client.pipelines` returns; see `types` on versions."""

from __future__ import annotations

from msgspec import Struct

from harch.wire.pipelines import ActionList as ActionPage
from harch.wire.pipelines import ActionView as PipelineAction
from harch.wire.pipelines import ApplyView as PipelineApplied
from harch.wire.pipelines import BorderView as PipelineBorder
from harch.wire.pipelines import EdgeView as PipelineEdge
from harch.wire.pipelines import PipelineDetails
from harch.wire.pipelines import PipelineList as PipelinePage
from harch.wire.pipelines import PipelineView as Pipeline
from harch.wire.pipelines import ReplayRun as PipelineReplayRun
from harch.wire.pipelines import ReplayView as PipelineReplay
from harch.wire.pipelines import ResultRow as PipelineResult
from harch.wire.pipelines import ResultsView as PipelineResults
from harch.wire.pipelines import SourceKeyView as PipelineSourceKey
from harch.wire.pipelines import StageStep as PipelineStep
from harch.wire.pipelines import StageView as PipelineStage
from harch.wire.pipelines import VersionView as PipelineVersion
from harch.wire.pipelines import WorkerView as PipelineWorker

__all__ = [
    "ActionPage",
    "LogPiece",
    "Pipeline",
    "PipelineAction",
    "PipelineApplied",
    "PipelineBorder",
    "PipelineDetails",
    "PipelineEdge",
    "PipelinePage",
    "PipelineReplay",
    "PipelineReplayRun",
    "PipelineResult",
    "PipelineResults",
    "PipelineSourceKey",
    "PipelineStage",
    "PipelineStep",
    "PipelineVersion",
    "PipelineWorker",
]


class LogPiece(Struct, frozen=True, kw_only=True):
    """A piece of what a worker printed. Ask again from `next_offset`."""

    data: bytes
    offset: int
    next_offset: int
