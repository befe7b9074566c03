"""What a task needs is there when it starts: its code, its data, its packages. And it stays for the next one."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from pathlib import Path

import msgspec
import pytest
from content_fakes import NOT_HERE_TO_REST, ContentHub, Held, PackageIndex, files, given, make_wheel
from execution_fakes import alive, task, wait_until

from harch.content.packing import pack, scan
from harch.execution.protocol import (
    ContentUse,
    ExtendLease,
    PauseTask,
    ResumeTask,
    StartTask,
    StopTask,
    TaskEnded,
    TaskPreparing,
    TaskStarted,
)
from harch.wire.content import TransferView
from harch.workloads.lifecycle import ExitReason
from harch.workloads.spec import Environment

HERE = f"{sys.version_info.major}.{sys.version_info.minor}"


@pytest.fixture
async def hub():
    async with ContentHub().listening() as hub:
        yield hub


@pytest.fixture
def greeting(hub, tmp_path) -> Held:
    """Code with a wheel of its own, a list of requirements that names it, and a program that uses it."""
    folder = files(
        tmp_path / "code",
        train_py="import greeting; print(greeting.WORD)\n",
        requirements_txt="greeting==1.0\n",
        run_sh="#!/bin/sh\necho from a script\n",
    )
    (folder / "run.sh").chmod(0o755)
    make_wheel(
        folder / "wheels",
        "greeting",
        "1.0",
        "WORD = 'salam'\n\ndef say():\n    print(WORD)\n",
        script="greet = greeting:say",
    )
    return hub.add(folder, "code", ContentUse.CODE)


OFFLINE = Environment(requirements="requirements.txt", wheels="wheels")
LOOK = """
import json, os, sys
def write(path):
    try: open(path, "a").write("x"); return "written"
    except OSError as error: return error.strerror
