"""Does a public client of the Open Inference Protocol get right answers, and a hostile one only errors?"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.http as triton
import uvicorn
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from think_models import DAKHLA, MOROCCO, FunctionSession, add, settings_of, stage_of, times, write_linear
from tritonclient.utils import InferenceServerException

from harch.base.clock import SystemClock
from harch.base.errors import HarchError
from harch.pipelines.think.inference_api import inference_app, read_call, read_infer
from harch.pipelines.think.rollout import VersionState, canary_rows
from harch.pipelines.think.runner import ThinkRunner
from harch.pipelines.think.settings import BatchingSettings, ModelRole, ThinkSettings
from harch.pipelines.think.stage import ThinkStage
from harch.pipelines.think.tensor_format import DATATYPES


def serving_stage(folder: Path, **fields: Any) -> ThinkStage:
    versions = (
        write_linear(folder, "1", [2.0, 3.0], 1.0),
        write_linear(folder, "2", [20.0, 30.0], 10.0, role=ModelRole.LOADED),
    )
    settings = replace(settings_of(**fields), inputs=("a", "b"), versions=versions)
    stage = ThinkStage(
        ThinkSettings(models=(settings,)), site=DAKHLA, tag_of=lambda model, version: MOROCCO, folder=folder
    )
    stage.load()
    return stage


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real server on a free port of loopback, in a thread, because the public client blocks."""
    ready, holder = threading.Event(), {}

    async def main() -> None:
        service = ThinkRunner(serving_stage(tmp_path_factory.mktemp("models")), SystemClock())
        config = uvicorn.Config(
            inference_app(service, program_version="9.9", body_bytes_max=100_000),
            host="127.0.0.1",
            port=0,
            log_level="error",
            lifespan="off",
        )
        server = uvicorn.Server(config)
        holder["server"] = server
        driver = asyncio.create_task(service.run())
        serving = asyncio.create_task(server.serve())
        while not server.started:
            await asyncio.sleep(0.01)
        holder["port"] = server.servers[0].sockets[0].getsockname()[1]
        ready.set()
        await serving
        service.stop()
        await driver

    thread = threading.Thread(target=asyncio.run, args=(main(),))
    thread.start()
    assert ready.wait(60)
    yield f"127.0.0.1:{holder['port']}"
    holder["server"].should_exit = True
    thread.join(timeout=60)
    assert not thread.is_alive()


@pytest.fixture
def client(address: str) -> Iterator[triton.InferenceServerClient]:
    made = triton.InferenceServerClient(address)
    yield made
    made.close()


ROWS = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], dtype=np.float32)
WANTED = (ROWS @ [2.0, 3.0] + 1.0).reshape(-1, 1)


def tensor(binary: bool, rows: np.ndarray = ROWS) -> triton.InferInput:
    made = triton.InferInput("x", list(rows.shape), "FP32")
    made.set_data_from_numpy(rows, binary_data=binary)
    return made


def test_the_public_client_sees_a_live_and_ready_server(client: triton.InferenceServerClient) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("m")
    assert client.is_model_ready("m", "2")
    assert not client.is_model_ready("m", "7")
    assert not client.is_model_ready("no-such-model")
    assert client.get_server_metadata() == {"name": "harch", "version": "9.9", "extensions": ["binary_tensor_data"]}


