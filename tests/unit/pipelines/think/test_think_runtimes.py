"""Is exactly the declared model loaded, only where it may be, and checked for what goes in and out?"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from onnx import TensorProto, helper, numpy_helper
from think_models import DAKAR, DAKHLA, MOROCCO, linear_onnx, settings_of, write_linear

from harch.base.errors import HarchError
from harch.pipelines.think.model_loader import LoadedModel, OnnxSession, declared_tags, load_version
from harch.pipelines.think.models import ServedModel
from harch.pipelines.think.onnx_file import check_is_whole
from harch.pipelines.think.rollout import VersionState
from harch.pipelines.think.sessions import Features, check_inputs
from harch.pipelines.think.settings import Device, ModelRole, ModelSettings, RuntimeKind, ThinkSettings, VersionSettings
from harch.pipelines.think.stage import ThinkStage
from harch.sovereignty.geography import LegalSite
from harch.sovereignty.jurisdiction_file import shipped_jurisdictions
from harch.sovereignty.tags import Tag


def load(
    folder: Path, version: VersionSettings, *, tag: Tag | None = MOROCCO, site: LegalSite = DAKHLA, **fields: object
) -> LoadedModel:
    return load_version(replace(settings_of(), **fields), version, tag=tag, site=site, folder=folder)


def code_of(caught: pytest.ExceptionInfo[HarchError]) -> str:
    return caught.value.code


def test_an_onnx_model_runs_with_one_thread_on_rows_of_any_number(tmp_path: Path) -> None:
    loaded = load(tmp_path, write_linear(tmp_path, "1", [2.0, 3.0], 1.0))
    for rows in (1, 7, 500):
        matrix = np.random.default_rng(rows).normal(size=(rows, 2)).astype(np.float32)
        answer = loaded.session.run({"x": matrix})["y"]
        np.testing.assert_allclose(answer[:, 0], matrix @ [2.0, 3.0] + 1.0, rtol=1e-4, atol=1e-5)
    assert loaded.session.device == "cpu"
    assert loaded.session._session.get_session_options().intra_op_num_threads == 1  # type: ignore[attr-defined]


def test_a_file_that_is_not_the_declared_one_is_not_loaded(tmp_path: Path) -> None:
    version = write_linear(tmp_path, "1", [2.0])
    (tmp_path / "linear-1.onnx").write_bytes(linear_onnx([3.0]))
    with pytest.raises(HarchError) as caught:
        load(tmp_path, version)
    assert code_of(caught) == "E0502"
    assert str(version.sha256) in caught.value.message


@pytest.mark.parametrize(
    ("tag", "site", "rule"),
    [(MOROCCO, DAKAR, "process_in"), (None, DAKHLA, "tag"), (MOROCCO, LegalSite(hub="x", country=None), "process_in")],
)
def test_a_model_is_not_even_read_where_it_may_not_be(
    tmp_path: Path, tag: Tag | None, site: LegalSite, rule: str
) -> None:
    missing = VersionSettings(version="1", path="nobody-reads-this.onnx", sha256="0" * 64)
    with pytest.raises(HarchError) as caught:
        load(tmp_path, missing, tag=tag, site=site)
    assert code_of(caught) == "E0907"
    assert rule in caught.value.meta["rejections"]  # type: ignore[operator]


def test_a_law_that_changes_takes_the_model_out_of_memory_and_pauses_it(tmp_path: Path) -> None:
    settings = replace(settings_of(), versions=(write_linear(tmp_path, "1", [2.0]),))
    stage = ThinkStage(
        ThinkSettings(models=(settings,)), site=DAKHLA, tag_of=lambda model, version: MOROCCO, folder=tmp_path
    )
    stage.load()
    assert stage.audit(lambda model, version: MOROCCO) == []
    senegal = replace(MOROCCO, process_in=("SN",), rest_in=("SN",), transit_in=())
    ((name, version, reasons),) = stage.audit(lambda model, version: senegal)
    assert (name, version, reasons[0].rule) == ("m", "1", "process_in")
    assert stage.models["m"].route.warm == {}
    thought = stage.think(Features(columns={"x": np.ones(3)}, devices=np.arange(3)))
    assert [(len(item.rows), item.reason.rule) for item in thought.dropped] == [(3, "paused")]


@pytest.mark.parametrize("content", [b"", b"not a model", linear_onnx([1.0])[:50]])
def test_what_is_no_model_is_refused_in_words(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "m.onnx").write_bytes(content)
    with pytest.raises(HarchError) as caught:
        load(tmp_path, VersionSettings(version="1", path="m.onnx", sha256=sha256(content).hexdigest()))
    assert code_of(caught) == "E0503"
    assert caught.value.hint


def outside(model: onnx.ModelProto) -> bytes:
    """The model with its weights said to be in a file of the current folder, which ONNX Runtime would read."""
    for tensor in model.graph.initializer:
        _move_out(tensor)
    return bytes(model.SerializeToString())


def _move_out(tensor: onnx.TensorProto) -> None:
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="weights.bin")


def inside_a_branch(model: onnx.ModelProto) -> bytes:
    """The same, hidden in the branch of a condition."""
    moved = numpy_helper.from_array(np.ones(1, np.float32), "w")
    _move_out(moved)
    constant = helper.make_node("Constant", [], ["c"], value=moved)
    out = helper.make_tensor_value_info("c", TensorProto.FLOAT, [1])
    branch = helper.make_graph([constant], "branch", [], [out])
    model.graph.node.append(helper.make_node("If", ["x"], ["z"], then_branch=branch, else_branch=branch))
    return bytes(model.SerializeToString())


@pytest.mark.parametrize("hide", [outside, inside_a_branch])
def test_weights_that_no_hash_covers_are_refused(
    hide: Callable[[onnx.ModelProto], bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "weights.bin").write_bytes(np.ones(64, np.float32).tobytes())
    content = hide(onnx.load_from_string(linear_onnx([1.0])))
    with pytest.raises(HarchError, match="outside its file"):
        OnnxSession(content, device=Device.CPU, threads=1)


@settings(deadline=None)
@given(st.binary(max_size=200), st.integers(0, 400), st.integers(0, 255))
def test_noise_is_refused_or_harmless_but_never_a_crash(noise: bytes, place: int, byte: int) -> None:
    broken = bytearray(linear_onnx([1.0, 2.0]))
    broken[place % len(broken)] = byte
    for content in (noise, bytes(broken), bytes(broken)[:place]):
        with contextlib.suppress(HarchError):
            check_is_whole(content)
    check_is_whole(linear_onnx([1.0]))


def test_a_gpu_that_is_not_there_is_an_error_and_not_a_slow_answer() -> None:
    import onnxruntime

    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        assert OnnxSession(linear_onnx([1.0]), device=Device.CUDA, threads=1).device == "cuda"
    else:
        with pytest.raises(HarchError) as caught:
            OnnxSession(linear_onnx([1.0]), device=Device.CUDA, threads=1)
        assert code_of(caught) == "E0504"


def test_without_onnx_runtime_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(HarchError, match="not installed") as caught:
        OnnxSession(linear_onnx([1.0]), device=Device.AUTO, threads=1)
    assert "harch[inference]" in caught.value.hint


@pytest.mark.parametrize(("inputs", "outputs"), [(("a", "b"), ("y",)), (("a",), ("y", "z"))])
def test_a_model_that_does_not_fit_its_columns_never_gets_a_role(
    inputs: tuple[str, ...], outputs: tuple[str, ...]
) -> None:
    model = ServedModel(replace(settings_of(), inputs=inputs, outputs=outputs), lambda name, change: None)
    session = OnnxSession(linear_onnx([1.0]), device=Device.CPU, threads=1)
    with pytest.raises(HarchError, match="declared") as caught:
        model.add("1", LoadedModel(session=session, sha256="0" * 64))
    assert code_of(caught) == "E0503"
    assert model.rollout.states == {}


def test_a_model_of_doubles_is_fed_doubles() -> None:
    model = ServedModel(settings_of(), lambda name, change: None)
    session = OnnxSession(linear_onnx([2.0], dtype=TensorProto.DOUBLE), device=Device.CPU, threads=1)
    model.add("1", LoadedModel(session=session, sha256="0" * 64))
    model.promote("1", VersionState.ACTIVE)
    assert session.inputs[0].dtype == "float64"


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ({}, "`x` is missing"),
        ({"x": np.ones((1, 1), "f4"), "z": np.ones((1, 1), "f4")}, "no input `z`"),
        ({"x": np.ones((1, 1))}, "float64"),
        ({"x": np.ones((1, 2), "f4")}, "shape"),
        ({"x": np.ones(3, "f4")}, "shape"),
        ({"x": np.ones((0, 1), "f4")}, "0 rows"),
        ({"x": np.ones((11, 1), "f4")}, "1 to 10"),
        ({"x": np.float32(1.0).reshape(())}, "0 rows"),
    ],
)
def test_inputs_are_exactly_what_the_model_wants(tensors: dict[str, np.ndarray], words: str) -> None:
    session = OnnxSession(linear_onnx([1.0]), device=Device.CPU, threads=1)
    with pytest.raises(HarchError, match="E0505") as caught:
        check_inputs(session.inputs, tensors, rows_max=10)
    assert words in caught.value.message


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Python file on the path, as a worker would find it."""
    monkeypatch.syspath_prepend(str(tmp_path))
    path = tmp_path / "harch_test_rules.py"
    path.write_text("def double(rows):\n    return rows[:, 0] * 2\n")
    return path