data = os.environ["HARCH_DATA"] + "/corpus v1"
print(json.dumps({
    "corpus": open(data + "/part.txt").read(), "link": open(data + "/link").read(),
    "part": write(data + "/part.txt"), "new": write(data + "/new"),
    "own": write("helper.txt"), "code": os.environ["HARCH_CODE"], "cwd": os.getcwd(), "names": sorted(os.listdir(".")),
    "mode": os.stat("run.sh").st_mode & 0o777,
}))
"""


async def test_code_is_its_own_copy_and_data_can_be_read_only(hub, agent, mode, tmp_path):
    folder = files(tmp_path / "code", look_py=LOOK, helper_txt="help", run_sh="")
    (folder / "run.sh").chmod(0o755)
    corpus = files(tmp_path / "corpus", part_txt="words")
    (corpus / "link").symlink_to("part.txt")
    code, data = hub.add(folder, "code", ContentUse.CODE), hub.add(corpus, "corpus v1")
    seen = await _json_of(hub, task("python", "look.py", **given(code, data)))
    assert (seen["corpus"], seen["link"], seen["names"]) == ("words", "words", ["helper.txt", "look.py", "run.sh"])
    assert (seen["own"], seen["mode"], seen["code"]) == ("written", 0o755, seen["cwd"])
    if mode == "auto":
        assert seen["new"] == "Read-only file system"
    again = await _json_of(hub, task("python", "look.py", **given(code, data)))
    assert again["corpus"] == "words", "the next task gets what was packed"


async def test_packages_come_first_and_the_environment_says_so(hub, agent, greeting):
    script = "greet; python train.py; echo $PATH; echo $VIRTUAL_ENV; echo [$PYTHONPATH]; command -v harch || ./run.sh"
    spec = task("sh", "-c", script, environment=OFFLINE, env={"PATH": "/usr/bin:/bin"}, **given(greeting))
    await hub.run(spec)
    said, word, path, environment, python_path, last = (await hub.log(spec.key)).data.decode().splitlines()
    assert (said, word, python_path, last) == ("salam", "salam", "[]", "from a script")
    assert path == f"{environment}/bin:/usr/bin:/bin"


async def test_progress_is_told_before_the_start_and_the_log_of_it_is_kept(hub, agent, greeting, state):
    spec = task("python", "train.py", environment=OFFLINE, **given(greeting))
    await hub.run(spec)
    told = [one for one in hub.messages if isinstance(one, TaskPreparing | TaskStarted)]
    assert isinstance(told[-1], TaskStarted)
    assert {"environment", "starting"} & {one.step for one in told[:-1]}
    await _until(lambda: not list((state / "tasks").iterdir()))
    kept = await hub.log(spec.key, preparation=True)
    assert b"code code: " in kept.data
    assert b"$ uv pip install" in kept.data
    assert kept.eof
    assert (await hub.log(spec.key)).data == b"salam\n", "it is a log of its own"


async def test_what_is_here_is_neither_fetched_nor_built_again(hub, agent, greeting):
    first, second = (task("python", "train.py", environment=OFFLINE, **given(greeting)) for _ in range(2))
    assert (await hub.run(first)).exit_code == 0
    asked = len(hub.requests)
    hub.closed = True
    assert (await hub.run(second)).exit_code == 0
    assert len(hub.requests) == asked
    assert b"uv pip install" not in (await hub.log(second.key, preparation=True)).data


async def test_an_environment_is_built_once_however_many_want_it(hub, agent, greeting):
    specs = [task("python", "train.py", environment=OFFLINE, **given(greeting)) for _ in range(6)]
    await hub.say(*map(StartTask, specs))
    for spec in specs:
        assert (await hub.ended(spec.key)).exit_code == 0
    logs = [(await hub.log(spec.key, preparation=True)).data for spec in specs]
    assert sum(b"uv pip install" in log for log in logs) == 1
    assert hub.asked("trees") == 1


async def test_after_a_change_of_requirements_or_wheels_another_one_is_built(hub, agent, tmp_path):
    folder = files(tmp_path / "code", train_py="import greeting; print(greeting.WORD)\n", requirements_txt="greeting\n")
    for word in ("salam", "marhaba"):
        make_wheel(folder / "wheels", "greeting", "1.0", f"WORD = '{word}'\n")
        code = hub.add(folder, f"code-{word}", ContentUse.CODE)
        spec = task("python", "train.py", environment=OFFLINE, **given(code))
        await hub.run(spec)
        assert (await hub.log(spec.key)).data.decode() == f"{word}\n"


async def test_tenants_share_no_environment(hub, agent, greeting, state):
    for tenant in ("atlas", "sahel"):
        spec = task("python", "train.py", environment=OFFLINE, tenant=tenant, **given(greeting))
        assert (await hub.run(spec)).exit_code == 0
    assert len(list((state / "content" / "environments").glob("*/ready/*"))) == 2


async def test_an_index_is_asked_for_packages_and_what_they_need(hub, agent, greeting, tmp_path):
    wheels = tmp_path / "index"
    make_wheel(wheels, "greeting", "2.0", "import words\nWORD = words.WORD\n", requires="words>=1")
    make_wheel(wheels, "words", "1.5", "WORD = 'azul'\n")
    with PackageIndex(wheels).listening() as index:
        environment = Environment(packages=("greeting>=2",), index_url=index.url)
        spec = task("python", "train.py", environment=environment, **given(greeting))
        await hub.run(spec)
        assert (await hub.log(spec.key)).data == b"azul\n"
        asked = len(index.requests)
        again = task("python", "train.py", environment=environment, **given(greeting))
        assert (await hub.run(again)).exit_code == 0
        assert len(index.requests) == asked


LOCK = """
version = 1
requires-python = ">=3.8"

[[package]]
name = "greeting"
version = "1.0"
source = {{ registry = "{url}" }}
wheels = [{{ url = "{files}/greeting-1.0-py3-none-any.whl", hash = "sha256:{digest}" }}]

[[package]]
name = "project"
version = "0.1.0"
source = {{ virtual = "." }}
dependencies = [{{ name = "greeting" }}]

