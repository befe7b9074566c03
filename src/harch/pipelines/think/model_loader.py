"""Is this the model that was declared, may it be here, and how does it run?

Its hash and origin first; then on ONNX Runtime, or as a Python function.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct

from harch.base.errors import HarchError
from harch.base.rejection import Rejection
from harch.pipelines.think.onnx_file import check_is_whole
from harch.pipelines.think.sessions import Array, ModelSession, Tensors, TensorSpec
from harch.pipelines.think.settings import Device, ModelSettings, RuntimeKind, VersionSettings
from harch.sovereignty.gates import AccessRequest, before_load
from harch.sovereignty.geography import LegalSite
from harch.sovereignty.jurisdictions import Jurisdictions
from harch.sovereignty.tags import DataKind, DataObject, Tag, parse_tag

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
            raise _not_loaded(f"ONNX Runtime rejected the model: {' '.join(str(error).split())[:300]}") from error
        self.device = "cuda" if self._session.get_providers()[0] == _CUDA else "cpu"
        if device is Device.CUDA and self.device != "cuda":
            # ONNX Runtime falls back silently where its CUDA libraries do not load.
            raise HarchError(
                "E0504", "ONNX Runtime could not use the GPU", hint="install its CUDA libraries, or set `device: auto`"
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
            "E0504", "this ONNX Runtime has no CUDA", hint="pip install onnxruntime-gpu, or set `device: auto`"
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


# How does a Python function serve as a model? It takes an array of rows and features, and answers one row for each.
#
# The code that runs is exactly the bytes that were hashed: the file is executed as a module of its own, so a changed
# file
# is new code, whatever was imported before. Whoever writes a pipeline's specification decides what its workers execute.


INPUT, OUTPUT = "input", "output"


class PythonSession:
    """`module:function` on the CPU. Its output's type and width are what it answers to one row of zeros."""

    device = "cpu"

    def __init__(self, function: Callable[[Array], Array], *, columns: int) -> None:
        self._function = function
        self.inputs: tuple[TensorSpec, ...] = (TensorSpec(name=INPUT, dtype="float32", shape=(None, columns)),)
        try:
            probe = np.asarray(function(np.zeros((1, columns), dtype=np.float32)))
        except Exception as error:  # the function is the user's and may raise anything
            raise _not_imported(f"the function failed on a row of zeros: {type(error).__name__}: {error}") from error
        if probe.ndim not in (1, 2) or len(probe) != 1 or probe.dtype.kind not in "biuf":
            raise _not_imported(
                f"the function returns {probe.dtype} {list(probe.shape)} for one row, not a row of numbers"
            )
        self.outputs: tuple[TensorSpec, ...] = (
            TensorSpec(name=OUTPUT, dtype=str(probe.dtype), shape=(None, *probe.shape[1:])),
        )

    def run(self, tensors: Tensors) -> dict[str, Array]:
        return {OUTPUT: np.asarray(self._function(tensors[INPUT]))}


def source_of(reference: str) -> Path:
    """The file that holds the module of `module:function`. Packages around it are imported to find it."""
    module_name = reference.partition(":")[0]
    try:
        spec = find_spec(module_name)
    except (ImportError, ValueError, AttributeError) as error:
        raise _not_imported(f"module `{module_name}` is not found: {error}") from error
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        raise _not_imported(f"module `{module_name}` is not found as a Python file")
    return Path(spec.origin)


def function_of(reference: str, source: bytes, path: Path, sha256: str) -> Callable[[Array], Array]:
    """The function out of these bytes."""
    module_name, _, function_name = reference.partition(":")
    module = ModuleType(f"{module_name}__{sha256[:12]}")
    module.__file__ = str(path)
    module.__package__ = module_name.rpartition(".")[0]
    sys.modules[module.__name__] = module  # dataclasses and pickles look their module up by name
    try:
        exec(compile(source, str(path), "exec"), module.__dict__)  # noqa: S102 (running a named function is the feature)
    except Exception as error:  # a module may raise anything while it is executed
        del sys.modules[module.__name__]
        raise _not_imported(f"module `{module_name}` failed: {type(error).__name__}: {error}") from error
    function = getattr(module, function_name, None)
    if not callable(function):
        raise _not_imported(f"module `{module_name}` has no function `{function_name}`")
    return function  # type: ignore[no-any-return]


def _not_imported(message: str) -> HarchError:
    return HarchError(
        "E0503", message, hint="a model function takes float32 rows × features and returns one row for each"
    )


# Is this the model that was meant, and may it be here? Both are answered before anything of it is loaded.


MODEL_BYTES_MAX = 2 * 1024**3


class LoadedModel(Struct, frozen=True, kw_only=True):
    """A session with the hash of the bytes that it was made of."""

    session: ModelSession
    sha256: str


def load_rejections(reference: str, tag: Tag | None, site: LegalSite) -> tuple[Rejection, ...]:
    """Why a model with this tag must not be loaded at this site; a model that nobody has tagged is at home nowhere."""
    data = DataObject(id=reference, kind=DataKind.MODEL, name=reference, tenant="", tag=tag, hubs=(site.hub,))
    return before_load(AccessRequest(id=reference, reads=(data,)), site).rejections


def load_version(
    model: ModelSettings, version: VersionSettings, *, tag: Tag | None, site: LegalSite, folder: Path
) -> LoadedModel:
    """Jurisdiction, then hash, then the session. Raises E0907, E0502, E0503 or E0504; nothing is kept then."""
    reference = f"{model.name}@{version.version}"
    if reasons := load_rejections(reference, tag, site):
        raise HarchError(
            "E0907",
            f"{reference} may not be loaded at {site.hub}: {reasons[0].detail}",
            hint=reasons[0].nearest_fix,
            meta={"rejections": [reason.rule for reason in reasons]},
        )
    path = _path(version, folder)
    content = _read(path, reference)
    found = sha256(content).hexdigest()
    if version.sha256 is not None and found != version.sha256:
        raise HarchError(
            "E0502",
            f"{reference}: {path} has hash {found}, and {version.sha256} was declared",
            hint="deploy the intended file, or declare this one as a new version",
        )
    if version.runtime is RuntimeKind.ONNX:
        session: ModelSession = OnnxSession(content, device=model.device, threads=model.threads)
    else:
        function = function_of(version.callable or "", content, path, found)
        session = PythonSession(function, columns=len(model.inputs))
    return LoadedModel(session=session, sha256=found)


def _path(version: VersionSettings, folder: Path) -> Path:
    if version.runtime is RuntimeKind.ONNX:
        return folder / (version.path or "")
    return source_of(version.callable or "")


def _read(path: Path, reference: str) -> bytes:
    try:
        if path.stat().st_size > MODEL_BYTES_MAX:
            raise HarchError(
                "E0503", f"{reference}: {path} is larger than 2 GiB", hint="ONNX files must be smaller; split the model"
            )
        return path.read_bytes()
    except OSError as error:
        raise HarchError(
            "E0503", f"{reference}: {path} cannot be read: {error.strerror}", hint="check `path` and its permissions"
        ) from error


def declared_tags(
    data: Tag | None, jurisdictions: Jurisdictions
) -> Callable[[ModelSettings, VersionSettings], Tag | None]:
    """The tag that the settings give a version, else that of its model, else `data`: a model trained on data is bound
    like the data. A tag that cannot be read raises, as `parse_tag` does."""

    def tag_of(model: ModelSettings, version: VersionSettings) -> Tag | None:
        raw = version.tag if version.tag is not None else model.tag
        return data if raw is None else parse_tag(raw, jurisdictions, where=f"{model.name}@{version.version}")

    return tag_of
