"""Small models and stages for the tests of THINK: linear ONNX models, sessions that misbehave, tags of Morocco."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from harch.pipelines.think.model_loader import LoadedModel
from harch.pipelines.think.models import ServedModel
from harch.pipelines.think.rollout import VersionState
from harch.pipelines.think.sessions import Array, Tensors, TensorSpec
from harch.pipelines.think.settings import (
    BatchingSettings,
    ModelSettings,
    RollbackRules,
    ThinkSettings,
    VersionSettings,
)
from harch.pipelines.think.stage import ThinkStage
from harch.sovereignty.geography import LegalSite
from harch.sovereignty.tags import Classification, Tag

MOROCCO = Tag(
    process_in=("MA",),
    rest_in=("MA",),
    transit_in=(),
    may_cross_borders=False,
    frameworks=(),
    classification=Classification.INTERNAL,
    encrypt_at_rest=False,
    encrypt_in_transit=False,
    key_in=(),
)
DAKHLA = LegalSite(hub="dakhla", country="MA")
DAKAR = LegalSite(hub="dakar", country="SN")


def linear_onnx(weights: list[float], bias: float = 0.0, *, dtype: int = TensorProto.FLOAT) -> bytes:
    """y = x @ weights + bias, with any number of rows."""
    kind = helper.tensor_dtype_to_np_dtype(dtype)
    graph = helper.make_graph(
        [helper.make_node("Gemm", ["x", "w", "b"], ["y"])],
        "linear",
        [helper.make_tensor_value_info("x", dtype, ["rows", len(weights)])],
        [helper.make_tensor_value_info("y", dtype, ["rows", 1])],
        [
            numpy_helper.from_array(np.array(weights, dtype=kind).reshape(-1, 1), "w"),
            numpy_helper.from_array(np.array([bias], dtype=kind), "b"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model)
    return model.SerializeToString()


def write_linear(
    folder: Path, version: str, weights: list[float], bias: float = 0.0, **fields: object
) -> VersionSettings:
    content = linear_onnx(weights, bias)
    name = f"linear-{version}.onnx"
    (folder / name).write_bytes(content)
    return VersionSettings(version=version, path=name, sha256=sha256(content).hexdigest(), **fields)  # type: ignore[arg-type]


class FunctionSession:
    """A session out of a function of the matrix; it may raise, answer NaN or the wrong shape."""

    device = "cpu"

    def __init__(self, function: Callable[[Array], Array], columns: int = 1) -> None:
        self.function = function
        self.inputs: tuple[TensorSpec, ...] = (TensorSpec(name="x", dtype="float32", shape=(None, columns)),)
        self.outputs: tuple[TensorSpec, ...] = (TensorSpec(name="y", dtype="float32", shape=(None,)),)
        self.rows_seen: list[int] = []

    def run(self, tensors: Tensors) -> dict[str, Array]:
        matrix = tensors["x"]
        if matrix.any():  # not the warm-up
            self.rows_seen.append(len(matrix))
            return {"y": self.function(matrix)}
        return {"y": np.zeros(len(matrix), dtype=np.float32)}


def times(factor: float) -> FunctionSession:
    return FunctionSession(lambda matrix: matrix[:, 0] * np.float32(factor))


def settings_of(
    *,
    name: str = "m",
    batching: BatchingSettings | None = None,
    rollback: RollbackRules | None = None,
    canary_percent: float = 5.0,
) -> ModelSettings:
    return ModelSettings(
        name=name,
        inputs=("x",),
        outputs=("y",),
        versions=(VersionSettings(version="1", path="unused", sha256="0" * 64),),
        batching=batching or BatchingSettings(),
        rollback=rollback or RollbackRules(),
        canary_percent=canary_percent,
    )


def stage_of(settings: ModelSettings, folder: Path = Path()) -> ThinkStage:
    """A stage whose sessions the test adds itself."""
    return ThinkStage(
        ThinkSettings(models=(settings,)), site=DAKHLA, tag_of=lambda model, version: MOROCCO, folder=folder
    )


def add(model: ServedModel, version: str, session: FunctionSession, to: VersionState | None = None) -> None:
    model.add(version, LoadedModel(session=session, sha256=sha256(version.encode()).hexdigest()))
    if to is not None:
        model.promote(version, to)