def test_the_public_client_reads_the_metadata(client: triton.InferenceServerClient) -> None:
    found = client.get_model_metadata("m")
    assert found["versions"] == ["1", "2"]
    assert found["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 2]}]
    assert found["outputs"] == [{"name": "y", "datatype": "FP32", "shape": [-1, 1]}]


@pytest.mark.parametrize("binary_in", [True, False])
@pytest.mark.parametrize("binary_out", [True, False, None])
def test_the_public_client_gets_right_answers(
    client: triton.InferenceServerClient, binary_in: bool, binary_out: bool | None
) -> None:
    wishes = None if binary_out is None else [triton.InferRequestedOutput("y", binary_data=binary_out)]
    found = client.infer("m", [tensor(binary_in)], outputs=wishes, request_id="42")
    np.testing.assert_allclose(found.as_numpy("y"), WANTED, rtol=1e-6)
    response = found.get_response()
    assert (response["model_name"], response["model_version"], response["id"]) == ("m", "1", "42")
    assert len(response["parameters"]["sha256"]) == 64


def test_the_public_client_may_ask_for_a_version(client: triton.InferenceServerClient) -> None:
    found = client.infer("m", [tensor(True)], model_version="2", priority=1, timeout=5_000_000)
    np.testing.assert_allclose(found.as_numpy("y"), 10 * WANTED, rtol=1e-6)
    assert found.get_response()["model_version"] == "2"


def test_the_public_client_understands_the_errors(client: triton.InferenceServerClient) -> None:
    with pytest.raises(InferenceServerException, match="E0501") as caught:
        client.infer("nobody", [tensor(True)])
    assert caught.value.status() == "404"
    with pytest.raises(InferenceServerException, match="shape"):
        client.infer("m", [tensor(True, np.ones((1, 3), np.float32))])
    with pytest.raises(InferenceServerException, match="no output `z`"):
        client.infer("m", [tensor(True)], outputs=[triton.InferRequestedOutput("z")])
    with pytest.raises(InferenceServerException, match="not supported"):
        client.infer("m", [tensor(True)], request_compression_algorithm="gzip")
    with pytest.raises(InferenceServerException, match="E0204") as caught:
        client.infer("m", [tensor(True, np.ones((20_000, 2), np.float32))])
    assert caught.value.status() == "413"


def test_requests_of_many_clients_share_batches(tmp_path: Path) -> None:
    async def main() -> ThinkStage:
        batching = BatchingSettings(preferred_rows=(64,), delay_ms_max=50)
        service = ThinkRunner(serving_stage(tmp_path, batching=batching), SystemClock())
        async with asyncio.TaskGroup() as group:
            driver = group.create_task(service.run())
            transport = httpx.ASGITransport(inference_app(service))
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:

                async def score_request(number: int) -> None:
                    inputs = [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [number, 1]}]
                    reply = await http.post("/v2/models/m/infer", json={"inputs": inputs})
                    assert reply.json()["outputs"][0]["data"] == [2.0 * number + 4.0]

                async with asyncio.TaskGroup() as asks:
                    for number in range(64):
                        asks.create_task(score_request(number))
            service.stop()
            await driver
        return service.stage

    total = asyncio.run(main()).models["m"].records()[0][1].watch.total
    assert total.rows == 64
    assert total.batches < 64, "each request had a run of its own"


@pytest.mark.parametrize(("run_ms", "inline"), [(0.1, True), (50.0, False)])
async def test_quick_models_run_in_the_loop_and_slow_ones_beside_it(run_ms: float, inline: bool) -> None:
    ticks = iter(range(0, 10**15, round(run_ms * 1e6)))
    ran_in: list[int] = []

    def remember(matrix: np.ndarray) -> np.ndarray:
        ran_in.append(threading.get_ident())
        return matrix[:, 0]

    stage = ThinkStage(
        ThinkSettings(models=(settings_of(),)),
        site=DAKHLA,
        tag_of=lambda model, version: MOROCCO,
        folder=Path(),
        timer_ns=lambda: next(ticks),
    )
    add(stage.models["m"], "1", FunctionSession(remember), VersionState.ACTIVE)
    service = ThinkRunner(stage, SystemClock())
    driver = asyncio.create_task(service.run())
    for number in range(3):
        answer = await service.infer("m", {"x": np.full((1, 1), number + 1.0, np.float32)})
        assert answer.tensors["y"].tolist() == [number + 1.0]
    service.stop()
    await driver
    assert [one == threading.get_ident() for one in ran_in[1:]] == [inline, inline]


async def test_whoever_waits_hears_that_the_stage_has_gone(tmp_path: Path) -> None:
    patient = BatchingSettings(preferred_rows=(64,), delay_ms_max=10_000, timeout_ms=60_000)
    service = ThinkRunner(serving_stage(tmp_path, batching=patient), SystemClock())
    asked = asyncio.create_task(service.infer("m", {"x": ROWS}))
    driver = asyncio.create_task(service.run())
    for _ in range(3):  # both have started: one waits for its batch, the other for more requests
        await asyncio.sleep(0)
    driver.cancel()
    with pytest.raises(HarchError, match="E0801"):
        await asked
    with pytest.raises(HarchError, match="E0801"):
        await service.infer("m", {"x": ROWS})


def test_a_request_that_names_its_device_is_answered_by_the_version_of_that_device() -> None:
    stage = stage_of(settings_of(canary_percent=30))
    add(stage.models["m"], "1", times(1), VersionState.ACTIVE)
    add(stage.models["m"], "2", times(2), VersionState.CANARY)
    one = {"x": np.ones((1, 1), np.float32)}
    for device in (*range(40), "pump-1", "pump-2"):
        stage.score_request("m", one, ticket=device, now_s=0.0, device=device)
    stage.score_request("m", one, ticket="nobody", now_s=0.0)
    answers = stage.step(now_s=0.0).answers
    found = {answer.ticket: answer.ref.version for answer in answers if answer.ref is not None}
    assert len(found) == len(answers) == 43
    assert found.pop("nobody") == "1"
    for device, version in found.items():
        assert version == ("2" if canary_rows(np.array([device]), "m", 30)[0] else "1")
    assert set(found.values()) == {"1", "2"}


