"""What a task gets, and what it must never see."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest
from execution_fakes import task

from harch.execution.protocol import Forget, StopTask, TaskKey
from harch.workloads.lifecycle import ExitReason

SECRET = "s3cr3t-" + "x" * 20


async def test_secrets_are_private_files_that_vanish_and_leave_no_trace(hub, agent, state, tmp_path):
    hub.forgets = False
    script = "cd $HARCH_SECRETS && stat -c '%a %n' * && wc -c < TOKEN && pwd && echo ready && sleep 30"
    spec = task("sh", "-c", script, secrets={"TOKEN": SECRET, "OTHER": "y"})
    await hub.start(spec)
    first, second, length, path, _ = (await _log_with(hub, spec, "ready")).splitlines()
    folder = Path(path)
    assert [first.split()[0], second.split()[0]] == ["600", "600"]
    assert int(length) == len(SECRET)
    assert folder.stat().st_mode & 0o777 == 0o700
    if os.path.ismount("/dev/shm"):
        assert folder.is_relative_to("/dev/shm")
    assert _files_with(state, SECRET) == []
    await hub.say(StopTask(spec.key, 0.1))
    await hub.ended(spec.key)
    assert not folder.exists()
    assert _files_with(state, SECRET) == []
    assert _files_with(tmp_path, SECRET) == []
    await hub.say(Forget(spec.key))


async def test_a_rank_that_has_ended_leaves_the_checkpoint_folder_to_the_others_of_its_gang(hub, agent, state):
    slow = task("sh", "-c", "echo ready; until test -e go; do sleep 0.01; done; echo x > $HARCH_CHECKPOINT_DIR/state")
    quick = task("true", key=TaskKey(slow.key.workload_id, 1, 1))
    await hub.start(slow)
    await _log_with(hub, slow, "ready")
    await hub.run(quick)
    folder, tasks = state / "checkpoints" / slow.key.workload_id, state / "tasks"
    await _gone(tasks / f"{quick.key.workload_id}.1.1")
    (tasks / f"{slow.key.workload_id}.1.0" / "work" / "go").touch()
    assert (await hub.ended(slow.key)).exit_code == 0
    assert (folder / "state").read_text() == "x\n"


async def test_the_environment_tells_gpus_gang_and_folders(hub, agent):
    spec = task(
        "env",
        env={"LR": "0.1", "RANK": "9", "HARCH_GPUS": "forged", "LD_PRELOAD": ""},
        world_size=4,
        master_addr="10.0.0.1",
        master_port=29501,
    )
    await hub.run(spec)
    env = dict(line.split("=", 1) for line in (await hub.log(spec.key)).data.decode().splitlines())
    assert (env["LR"], env["HARCH_GPUS"], env["CUDA_VISIBLE_DEVICES"]) == ("0.1", "n1-g0,n1-g1", "")
    assert (env["WORLD_SIZE"], env["MASTER_ADDR"], env["MASTER_PORT"]) == ("4", "10.0.0.1", "29501")
    assert (env["HARCH_WORKLOAD_ID"], env["HARCH_RANK"], env["RANK"]) == (spec.key.workload_id, "0", "9")
    assert set(env) & {"SSH_AUTH_SOCK", "VIRTUAL_ENV", "USER", "HARCH_API_KEY"} == set()


@pytest.mark.needs("bubblewrap")
async def test_the_sandbox_hides_state_other_files_and_other_processes(hub, run_agent, state, tmp_path):
    await run_agent(sandbox="auto")
    other = tmp_path / "other-user"
    other.mkdir()
    (other / "private.txt").write_text("private")
    script = f"""
import json, os
def look(path):
    try: return os.listdir(path)
    except OSError as error: return str(error)
def write(path):
    try: open(path, "w").write("x"); return "written"
    except OSError as error: return error.strerror
