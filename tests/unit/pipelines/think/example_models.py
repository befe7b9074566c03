"""What tests of the examples share: their training scripts, their files, and the way from features to commands."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from think_models import DAKHLA

from harch.pipelines.act.decisions import ActionPlanner, decision_batch
from harch.pipelines.act.ledger import ActionCommand
from harch.pipelines.sense.features import FeatureBatch, FeatureMaker
from harch.pipelines.spec.file import data_tag, parse_pipelines
from harch.pipelines.spec.settings import PipelineSpec
from harch.pipelines.think.messages import Scored, decided_of, features_of
from harch.pipelines.think.model_loader import declared_tags
from harch.pipelines.think.stage import ThinkStage
from harch.sovereignty.jurisdiction_file import shipped_jurisdictions

EXAMPLES = Path(__file__).resolve().parents[4] / "examples" / "pipelines"
NAMES = ("irrigation", "grid-balancing", "transactions")


def training_of(name: str) -> Any:
    """The example's own script; all three are called `train`, so each gets a name of its own."""
    spec = importlib.util.spec_from_file_location(f"train_{name.replace('-', '_')}", EXAMPLES / name / "train.py")
    assert spec is not None
    assert spec.loader is not None
    module: ModuleType = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def spec_in(path: Path) -> PipelineSpec:
    (spec,) = parse_pipelines(path.read_bytes(), path.name, shipped_jurisdictions())
    return spec


def decide(folder: Path, columns: dict[str, np.ndarray]) -> tuple[Scored, dict[str, list[ActionCommand]]]:
    """From features of SENSE through THINK to the commands of ACT, by device, with nothing but the pipeline's file."""
    spec = spec_in(folder / "pipeline.yaml")
    assert spec.think is not None
    assert spec.act is not None
    jurisdictions = shipped_jurisdictions()
    stage = ThinkStage(
        spec.think,
        site=DAKHLA,
        tag_of=declared_tags(data_tag(spec, jurisdictions), jurisdictions),
        folder=folder,
    )
    stage.load()
    names = FeatureMaker(spec.sense).names
    rows = len(next(iter(columns.values())))
    matrix = np.column_stack([columns.get(name, np.zeros(rows)) for name in names])
    batch = FeatureBatch(
        pipeline=spec.name,
        partition=0,
        window_start_ns=0,
        window_end_ns=10**18,
        seq=1,
        juris_mask=1,
        policy_version=1,
        device=np.arange(rows, dtype=np.uint32),
        metric=np.zeros(rows, dtype=np.uint16),
        names=names,
        matrix=matrix,
    )
    (scored,) = stage.think(features_of(batch)).scored
    decided = decided_of(scored, at_ms=0)
    plan = ActionPlanner(spec.act).plan(decision_batch(decided, [f"d{number}" for number in range(rows)]))
    assert plan.unmade == []
    commands: dict[str, list[ActionCommand]] = {}
    for command in plan.commands:
        assert command.model == scored.ref.sha256
        commands.setdefault(command.device, []).append(command)
    return scored, commands


def columns_of(names: tuple[str, ...], rows: np.ndarray) -> dict[str, np.ndarray]:
    return {name: rows[:, index] for index, name in enumerate(names)}