def callable_version(reference: str, **fields: object) -> VersionSettings:
    return VersionSettings(version="1", runtime=RuntimeKind.PYTHON, callable=reference, **fields)  # type: ignore[arg-type]


def test_a_python_function_is_a_model(module: Path) -> None:
    loaded = load(module.parent, callable_version("harch_test_rules:double"))
    assert loaded.sha256 == sha256(module.read_bytes()).hexdigest()
    assert loaded.session.run({"input": np.array([[3.0]], "f4")})["output"].tolist() == [6.0]


def test_a_changed_file_is_new_code_though_the_old_one_was_imported(module: Path) -> None:
    old = load(module.parent, callable_version("harch_test_rules:double"))
    module.write_text("def double(rows):\n    return rows[:, 0] * 20\n")
    new = load(module.parent, callable_version("harch_test_rules:double"))
    one = {"input": np.array([[3.0]], "f4")}
    assert old.session.run(one)["output"].tolist() == [6.0]
    assert new.session.run(one)["output"].tolist() == [60.0]
    assert old.sha256 != new.sha256


def test_a_python_file_that_is_not_the_declared_one_is_not_executed(module: Path) -> None:
    module.write_text("raise SystemError('executed')\n")
    with pytest.raises(HarchError) as caught:
        load(module.parent, callable_version("harch_test_rules:double", sha256="0" * 64))
    assert code_of(caught) == "E0502"