print(json.dumps({{
    "state": look("{state}"), "tasks": look("{state}/tasks"), "lock": look("{state}/agent.lock"),
    "other": look("{other}"), "home": look("/root") , "shadow": os.path.exists("/etc/shadow"),
    "pids": [p for p in os.listdir("/proc") if p.isdecimal()], "tmp": look("/tmp"),
    "caps": [l.split()[1] for l in open("/proc/self/status") if l.startswith(("CapEff", "CapBnd"))],
    "usr": write("/usr/x"), "root": write("/x"), "work": write("x"),
    "checkpoint": write(os.environ["HARCH_CHECKPOINT_DIR"] + "/c"),
    "fds": len(os.listdir("/proc/self/fd")),
}}))
"""
    spec = task(sys.executable, "-c", script)
    end = await hub.run(spec)
    assert end.exit_code == 0, (await hub.log(spec.key)).data
    seen = json.loads((await hub.log(spec.key)).data)
    folder = f"{spec.key.workload_id}.1.0"
    assert (sorted(seen["state"]), seen["tasks"]) == (["checkpoints", "tasks"], [folder])
    assert "No such file" in seen["lock"]
    assert "No such file" in seen["other"]
    assert seen["shadow"] is False
    assert len(seen["pids"]) <= 3, "bubblewrap's pid 1, the task, nobody else"
    assert set(seen["caps"]) == {"0000000000000000"}
    assert (seen["work"], seen["checkpoint"]) == ("written", "written")
    assert (seen["usr"], seen["root"]) == ("Read-only file system",) * 2
    assert seen["fds"] <= 5
    checkpoint = state / "checkpoints" / spec.key.workload_id / "c"
    assert checkpoint.read_text() == "x", "checkpoints outlive the task"


@pytest.mark.needs("bubblewrap")
async def test_a_required_sandbox_that_works_runs_tasks_in_it(hub, run_agent):
    await run_agent(sandbox="required")
    spec = task("sh", "-c", "echo $$")
    assert (await hub.run(spec)).exit_code == 0
    assert hub.hellos[0].features["sandbox"] == "bubblewrap"
    assert int((await hub.log(spec.key)).data) < 10, "it counts processes anew"


@pytest.mark.needs("bubblewrap")
async def test_a_shared_folder_is_writable_but_state_inside_it_stays_hidden(hub, run_agent, tmp_path):
    share = tmp_path / "share"
    (share / "project").mkdir(parents=True)
    state = share / "project" / ".harch"
    await run_agent(sandbox="auto", share=(share,), state_dir=state)
    spec = task("sh", "-c", "pwd; echo result > out.txt; ls -A .harch", working_dir=str(share / "project"))
    assert (await hub.run(spec)).exit_code == 0
    lines = (await hub.log(spec.key)).data.decode().split()
    assert lines == [str(share / "project"), "checkpoints"]
    assert (share / "project" / "out.txt").read_text() == "result\n"


async def test_a_folder_that_is_not_shared_is_refused_with_its_code(hub, run_agent, tmp_path, state):
    share = tmp_path / "share"
    share.mkdir()
    (share / "way-out").symlink_to("/etc")
    await run_agent(sandbox="off", share=(share, state))
    for folder in (
        "/etc",
        f"{share}/../",
        f"{share}/way-out",
        f"{share}/missing",
        "/",
        "relative",
        str(state / "tasks"),
    ):
        end = await hub.run(task("true", working_dir=folder))
        assert end.reason is ExitReason.NOT_STARTED
        assert end.detail.startswith("E0309"), (folder, end.detail)
    assert (await hub.run(task("true", working_dir=str(share)))).exit_code == 0


@pytest.mark.needs("bubblewrap")
async def test_a_preloaded_library_never_runs_outside_the_sandbox(hub, run_agent):
    await run_agent(sandbox="auto")
    spec = task("true", env={"LD_PRELOAD": "/no/such/library.so"})
    await hub.run(spec)
    said = (await hub.log(spec.key)).data.decode()
    assert said.count("/no/such/library.so") == 1, "the task itself complains, bubblewrap has not even tried"


async def _log_with(hub, spec, text: str) -> str:
    for _ in range(300):
        found = (await hub.log(spec.key)).data.decode()
        if text in found:
            return found
        await asyncio.sleep(0.01)
    raise AssertionError(f"{text} never appeared")


async def _gone(folder: Path) -> None:
    async with asyncio.timeout(10):
        while folder.exists():
            await asyncio.sleep(0.01)


def _files_with(folder: Path, text: str) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and text.encode() in path.read_bytes()]