def test_a_full_queue_and_a_missed_deadline_have_their_own_answers() -> None:
    stage = stage_of(settings_of(batching=BatchingSettings(preferred_rows=(2,), rows_max=2, queue_rows_max=2)))
    add(stage.models["m"], "1", times(2), VersionState.ACTIVE)
    two = {"x": np.ones((2, 1), np.float32)}
    stage.score_request("m", two, ticket="first", now_s=0.0, deadline_s=0.5)
    with pytest.raises(HarchError) as caught:
        stage.score_request("m", two, ticket="second", now_s=0.0)
    assert (caught.value.code, caught.value.retry_after_s) == ("E0506", 1)
    (answer,) = stage.step(now_s=0.6).answers
    assert answer.ticket == "first"
    assert answer.error is not None
    assert answer.error.code == "E0507"


@pytest.mark.parametrize(
    ("method", "path", "code"),
    [
        ("GET", "/", "E0207"),
        ("GET", "/v2/models", "E0207"),
        ("GET", "/v2/models/m/versions", "E0207"),
        ("GET", "/v2/models/m/infer/more", "E0207"),
        ("POST", "/v2/models/m", "E0208"),
        ("GET", "/v2/models/m/infer", "E0208"),
        ("DELETE", "/v2", "E0208"),
    ],
)
def test_other_paths_and_methods_are_refused(method: str, path: str, code: str) -> None:
    with pytest.raises(HarchError) as caught:
        read_call(method, path)
    assert caught.value.code == code


CALL = read_call("POST", "/v2/models/m/infer")


def body_of(**fields: Any) -> bytes:
    tensor = {"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 2], **fields}
    return json.dumps({"inputs": [{key: value for key, value in tensor.items() if value is not None}]}).encode()


@pytest.mark.parametrize(
    ("body", "length", "words"),
    [
        (b"", None, "not valid"),
        (b"[1]", None, "not valid"),
        (b'{"inputs": []}', None, "length >= 1"),
        (body_of(shape=[-1, 2]), None, "not valid"),
        (body_of(shape=[1, 3]), None, "2 values"),
        (body_of(shape=[10**9, 10**9]), None, "elements"),
        (body_of(datatype="BYTES"), None, "datatype `BYTES`"),
        (body_of(data=[1, "2"]), None, "not FP32"),
        (body_of(data=[1, None]), None, "not FP32"),
        (body_of(data=[[1], [2, 3]]), None, "ragged data"),
        (body_of(data=[1, 1e300]), None, "beyond FP32"),
        (body_of(datatype="INT8", data=[1, 200]), None, "beyond INT8"),
        (body_of(datatype="INT8", data=[1, 1.5]), None, "not INT8"),
        (body_of(datatype="BOOL", data=[1, 0]), None, "not BOOL"),
        (body_of(data=None), None, "neither `data` nor"),
        (body_of(data=None, parameters={"binary_data_size": 8}), None, "0 are left"),
        (body_of(data=None, parameters={"binary_data_size": 9}), None, "8 bytes by its shape"),
        (body_of(data=None, parameters={"binary_data_size": True}), None, "8 bytes by its shape"),
        (body_of() + b"12345678", str(len(body_of())), "extra bytes after the JSON"),
        (body_of(), "0", "Inference-Header-Content-Length"),
        (body_of(), "99999", "Inference-Header-Content-Length"),
        (body_of(), "-5", "inference-header-content-length"),
        (body_of().replace(b'"inputs"', b'"parameters": {"priority": 9}, "inputs"'), None, "`priority`"),
        (body_of().replace(b'"inputs"', b'"parameters": {"timeout": -1}, "inputs"'), None, "`timeout`"),
        (body_of().replace(b'"inputs"', b'"parameters": {"device": [1]}, "inputs"'), None, "`device`"),
    ],
)
def test_a_request_that_makes_no_sense_is_refused_in_words(body: bytes, length: str | None, words: str) -> None:
    with pytest.raises(HarchError) as caught:
        read_infer(CALL, body, length)
    assert caught.value.code == "E0505"
    assert words in caught.value.message


@settings(deadline=None)
@given(st.binary(max_size=300), st.none() | st.integers(0, 400).map(str))
def test_noise_is_an_error_and_never_a_crash(noise: bytes, length: str | None) -> None:
    for body in (noise, body_of() + noise, body_of()[: len(noise)]):
        try:
            score_request = read_infer(CALL, body, length)
        except HarchError:
            continue
        assert score_request.tensors["x"].shape == (1, 2)


@pytest.mark.parametrize("datatype", sorted(DATATYPES))
def test_each_type_survives_the_way_in_as_bytes(datatype: str) -> None:
    rows = np.array([[0, 1], [1, 0]]).astype(DATATYPES[datatype])
    raw = rows.tobytes()
    head = body_of(shape=[2, 2], datatype=datatype, data=None, parameters={"binary_data_size": len(raw)})
    found = read_infer(CALL, head + raw, str(len(head))).tensors["x"]
    assert found.dtype == rows.dtype
    assert (found == rows).all()
