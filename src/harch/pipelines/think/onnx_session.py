"""How does an ONNX model run? On ONNX Runtime, with one thread unless told otherwise, on the CPU or a CUDA device."""

from __future__ import annotations

import io
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Any

from harch.base.errors import HarchError
from harch.pipelines.think.onnx_file import check_is_whole
from harch.pipelines.think.sessions import Array, Tensors, TensorSpec
from harch.pipelines.think.settings import Device

if TYPE_CHECKING:
    import onnxruntime

_TYPES = {
    "tensor(bool)": "bool",
    "tensor(double)": "float64",
    "tensor(float)": "float32",
    "tensor(float16)": "float16",
    **{f"tensor({kind}{bits})": f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)},
}
_CUDA = "CUDAExecutionProvider"
_CPU = "CPUExecutionProvider"
# Without rounding to TF32: a model decides the same on a GPU as on the CPU where it was tried.
_OPTIONS: dict[str, dict[str, str]] = {_CUDA: {"use_tf32": "0"}, _CPU: {}}


class OnnxSession:
    """One model in ONNX Runtime. Weights must be inside the bytes: what lies beside them is not covered by a hash."""

    def __init__(self, model: bytes, *, device: Device, threads: int) -> None:
        check_is_whole(model)
        ort = _runtime()
        providers = _providers(device, ort.get_available_providers())
        if _CUDA in providers:
            _find_cuda_libraries(ort)
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
        options.log_severity_level = 3  # errors only: warnings of a model are of no use to an operator
        try:
            self._session = ort.InferenceSession(
                model, options, providers=[(name, _OPTIONS[name]) for name in providers]
            )
        except Exception as error:  # the library's own exception types are not public
            raise _not_loaded(f"ONNX Runtime refuses the model: {' '.join(str(error).split())[:300]}") from error
        self.device = "cuda" if self._session.get_providers()[0] == _CUDA else "cpu"
        if device is Device.CUDA and self.device != "cuda":
            # ONNX Runtime falls back silently where its CUDA libraries do not load.
            raise HarchError(
                "E0504", "ONNX Runtime could not use the GPU", hint="install its CUDA libraries, or say `device: auto`"
            )
        self.inputs = tuple(_spec(node) for node in self._session.get_inputs())
        self.outputs = tuple(_spec(node) for node in self._session.get_outputs())
        self._output_names = [spec.name for spec in self.outputs]

    def run(self, tensors: Tensors) -> dict[str, Array]:
        answers = self._session.run(self._output_names, tensors)
        return dict(zip(self._output_names, answers, strict=True))


def _runtime() -> Any:
    try:
        import onnxruntime
    except ImportError as error:
        raise HarchError(
            "E0504", "ONNX Runtime is not installed", hint="pip install 'harch[inference]', or use runtime `python`"
        ) from error
    return onnxruntime


def _find_cuda_libraries(ort: Any) -> None:
    """Loads CUDA's libraries from the packages that pip brings; where they stand in the system, nothing is needed."""
    preload = getattr(ort, "preload_dlls", None)
    if preload is not None:
        with redirect_stdout(io.StringIO()):  # it prints what it does not find
            preload()


def _providers(device: Device, available: list[str]) -> list[str]:
    if device is Device.CUDA and _CUDA not in available:
        raise HarchError(
            "E0504", "this ONNX Runtime has no CUDA", hint="pip install onnxruntime-gpu, or say `device: auto`"
        )
    return [_CUDA, _CPU] if device is not Device.CPU and _CUDA in available else [_CPU]


def _spec(node: onnxruntime.NodeArg) -> TensorSpec:
    if node.type not in _TYPES:
        raise _not_loaded(f"`{node.name}` is {node.type}; only tensors of numbers and booleans are supported")
    shape = tuple(size if isinstance(size, int) else None for size in node.shape)
    if not shape or shape[0] is not None:
        raise _not_loaded(f"`{node.name}` has no free first dimension, so rows cannot be batched")
    return TensorSpec(name=node.name, dtype=_TYPES[node.type], shape=shape)


def _not_loaded(message: str) -> HarchError:
    return HarchError("E0503", message, hint="export the model with a free first dimension and weights inside the file")