@pytest.mark.parametrize(
    ("text", "reference", "words"),
    [
        ("def f(rows):\n    return 1 / 0\n", "harch_test_rules:f", "ZeroDivisionError"),
        ("def f(rows):\n    return 'x'\n", "harch_test_rules:f", "not a row of numbers"),
        ("raise KeyError('k')\n", "harch_test_rules:f", "KeyError"),
        ("f = 3\n", "harch_test_rules:f", "no function `f`"),
        ("", "harch_test_no_such:f", "not found"),
        ("", "sys:exit", "not found as a Python file"),
    ],
)
def test_a_function_that_cannot_serve_is_refused_in_words(module: Path, text: str, reference: str, words: str) -> None:
    module.write_text(text)
    with pytest.raises(HarchError) as caught:
        load(module.parent, callable_version(reference))
    assert code_of(caught) == "E0503"
    assert words in caught.value.message


def test_a_pipeline_starts_with_every_version_in_its_declared_role(tmp_path: Path) -> None:
    versions = (
        write_linear(tmp_path, "3", [3.0], role=ModelRole.SHADOW),
        write_linear(tmp_path, "2", [2.0], role=ModelRole.CANARY),
        write_linear(tmp_path, "1", [1.0]),
        write_linear(tmp_path, "4", [4.0], role=ModelRole.LOADED),
    )
    settings = ModelSettings(name="m", inputs=("x",), outputs=("y",), versions=versions)
    stage = ThinkStage(
        ThinkSettings(models=(settings,)), site=DAKHLA, tag_of=lambda model, version: MOROCCO, folder=tmp_path
    )
    stage.load()
    states = {version: str(state) for version, state in stage.models["m"].rollout.states.items()}
    assert states == {"1": "active", "2": "canary", "3": "shadow", "4": "loaded"}


def test_a_version_is_bound_by_its_own_tag_else_by_its_models_else_by_that_of_the_data() -> None:
    tag_of = declared_tags(MOROCCO, shipped_jurisdictions())
    raw = {"process_in": ["SN"], "rest_in": ["SN"]}
    plain = VersionSettings(version="1", path="m.onnx", sha256="0" * 64)
    model = settings_of()
    assert tag_of(model, plain) == MOROCCO
    from_model = tag_of(replace(model, tag=raw), plain)
    assert from_model is not None
    assert from_model.process_in == ("SN",)
    own = tag_of(replace(model, tag=raw), replace(plain, tag={"process_in": ["CI"], "rest_in": ["CI"]}))
    assert own is not None
    assert own.process_in == ("CI",)
