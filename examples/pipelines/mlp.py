"""How are the models of the examples trained? A small neural network in plain NumPy, written to a file as ONNX.

Enough for a few thousand parameters, and nothing to install but NumPy and onnx. For anything larger use the framework
that you know; THINK only asks for an ONNX file.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto, checker, helper, numpy_helper

Array = np.ndarray
# Gradient of the loss with respect to the prediction, for predictions and targets of shape (rows, outputs).
Gradient = Callable[[Array, Array], Array]


@dataclass
class Mlp:
    """Standardise, then layers of ReLU, the last one linear; predictions come back in the units of the targets."""

    mean: Array
    scale: Array
    weights: list[Array]
    biases: list[Array]
    target_mean: Array
    target_scale: Array

    def predict(self, inputs: Array) -> Array:
        hidden = (inputs - self.mean) / self.scale
        for weight, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
            hidden = np.maximum(hidden @ weight + bias, 0)
        return (hidden @ self.weights[-1] + self.biases[-1]) * self.target_scale + self.target_mean


def squared(prediction: Array, target: Array) -> Array:
    return prediction - target


def quantile(share: float) -> Gradient:
    """Pinball loss: the prediction is exceeded in `1 - share` of the cases."""
    return lambda prediction, target: np.where(target > prediction, -share, 1 - share)


def logistic(prediction: Array, target: Array) -> Array:
    """Targets 0 or 1, predictions are log-odds."""
    return 1 / (1 + np.exp(-np.clip(prediction, -30, 30))) - target


def train(
    inputs: Array,
    targets: Array,
    gradient: Gradient,
    *,
    hidden: tuple[int, ...] = (32, 16),
    epochs: int = 30,
    rows: int = 256,
    rate: float = 3e-3,
    seed: int = 0,
    weights_of_rows: Array | None = None,
) -> Mlp:
    """Adam on batches in random order; the rate falls to a tenth along a cosine."""
    rng = np.random.default_rng(seed)
    mean, scale = inputs.mean(axis=0), inputs.std(axis=0) + 1e-6
    is_logistic = gradient is logistic
    target_mean = np.zeros(targets.shape[1]) if is_logistic else targets.mean(axis=0)
    target_scale = np.ones(targets.shape[1]) if is_logistic else targets.std(axis=0) + 1e-6
    x, y = (inputs - mean) / scale, (targets - target_mean) / target_scale
    sizes = (x.shape[1], *hidden, y.shape[1])
    parameters = []
    for wide, narrow in pairwise(sizes):
        parameters += [rng.normal(size=(wide, narrow)) * np.sqrt(2 / wide), np.zeros(narrow)]
    first = [np.zeros_like(parameter) for parameter in parameters]
    second = [np.zeros_like(parameter) for parameter in parameters]
    step, steps = 0, epochs * max(1, len(x) // rows)
    for _ in range(epochs):
        order = rng.permutation(len(x))
        for at in range(0, len(x) - rows + 1, rows):
            chosen = order[at : at + rows]
            weight = None if weights_of_rows is None else weights_of_rows[chosen]
            slopes = _slopes(parameters, x[chosen], y[chosen], gradient, weight)
            step += 1
            now = rate * (0.1 + 0.45 * (1 + np.cos(np.pi * step / steps)))
            for index, slope in enumerate(slopes):
                first[index] = 0.9 * first[index] + 0.1 * slope
                second[index] = 0.999 * second[index] + 0.001 * slope**2
                unbiased = first[index] / (1 - 0.9**step), second[index] / (1 - 0.999**step)
                parameters[index] = parameters[index] - now * unbiased[0] / (np.sqrt(unbiased[1]) + 1e-8)
    return Mlp(mean, scale, parameters[::2], parameters[1::2], target_mean, target_scale)


def _slopes(parameters: list[Array], x: Array, y: Array, gradient: Gradient, weight: Array | None) -> list[Array]:
    layers = [x]
    for index in range(0, len(parameters) - 2, 2):
        layers.append(np.maximum(layers[-1] @ parameters[index] + parameters[index + 1], 0))
    error = gradient(layers[-1] @ parameters[-2] + parameters[-1], y) / len(x)
    if weight is not None:
        error = error * weight[:, None]
    slopes: list[Array] = []
    for index in range(len(parameters) - 2, -1, -2):
        layer = layers[index // 2]
        slopes[:0] = [layer.T @ error, error.sum(axis=0)]
        error = (error @ parameters[index].T) * (layer > 0)
    return slopes


@dataclass
class Graph:
    """An ONNX graph while it is written: `op` adds a step and answers the name of its result."""

    nodes: list[NodeProto] = field(default_factory=list)
    constants: list[TensorProto] = field(default_factory=list)

    def constant(self, value: Any) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value, dtype=np.float32), name))
        return name

    def op(self, kind: str, *inputs: str, name: str = "", **attributes: Any) -> str:
        result = name or f"{kind.lower()}{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [result], **attributes))
        return result

    def column(self, matrix: str, index: int) -> str:
        """One column as (rows, 1)."""
        place = f"i{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.array([index], dtype=np.int64), place))
        return self.op("Gather", matrix, place, axis=1)

    def mlp(self, model: Mlp, matrix: str) -> str:
        value = self.op("Div", self.op("Sub", matrix, self.constant(model.mean)), self.constant(model.scale))
        for layer, (weight, bias) in enumerate(zip(model.weights, model.biases, strict=True)):
            value = self.op("Gemm", value, self.constant(weight), self.constant(bias))
            if layer < len(model.weights) - 1:
                value = self.op("Relu", value)
        scaled = self.op("Mul", value, self.constant(model.target_scale))
        return self.op("Add", scaled, self.constant(model.target_mean))


def save(graph: Graph, path: Path, *, inputs: int, outputs: tuple[str, ...]) -> str:
    """Writes the graph from `features` to the named outputs of one column each; answers the file's SHA-256."""
    made = helper.make_graph(
        graph.nodes,
        path.stem,
        [helper.make_tensor_value_info("features", TensorProto.FLOAT, ["rows", inputs])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", 1]) for name in outputs],
        graph.constants,
    )
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    checker.check_model(model)
    content = model.SerializeToString()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return sha256(content).hexdigest()


def write_pipeline(template: Path, folder: Path, digest: str) -> Path:
    """The pipeline's file beside the model, with the hash of what was trained in the place of the template's."""
    text, count = re.subn(r"(sha256: )[\"']?[0-9a-f]{64}[\"']?", rf'\g<1>"{digest}"', template.read_text("utf-8"))
    if count != 1:
        raise ValueError(f"{template} names {count} hashes, not one")
    path = folder / template.name
    path.write_text(text, "utf-8")
    return path