[package.metadata]
requires-dist = [{{ name = "greeting", specifier = "==1.0" }}]
"""
PROJECT = (
    '[project]\nname = "project"\nversion = "0.1.0"\nrequires-python = ">=3.8"\ndependencies = ["greeting==1.0"]\n'
)


@pytest.mark.parametrize("source", ["lock", "wheels", "index"])
async def test_a_lock_brings_exactly_its_packages_from_wherever_they_come(hub, agent, tmp_path, source):
    import hashlib

    folder = files(tmp_path / "code", train_py="import greeting; print(greeting.WORD)\n", sub__pyproject_toml=PROJECT)
    for version in ("1.0", "1.1"):
        wheel = make_wheel(folder / "wheels", "greeting", version, f"WORD = '{version}'\n")
    digest = hashlib.sha256((folder / "wheels" / "greeting-1.0-py3-none-any.whl").read_bytes()).hexdigest()
    with PackageIndex(wheel.parent).listening() as index:
        url = index.url if source == "lock" else "http://127.0.0.1:9/simple"
        (folder / "sub" / "uv.lock").write_text(
            LOCK.format(url=url, files=url.replace("simple", "files"), digest=digest)
        )
        environment = {
            "lock": Environment(lock="sub/uv.lock"),
            "wheels": Environment(lock="sub/uv.lock", wheels="wheels"),
            "index": Environment(lock="sub/uv.lock", index_url=index.url),
        }[source]
        spec = task("python", "train.py", environment=environment, **given(hub.add(folder, "code", ContentUse.CODE)))
        end = await hub.run(spec)
        assert (await hub.log(spec.key)).data == b"1.0\n", (
            end,
            (await hub.log(spec.key, preparation=True)).data.decode(),
        )


async def test_a_package_of_the_code_itself_is_installed_for_one_task_only(hub, agent, tmp_path, state):
    folder = files(
        tmp_path / "code",
        train_py="import own; print(own.__file__)\n",
        lib__own_py="",
        requirements_txt="./wheels/local-1.0-py3-none-any.whl\n",
    )
    make_wheel(folder / "wheels", "local", "1.0", "")
    make_wheel(folder / "wheels", "own", "1.0", "")
    environment = Environment(requirements="requirements.txt", packages=("own",), wheels="wheels")
    spec = task("python", "train.py", environment=environment, **given(hub.add(folder, "code", ContentUse.CODE)))
    await hub.run(spec)
    assert (
        (await hub.log(spec.key))
        .data.decode()
        .startswith(f"{state}/tasks/{spec.key.workload_id}.1.0/content/environment/")
    )
    assert list((state / "content" / "environments").glob("*/ready/*")) == []


async def test_without_packages_it_is_a_python_of_the_wanted_version(hub, agent):
    spec = task("python", "-c", "import sys; print(sys.version_info[:2])", environment=Environment(python=HERE))
    await hub.run(spec)
    assert (await hub.log(spec.key)).data.decode() == f"{sys.version_info[:2]}\n"


async def test_a_version_that_is_not_there_is_said_with_those_that_are(hub, agent):
    end = await hub.run(task("true", environment=Environment(python="3.99")))
    assert end.reason is ExitReason.NOT_STARTED
    assert end.detail.startswith("E1122 this node has no Python 3.99; it has ")
    assert HERE in end.detail
    assert HERE in hub.hellos[0].features["pythons"]


async def test_packages_that_cannot_be_installed_are_an_error_that_says_why(hub, agent, greeting):
    environment = Environment(packages=("greeting==7.0",), wheels="wheels")
    specs = [task("true", environment=environment, **given(greeting)) for _ in range(2)]
    await hub.say(*map(StartTask, specs))
    for spec in specs:
        end = await hub.ended(spec.key)
        assert end.reason is ExitReason.NOT_STARTED
        assert end.detail.startswith("E1120 the environment could not be built: ")
        assert "greeting==7.0" in end.detail
    log = (await hub.log(specs[0].key, preparation=True)).data + (await hub.log(specs[1].key, preparation=True)).data
    assert b"hint: `harch logs ID --preparation`" in log


async def test_what_was_fetched_for_a_task_that_did_not_start_makes_room(hub, run_agent, greeting, state):
    await run_agent(sandbox="off", cache_bytes=1)
    end = await hub.run(task("true", environment=Environment(python="3.99"), **given(greeting)))
    assert end.detail.startswith("E1122 ")
    await _until(lambda: list((state / "content" / "trees").iterdir()) == [])


@pytest.mark.parametrize(
    ("environment", "why"),
    [
        (Environment(requirements="none.txt"), "`none.txt` of the code cannot be read"),
        (Environment(requirements="out.txt"), "`out.txt` leads out of the code"),
        (Environment(lock="requirements.txt"), "is not a uv.lock"),
        (Environment(packages=("greeting",), wheels="none"), "`none` of the code cannot be read"),
    ],
)
async def test_files_that_the_code_does_not_have_are_named(hub, run_agent, tmp_path, environment, why):
    await run_agent(sandbox="off")
    folder = files(tmp_path / "code", requirements_txt="")
    (folder / "out.txt").symlink_to("../out")
    end = await hub.run(task("true", environment=environment, **given(hub.add(folder, "code", ContentUse.CODE))))
    assert end.detail.startswith("E1120 ")
    assert why in end.detail


async def test_an_agent_without_uv_says_so_at_once_and_when_it_is_needed(hub, run_agent, monkeypatch):
    from harch.execution.content import node
    from harch.execution.content.environments import Uv

    monkeypatch.setattr(node, "find_uv", lambda environ: Uv("", "uv is not installed"))
    await run_agent(sandbox="off")
    assert hub.hellos[0].features["environments"] == "none: uv is not installed"
    end = await hub.run(task("true", environment=Environment()))
    assert end.detail == "E1121 this node cannot build environments: uv is not installed"


# Stops, pauses, leases


async def test_a_stop_ends_a_build_within_a_second_and_leaves_nothing_running(hub, agent, tmp_path, state):
    with PackageIndex(tmp_path, silent=True).listening() as index:
        spec = task("true", environment=Environment(packages=("greeting",), index_url=index.url))
        await hub.say(StartTask(spec))
        while not index.requests:
            await asyncio.sleep(0.01)
        mark = f"HARCH_WORKLOAD_ID={spec.key.workload_id}".encode()
        pids = [pid for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))) if mark in _environ(pid)]
        assert pids
        asked_s = time.monotonic()
        await hub.say(StopTask(spec.key, 60.0))
        end = await hub.ended(spec.key)
        assert time.monotonic() - asked_s < 1.0
    assert (end.reason, end.detail) == (ExitReason.STOPPED, "stopped before it started")
    assert not any(alive(pid) for pid in pids)
    assert [one for one in hub.messages if isinstance(one, TaskStarted)] == []
    await _until(lambda: not list((state / "tasks").iterdir()))
    assert list((state / "content" / "environments").glob("*/building/*")) == []


async def test_a_stop_ends_a_fetch_within_a_second(hub, agent, greeting):
    hub.held_back = asyncio.Event()
    spec = task("true", **given(greeting))
    await hub.say(StartTask(spec))
    while not hub.asked("fetch"):
        await asyncio.sleep(0.01)
    asked_s = time.monotonic()
    await hub.say(StopTask(spec.key, 60.0))
    assert (await hub.ended(spec.key)).reason is ExitReason.STOPPED
    assert time.monotonic() - asked_s < 1.0


async def test_who_waits_for_a_build_takes_it_over_when_the_builder_is_stopped(hub, agent, greeting, tmp_path):
    wheels = tmp_path / "index"
    make_wheel(wheels, "greeting", "1.0", "WORD = 'index'\n")
    with PackageIndex(wheels, silent=True).listening() as index:
        environment = Environment(packages=("greeting",), index_url=index.url)
        first, second = (task("python", "train.py", environment=environment, **given(greeting)) for _ in range(2))
        await hub.say(StartTask(first))
        while not index.requests:
            await asyncio.sleep(0.01)
        await hub.say(StartTask(second))
        await hub.wait_for(TaskPreparing, lambda one: one.key == second.key and one.step == "environment")
        index.silent = False
        await hub.say(StopTask(first.key, 1.0))
        assert (await hub.ended(first.key)).reason is ExitReason.STOPPED
        assert (await hub.ended(second.key)).exit_code == 0


async def test_a_paused_task_is_prepared_and_starts_when_it_is_resumed(hub, agent, greeting):
    hub.held_back = asyncio.Event()
    spec = task("python", "-c", "print('ran')", **given(greeting))
    await hub.say(StartTask(spec))
    while not hub.asked("fetch"):
        await asyncio.sleep(0.01)
    await hub.say(PauseTask(spec.key))
    hub.held_back.set()
    await hub.wait_for(TaskPreparing, lambda one: one.step == "paused")
    assert [one for one in hub.messages if isinstance(one, TaskStarted)] == []
    await hub.say(ResumeTask(spec.key))
    assert (await hub.ended(spec.key)).exit_code == 0


async def test_a_paused_task_that_is_ready_can_be_stopped(hub, agent, greeting):
    hub.held_back = asyncio.Event()
    spec = task("true", **given(greeting))
    await hub.say(StartTask(spec))
    while not hub.asked("fetch"):
        await asyncio.sleep(0.01)
    await hub.say(PauseTask(spec.key))
    hub.held_back.set()
    await hub.wait_for(TaskPreparing, lambda one: one.step == "paused")
    await hub.say(StopTask(spec.key, 1.0))
    assert (await hub.ended(spec.key)).reason is ExitReason.STOPPED


async def test_a_lease_that_ends_meanwhile_ends_the_preparation(hub, agent, greeting):
    hub.held_back = asyncio.Event()
    boot_s = hub.hellos[0].boot_s
    ending, extended = (task("true", stop_grace_s=1.0, lease_until_s=boot_s + 4.0, **given(greeting)) for _ in range(2))
    await hub.say(StartTask(ending), StartTask(extended), ExtendLease(((extended.key, boot_s + 600.0),)))
    end = await hub.ended(ending.key)
    assert (end.reason, end.detail) == (ExitReason.LEASE_ENDED, "its lease ended before it started")
    hub.held_back.set()
    assert (await hub.ended(extended.key)).exit_code == 0


async def test_a_preparing_task_takes_a_slot_and_counts_as_running(hub, run_agent, greeting):
    await run_agent(sandbox="off", process_slots=1)
    hub.held_back = asyncio.Event()
    spec = task("true", **given(greeting))
    await hub.say(StartTask(spec))
    while not hub.asked("fetch"):
        await asyncio.sleep(0.01)
    assert (await hub.run(task("true"))).detail == "E0307 all 1 process slots are in use"
    await hub.hang_up()
    await hub.until(lambda: len(hub.hellos) == 2)
    (known,) = [one for one in hub.hellos[1].tasks if one.key == spec.key]
    assert (known.running, known.preparing, known.started_at) == (True, True, None)
    hub.held_back.set()
    assert (await hub.ended(spec.key)).exit_code == 0


# The hub is away, or says no


async def test_a_hub_that_is_away_for_a_while_costs_nothing_but_time(hub, agent, greeting):
    hub.closed = True
    spec = task("python", "-c", "print('ran')", **given(greeting))
    await hub.say(StartTask(spec))
    while b"trying again" not in (await hub.log(spec.key, preparation=True)).data:
        await asyncio.sleep(0.02)
    hub.closed = False
    assert (await hub.ended(spec.key)).exit_code == 0


async def test_content_that_comes_from_another_hub_is_waited_for(hub, run_agent, greeting, monkeypatch):
    from harch.execution.content import hub_client

    monkeypatch.setattr(hub_client, "POLL_S", 0.05)
    await run_agent(sandbox="off")
    hub.coming["data_code"] = [
        TransferView(digest="", source_hub="tangier", bytes_done=done * 10**6, bytes_total=3 * 10**6)
        for done in range(3)
    ]
    assert (await hub.run(task("true", **given(greeting)))).exit_code == 0
    hub.trees["data_2"] = hub.trees["data_code"]
    hub.coming["data_2"] = [TransferView(digest="", source_hub="tangier", error="the link is gone")]
    lost = Held(
        msgspec.structs.replace(greeting.content, data_id="data_2", digest="0" * 64), _renamed(greeting, "data_2")
    )
    end = await hub.run(task("true", **given(lost)))
    assert end.detail == "E1113 data_2 does not come from hub tangier: the link is gone"


async def test_content_that_no_hub_has_is_said(hub, agent, greeting):
    del hub.trees["data_code"]
    end = await hub.run(task("true", **given(greeting)))
    assert (end.reason, end.detail) == (ExitReason.NOT_STARTED, "E1102 data_code is not here")
    assert b"hint: a hint" in (await hub.log(end.key, preparation=True)).data


async def test_damaged_bytes_never_reach_a_task(hub, agent, greeting):
    name = next(iter(hub.chunks))
    hub.chunks[name] = hub.chunks[name]._replace(payload=hub.chunks[name].payload[::-1])
    end = await hub.run(task("true", **given(greeting)))
    assert end.reason is ExitReason.NOT_STARTED
    assert end.detail.startswith("E1101 ")


# Tags


async def test_content_whose_tag_forbids_this_place_is_not_even_asked_for(hub, agent, greeting, tmp_path):
    from harch.sovereignty.jurisdiction_file import shipped_jurisdictions
    from harch.sovereignty.tags import parse_tag

    elsewhere = parse_tag({"process_in": ["SN"], "rest_in": ["SN"]}, shipped_jurisdictions())
    for held in (
        Held(greeting.content, msgspec.structs.replace(greeting.data, tag=elsewhere)),
        Held(greeting.content, msgspec.structs.replace(greeting.data, tag=None)),
        Held(greeting.content, _renamed(greeting, "data_other")),
    ):
        end = await hub.run(task("true", **given(held)))
        assert end.reason is ExitReason.NOT_STARTED
        assert end.detail.startswith("E0907 ")
    assert hub.requests == []


@pytest.mark.parametrize("says_hub", [True, False])
async def test_what_may_not_rest_here_is_gone_when_the_task_has_ended(hub, agent, greeting, tmp_path, state, says_hub):
    secret = files(tmp_path / "census", rows_txt="who-lives-where")
    rested = hub.add(secret, "before")
    await hub.run(task("true", **given(rested)))
    assert _files_with(state / "content", b"who-lives-where")
    held = hub.add(secret, "census", tag=NOT_HERE_TO_REST)
    code = Held(greeting.content, msgspec.structs.replace(greeting.data, tag=NOT_HERE_TO_REST))
    script = "cp $HARCH_DATA/census/rows.txt result; python train.py"
    script += " && until [ -e $HARCH_CHECKPOINT_DIR/go ]; do sleep 0.01; done"
    hub.forgets = False
    spec = task("sh", "-c", script, environment=OFFLINE, scrub_after=says_hub, **given(held, code))
    await hub.say(StartTask(spec))
    while b"salam" not in (await hub.log(spec.key)).data:
        await asyncio.sleep(0.01)
    answer = await hub.snapshot(spec.key)
    assert answer.code == "E0907"
    (state / "checkpoints" / spec.key.workload_id / "go").touch()
    end = await hub.ended(spec.key)
    assert (end.exit_code, end.scrubbed) == (0, True)
    assert _files_with(state, b"who-lives-where") == []
    assert _files_with(state, b"salam") == [state / "tasks" / f"{spec.key.workload_id}.1.0" / "log" / f"{0:020d}"]


# Crashes


async def test_a_crash_while_a_task_is_prepared_voids_it_and_the_hub_orders_it_again(
    hub, agent_process, mode, greeting, tmp_path
):
    runs = tmp_path / "runs"
    runs.mkdir()
    with PackageIndex(tmp_path, silent=True).listening() as index:
        agent = agent_process(sandbox=mode)
        agent.start()
        spec = task("true", environment=Environment(packages=("greeting",), index_url=index.url))
        await hub.say(StartTask(spec))
        while not index.requests:
            await asyncio.sleep(0.01)
        mark = f"HARCH_WORKLOAD_ID={spec.key.workload_id}".encode()
        pids = [pid for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))) if mark in _environ(pid)]
        agent.kill()
        wait_until(lambda: not any(alive(pid) for pid in pids))
        agent.start()
        await hub.until(lambda: len(hub.hellos) == 2)
        assert [one.key for one in hub.hellos[1].tasks] == []
    again = msgspec.structs.replace(spec, environment=OFFLINE, command=("python", "train.py"), **given(greeting))
    await hub.say(StartTask(again))
    assert (await hub.ended(spec.key)).exit_code == 0
    assert (await hub.log(spec.key)).data == b"salam\n"


async def test_a_fetch_goes_on_where_a_crash_has_cut_it(hub, agent_process, tmp_path, state):
    count, size = 60, 400_000
    big = files(tmp_path / "big", **{f"part{number}_bin": os.urandom(size) for number in range(count)})
    held = hub.add(big, "big")
    agent = agent_process(sandbox="off")
    agent.start()
    spec = task("sh", "-c", "cat $HARCH_DATA/big/* | wc -c", **given(held))
    await hub.say(StartTask(spec))
    folder = state / "content" / "trees" / held.content.digest
    await _until(lambda: folder.is_dir() and any(folder.glob("part*.bin")))
    agent.kill()
    here = sorted(path for path in folder.glob("part*.bin"))
    assert 0 < len(here) < count
    own = {chunk for path in here for chunk in _chunks_of(path)}
    hub.fetched.clear()
    agent.start()
    await hub.until(lambda: len(hub.hellos) == 2)
    await hub.say(StartTask(spec))
    assert (await hub.ended(spec.key)).exit_code == 0
    assert int((await hub.log(spec.key)).data) == count * size
    assert hub.fetched & own == set()


async def test_what_a_surviving_task_uses_stays_when_its_agent_is_new(hub, agent_process, tmp_path, greeting):
    agent = agent_process(sandbox="off", cache_bytes=1)
    agent.start()
    held = hub.add(files(tmp_path / "corpus", part_txt="words"), "corpus")
    script = "import os, time\nprint('ready')\nwhile not os.path.exists('go'): time.sleep(0.01)\n"
    script += "import greeting; print(greeting.WORD, open(os.environ['HARCH_DATA'] + '/corpus/part.txt').read())"
    spec = task("python", "-u", "-c", script, environment=OFFLINE, **given(greeting, held))
    await hub.start(spec)
    while b"ready" not in (await hub.log(spec.key)).data:
        await asyncio.sleep(0.01)
    agent.kill()
    agent.start()
    await hub.until(lambda: len(hub.hellos) == 2)
    other = hub.add(files(tmp_path / "other", part_txt="more words"), "other")
    assert (await hub.run(task("true", **given(other)))).exit_code == 0, "what is not in use makes room"
    work = tmp_path / "state" / "tasks" / f"{spec.key.workload_id}.1.0" / "work"
    (work / "go").touch()
    assert (await hub.ended(spec.key)).exit_code == 0
    assert b"salam words" in (await hub.log(spec.key)).data
    await _until(lambda: list((tmp_path / "state" / "content" / "trees").iterdir()) == [])


async def test_an_agent_that_ends_while_it_prepares_leaves_it_to_the_next(hub, agent_process, greeting):
    hub.held_back = asyncio.Event()
    agent = agent_process(sandbox="off")
    agent.start()
    spec = task("true", **given(greeting))
    await hub.say(StartTask(spec))
    while not hub.asked("fetch"):
        await asyncio.sleep(0.01)
    started_s = time.monotonic()
    assert (await asyncio.to_thread(agent.terminate))[0] == 0
    assert time.monotonic() - started_s < 5
    assert [one for one in hub.messages if isinstance(one, TaskEnded)] == []


async def test_an_agent_that_stops_its_tasks_ends_those_that_are_prepared(hub, agent_process, greeting):
    hub.held_back = asyncio.Event()
    agent = agent_process(sandbox="off", stop_tasks_on_exit=True)
    agent.start()
    spec = task("true", **given(greeting))
    await hub.say(StartTask(spec))
    while not hub.asked("fetch"):
        await asyncio.sleep(0.01)
    terminating = asyncio.create_task(asyncio.to_thread(agent.terminate))
    assert (await hub.ended(spec.key)).reason is ExitReason.AGENT_SHUTDOWN
    assert (await terminating)[0] == 0


async def test_the_files_of_an_environment_are_whole_before_anybody_uses_it(hub, agent_process, greeting, tmp_path):
    """Killed at any moment of a build, the next agent builds anew."""
    agent = agent_process(sandbox="off")
    for delay_s in (0.05, 0.15, 0.25, 0.35):
        hub.hellos.clear()
        agent.start()
        await hub.until(lambda: bool(hub.hellos))
        await hub.say(StartTask(task("sleep", "60", environment=OFFLINE, **given(greeting))))
        await asyncio.sleep(delay_s)
        agent.kill()
    hub.hellos.clear()
    agent.start()
    await hub.until(lambda: bool(hub.hellos))
    spec = task("python", "train.py", environment=OFFLINE, **given(greeting))
    assert (await hub.run(spec)).exit_code == 0


async def _until(condition) -> None:
    async with asyncio.timeout(15):
        while not condition():
            await asyncio.sleep(0.01)


async def _json_of(hub, spec):
    end = await hub.run(spec)
    said = (await hub.log(spec.key)).data.decode()
    assert end.exit_code == 0, (end, said, (await hub.log(spec.key, preparation=True)).data.decode())
    return json.loads(said)


def _chunks_of(path: Path) -> list[bytes]:
    return pack(scan(path, rules=None, bytes_max=1 << 30, entries_max=10)).ids[:-2]  # without manifest and root


def _renamed(held: Held, data_id: str):
    return msgspec.structs.replace(held.data, id=data_id)


def _environ(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


def _files_with(folder: Path, text: bytes) -> list[Path]:
    return sorted(
        path for path in folder.rglob("*") if path.is_file() and not path.is_symlink() and text in path.read_bytes()
    )
