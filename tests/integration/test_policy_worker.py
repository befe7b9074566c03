"""What if a policy loops, crashes, lies or pries? Real workers, and a real hub that stays up through all of it."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harch.base.errors import HarchError
from harch.sovereignty.policy.supervisor import PolicyWorker, WorkerLimits, WorkerProgram
from harch.sovereignty.policy.verdict import VerdictGround, read_verdict
from harch.testing.clock import SimClock
from harch.testing.hub_process import HubProcess
from harch.testing.samples import TINY_FLEET_TOML

ALLOW = "p/allow"
QUICK = WorkerLimits(answer_s=0.5, cpu_s=1, pause_s_first=0.0, memory_bytes=128 * 1024 * 1024)
# Ends the engine's process: `with` on a rule that depends on another one.
CRASH = """
allow if count([v | some x in input.batch; v := allow with input as x]) > 0
"""
LOOP = """
allow if {
	some a in numbers.range(1, 3000)
	some b in numbers.range(1, 3000)
	some c in numbers.range(1, 3000)
	a + b + c == 0
}
"""


def program(body: str, *, data: dict[str, object] | None = None) -> WorkerProgram:
    return WorkerProgram(
        modules={"p.rego": f"package p\nimport rego.v1\n{body}"}, data=data or {}, entrypoints=(ALLOW,)
    )


async def ground_of(body: str, value: object = None, limits: WorkerLimits = QUICK) -> VerdictGround:
    worker = PolicyWorker(program(body), limits=limits)
    try:
        return read_verdict(await worker.evaluate(ALLOW, {} if value is None else value)).ground
    finally:
        await worker.close()


@pytest.mark.parametrize(
    ("body", "ground"),
    [
        ("allow := true", VerdictGround.ALLOWED),
        ("allow := false", VerdictGround.DENIED),
        ("allow if input.missing == 7", VerdictGround.UNDEFINED),
        ("other := true", VerdictGround.UNDEFINED),
        ("allow := 3", VerdictGround.NOT_BOOLEAN),
        ('allow := "true"', VerdictGround.NOT_BOOLEAN),
        ("allow contains 1", VerdictGround.NOT_BOOLEAN),
        ("allow := true if input.x == 1\nallow := false if input.x == 1", VerdictGround.ENGINE_ERROR),
        ('allow if to_number("abc") == 1', VerdictGround.ENGINE_ERROR),
        (LOOP, VerdictGround.TIMED_OUT),
        ("allow if count(numbers.range(1, 100000000)) > 1", VerdictGround.CRASHED),
    ],
    ids=["true", "false", "undefined", "no rule", "number", "text", "set", "conflict", "built-in", "loop", "memory"],
)
async def test_only_true_is_a_yes(body: str, ground: VerdictGround) -> None:
    limits = (
        WorkerLimits(answer_s=5.0, cpu_s=4, memory_bytes=QUICK.memory_bytes)
        if ground is VerdictGround.CRASHED
        else QUICK
    )
    assert await ground_of(body, {"x": 1}, limits) is ground


async def test_a_crash_is_a_no_and_the_next_question_finds_a_new_worker() -> None:
    worker = PolicyWorker(program("allow if input.x == 1"), limits=QUICK)
    await worker.start()
    assert worker._process is not None
    os.kill(worker._process.pid, signal.SIGKILL)
    first = read_verdict(await worker.evaluate(ALLOW, {"x": 1}))
    second = read_verdict(await worker.evaluate(ALLOW, {"x": 1}))
    await worker.close()
    assert first.ground is VerdictGround.CRASHED
    assert "signal 9" in first.detail
    assert second.allowed
    assert worker.starts == 2


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (CRASH, "signal 6"),
        ('allow if not deny\ndeny if net.cidr_contains("10.0.0.0/8", input.ip)', "net.cidr_contains"),
        ("allow if opa.runtime().env", "opa.runtime"),
        ("allow if {", "unclosed"),
    ],
    ids=["crash", "missing built-in", "opa.runtime", "syntax"],
)
async def test_what_must_not_run_is_refused_when_it_is_compiled(body: str, said: str) -> None:
    worker = PolicyWorker(program(body), limits=QUICK)
    with pytest.raises(HarchError) as caught:
        await worker.start()
    assert caught.value.code == "E0930"
    assert said in caught.value.message
    verdict = read_verdict(await worker.evaluate(ALLOW, {"ip": "10.0.0.1", "batch": [{}]}))
    await worker.close()
    assert verdict.ground is VerdictGround.UNAVAILABLE


@pytest.mark.needs("foreign-proc")  # it may not be dumped, so only root sees its files
async def test_a_worker_has_no_environment_and_no_descriptors_of_the_hub(tmp_path: Path) -> None:
    with (tmp_path / "state").open("wb") as state:
        os.set_inheritable(state.fileno(), True)
        async with PolicyWorker(program("allow := true")) as worker:
            assert worker._process is not None
            folder = Path(f"/proc/{worker._process.pid}")
            assert (folder / "environ").read_bytes() == b""
            open_files = {os.readlink(entry) for entry in (folder / "fd").iterdir()}
    assert {name.split(":")[0] for name in open_files} <= {"/dev/null", "pipe", "socket"}


async def test_a_worker_that_keeps_dying_is_left_alone() -> None:
    clock = SimClock()
    limits = WorkerLimits(answer_s=5.0, restarts_max=3, memory_bytes=QUICK.memory_bytes)
    worker = PolicyWorker(program("allow := true"), limits=limits, clock=clock)
    grounds = []
    for _ in range(5):
        await worker.evaluate(ALLOW, {})
        if worker._process is not None:
            os.kill(worker._process.pid, signal.SIGKILL)
        grounds.append(read_verdict(await worker.evaluate(ALLOW, {})).ground)
    starts = worker.starts
    again = read_verdict(await worker.evaluate(ALLOW, {}))
    await worker.close()
    assert grounds[0] is VerdictGround.CRASHED
    assert grounds[-1] is again.ground is VerdictGround.UNAVAILABLE
    assert worker.starts == starts <= 3


async def test_too_many_questions_are_refused_at_once_and_the_others_answered() -> None:
    worker = PolicyWorker(program("allow := true"), limits=WorkerLimits(waiting_max=5))
    await worker.start()
    answers = await asyncio.gather(*(worker.evaluate(ALLOW, {}) for _ in range(8)))
    await worker.close()
    grounds = [read_verdict(answer).ground for answer in answers]
    assert grounds.count(VerdictGround.ALLOWED) == 5
    assert grounds.count(VerdictGround.OVERLOADED) == 3


async def test_who_gives_up_does_not_leave_an_answer_for_the_next() -> None:
    worker = PolicyWorker(program("allow if input.x == 1\nslow if input.y"), limits=WorkerLimits(answer_s=5.0))
    await worker.start()
    asking = asyncio.get_running_loop().create_task(worker.evaluate(ALLOW, {"x": 1}))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    verdict = read_verdict(await worker.evaluate(ALLOW, {"x": 2}))
    await worker.close()
    assert verdict.ground is VerdictGround.UNDEFINED


# The hub

PLAIN = {"accept": "application/json"}  # else events come as a stream

MANIFEST = (
    'name = "acme"\nversion = "1.0.0"\n[entrypoints]\nworkload = "acme/allow"\n[reasons]\nworkload = "acme/deny"\n'
)
REGO = f"""package acme
import rego.v1
default allow := false
allow if {{
	count(deny) == 0
	not loops
	not odd
}}
deny contains "no project" if not input.workload.labels.project
odd if to_number(input.workload.labels.number) == 7
loops if {{
	input.workload.labels.loop == "yes"
	{LOOP.split("{")[1].split("}")[0].strip()}
}}
"""


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubProcess]:
    with HubProcess(TINY_FLEET_TOML, "dakhla", tmp_path_factory.mktemp("hub"), agents={}) as running:
        yield running


def submit(hub: HubProcess, name: str, **labels: str) -> tuple[int, dict[str, Any]]:
    with hub.client() as client:
        answer = client.post("/v1/workloads", json={"name": name, "modelled_duration_s": 1, "labels": labels})
        return answer.status_code, dict(answer.json())


def activate(hub: HubProcess, rego: str = REGO, **more: str) -> tuple[int, dict[str, Any]]:
    files = {"policy.toml": MANIFEST, "acme.rego": rego, **more}
    with hub.client() as client:
        answer = client.put("/v1/policies/active", json={"files": files})
        return answer.status_code, dict(answer.json())


def test_a_hub_asks_its_policy_fails_closed_and_stays_up(hub: HubProcess) -> None:
    assert submit(hub, "before")[0] == 201
    status, active = activate(hub)
    assert (status, active["active"], active["name"]) == (200, True, "acme")
    assert submit(hub, "good", project="rain")[0] == 201
    refused = [
        submit(hub, "bad"),
        submit(hub, "loop", project="x", loop="yes"),
        submit(hub, "odd", project="x", number="n"),
    ]
    assert [(status, body["code"]) for status, body in refused] == [(403, "E0931"), (403, "E0932"), (403, "E0932")]
    assert "no project" in refused[0][1]["message"]
    assert "too long" in refused[1][1]["message"]
    assert submit(hub, "good-again", project="rain")[0] == 201
    with hub.client() as client:
        assert client.get("/v1/policies/active").json()["digest"] == active["digest"]
        decisions = client.get("/v1/policies/decisions", params={"limit": 100}).json()
        events = client.get("/v1/events", params={"after": 0}, headers=PLAIN).json()["items"]
    assert {"policy.activated", "policy.fault"} <= {event["kind"] for event in events}
    grounds = {(item["ground"], item["policy"] == active["digest"]) for item in decisions["items"]}
    assert {("allowed", False), ("allowed", True), ("denied", True), ("timed_out", True)} <= grounds
    assert decisions["total"] == 6


def test_a_bundle_that_is_wrong_or_fails_its_tests_does_not_come_into_force(hub: HubProcess) -> None:
    with hub.client() as client:
        before = client.get("/v1/policies/active").json()["digest"]
    crashing = REGO.replace("not odd", "x := opa.runtime()")
    failing = '[{"name": "open to all", "input": {"workload": {"labels": {}}}, "allow": true}]'
    answers = [
        activate(hub, crashing),
        activate(hub, "package acme\nallow if {"),
        activate(hub, **{"cases.json": failing}),
    ]
    assert [(status, body["code"]) for status, body in answers] == [(400, "E0930")] * 3
    assert "opa.runtime" in answers[0][1]["message"]
    assert "open to all" in answers[2][1]["message"]
    with hub.client() as client:
        assert client.get("/v1/policies/active").json()["digest"] == before


def test_the_policy_outlives_a_restart_and_can_be_taken_out_of_force(hub: HubProcess) -> None:
    digest = activate(hub)[1]["digest"]
    hub.kill_hub()
    hub.start_hub()
    assert submit(hub, "bad")[1]["code"] == "E0931"
    with hub.client() as client:
        assert client.get("/v1/policies/active").json()["digest"] == digest
        assert client.delete("/v1/policies/active").json()["active"] is False
        assert client.delete("/v1/policies/active").json()["code"] == "E0935"
    assert submit(hub, "bad")[0] == 201
