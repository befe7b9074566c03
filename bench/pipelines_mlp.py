"""Which model do the THINK benchmarks run? A multilayer perceptron with fixed random weights, written as ONNX."""

from __future__ import annotations

from hashlib import sha256
from itertools import pairwise
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from harch.pipelines.think.settings import ModelRole, ModelSettings, ThinkSettings, VersionSettings
from harch.pipelines.think.stage import ThinkStage
from harch.sovereignty.geography import LegalSite
from harch.sovereignty.tags import Classification, Tag

SMALL = (8, 32, 16, 1)
ANYWHERE_IN_MOROCCO = Tag(
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


def mlp_onnx(sizes: tuple[int, ...] = SMALL, seed: int = 42) -> bytes:
    rng = np.random.default_rng(seed)
    nodes, weights, value = [], [], "x"
    for layer, (wide, narrow) in enumerate(pairwise(sizes)):
        weights.append(numpy_helper.from_array((rng.normal(size=(wide, narrow)) / wide**0.5).astype("f4"), f"w{layer}"))
        weights.append(numpy_helper.from_array(np.zeros(narrow, "f4"), f"b{layer}"))
        last = layer == len(sizes) - 2
        out = "y" if last else f"h{layer}"
        nodes.append(helper.make_node("Gemm", [value, f"w{layer}", f"b{layer}"], [out]))
        if not last:
            nodes.append(helper.make_node("Relu", [out], [f"r{layer}"]))
            value = f"r{layer}"
    graph = helper.make_graph(
        nodes,
        "mlp",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", sizes[0]])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", sizes[-1]])],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return bytes(model.SerializeToString())


def write_version(folder: Path, version: str, seed: int, role: ModelRole = ModelRole.ACTIVE) -> VersionSettings:
    content = mlp_onnx(seed=seed)
    path = f"mlp-{version}.onnx"
    (folder / path).write_bytes(content)
    return VersionSettings(version=version, path=path, sha256=sha256(content).hexdigest(), role=role)


def mlp_stage(folder: Path) -> ThinkStage:
    model = ModelSettings(
        name="mlp",
        inputs=tuple(f"f{index}" for index in range(SMALL[0])),
        outputs=("y",),
        versions=(write_version(folder, "1", 1),),
    )
    stage = ThinkStage(
        ThinkSettings(models=(model,)),
        site=LegalSite(hub="dakhla", country="MA"),
        tag_of=lambda model, version: ANYWHERE_IN_MOROCCO,
        folder=folder,
    )
    stage.load()
    return stage
