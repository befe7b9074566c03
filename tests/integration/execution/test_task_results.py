"""What a task leaves: its artifacts at the hub, and its files on the node for those who ask."""

from __future__ import annotations

import asyncio
import os

import pytest
from content_fakes import ContentHub, files, given
from execution_fakes import API_KEY, task

from harch.execution import agent_process as agent_process_module
from harch.execution import task_leftovers
from harch.execution.admission import AgentConfig
from harch.execution.agent_process import serve
from harch.execution.protocol import ContentUse, KnownTask, PauseTask, StartTask, StopTask, TaskEnded, TaskKey
from harch.workloads.lifecycle import ExitReason
from harch.workloads.spec import Artifact, Environment


@pytest.fixture
async def hub():
    async with ContentHub().listening() as hub:
        yield hub


MODEL, LOGS = Artifact(name="model", path="out/model"), Artifact(name="metrics", path="metrics.json")
TRAIN = "mkdir -p out/model/deep; echo weights > out/model/w.bin; echo more > out/model/deep/d; echo 1 > metrics.json"


async def test_declared_files_are_at_the_hub_before_the_end_is_told(hub, agent):
    end = await hub.run(task("sh", "-c", TRAIN, artifacts=(MODEL, LOGS)))
    assert (end.reason, end.exit_code, end.artifacts_lost) == (ExitReason.EXITED, 0, ())
    model, metrics = end.artifacts
    assert (model.name, model.files, model.size_bytes) == ("model", 2, len("weights\nmore\n"))
    assert hub.unpack(model.digest) == {"w.bin": b"weights\n", "deep/d": b"more\n"}
    assert hub.unpack(metrics.digest) == {"metrics.json": b"1\n"}


async def test_what_was_not_written_is_lost_and_the_rest_is_kept(hub, agent):
    wanted = (Artifact(name="none", path="out/none"), Artifact(name="linked", path="link/model"), MODEL)
    end = await hub.run(task("sh", "-c", f"{TRAIN}; ln -s out link", artifacts=wanted))
    assert [one.name for one in end.artifacts] == ["model"]
    none, linked = end.artifacts_lost
    assert none == "none: E1111 the working folder has no `out/none`"
    assert linked.startswith("linked: E1111 `link/model` leads through a link")


@pytest.mark.parametrize("script", [f"{TRAIN}; exit 3", f"{TRAIN}; kill -9 $$"])
async def test_a_task_that_ended_badly_keeps_nothing(hub, agent, script):
    end = await hub.run(task("sh", "-c", script, artifacts=(MODEL,)))
    assert (end.artifacts, end.artifacts_lost) == ((), ())
    assert hub.requests == []


async def test_only_rank_0_keeps_artifacts_and_what_is_scrubbed_keeps_none(hub, agent):
    other = task("sh", "-c", TRAIN, artifacts=(MODEL,))
    end = await hub.run(task("sh", "-c", TRAIN, artifacts=(MODEL,), key=TaskKey(other.key.workload_id, 1, 1)))
    assert (end.exit_code, end.artifacts) == (0, ())
    end = await hub.run(task("sh", "-c", TRAIN, artifacts=(MODEL,), scrub_after=True))
    assert (end.exit_code, end.artifacts, end.scrubbed) == (0, (), True)
    assert hub.requests == []


async def test_the_end_waits_for_the_hub_and_the_task_counts_as_running_meanwhile(hub, agent):
    hub.closed = True
    spec = task("sh", "-c", TRAIN, artifacts=(MODEL,))
    started = await hub.start(spec)
    await _until(lambda: hub.refused)
    await hub.hang_up()
    await hub.until(lambda: len(hub.hellos) == 2)
    assert hub.hellos[1].tasks == (KnownTask(key=spec.key, running=True, started_at=started.at),)
    assert [one for one in hub.messages if isinstance(one, TaskEnded)] == []
    hub.closed = False
    end = await hub.ended(spec.key)
    assert [one.name for one in end.artifacts] == ["model"]


async def test_a_stop_gives_up_what_is_still_on_its_way(hub, agent):
    hub.closed = True
    spec = task("sh", "-c", TRAIN, artifacts=(MODEL, LOGS))
    await hub.start(spec)
    await _until(lambda: hub.refused)
    await hub.say(StopTask(spec.key, 1.0))
    end = await hub.ended(spec.key)
    assert (end.reason, end.exit_code, end.artifacts) == (ExitReason.EXITED, 0, ())
    assert end.artifacts_lost == tuple(f"{one.name}: the task was stopped before it was kept" for one in (MODEL, LOGS))


async def test_a_scrub_that_is_ordered_meanwhile_wins(hub, agent, state):
    hub.closed = True
    spec = task("sh", "-c", TRAIN, artifacts=(MODEL,))
    await hub.start(spec)
    await _until(lambda: hub.refused)
    hub.forgets = False
    await hub.say(StopTask(spec.key, 1.0, scrub=True))
    end = await hub.ended(spec.key)
    assert (end.artifacts, end.scrubbed) == ((), True)
    assert not (state / "tasks" / f"{spec.key.workload_id}.1.0" / "work").exists()


async def test_an_upload_that_a_crash_has_cut_is_ended_by_the_next_agent(hub, agent_process, mode, tmp_path):
    agent = agent_process(sandbox=mode)
    agent.start()
    hub.held_back = asyncio.Event()
    spec = task("sh", "-c", f"{TRAIN}; head -c 3000000 /dev/urandom > out/model/big", artifacts=(MODEL,))
    await hub.start(spec)
    while not hub.asked("chunks"):
        await asyncio.sleep(0.01)
    agent.kill()
    hub.held_back.set()
    hub.held_back, hub.forgets = None, False
    agent.start()
    end = await hub.ended(spec.key)
    assert (end.exit_code, [one.files for one in end.artifacts]) == (0, [3])
    assert len(hub.unpack(end.artifacts[0].digest)["big"]) == 3_000_000
    asked = len(hub.requests)
    agent.kill()
    hub.messages.clear()
    agent.start()
    assert await hub.ended(spec.key) == end, "told again as it was"
    assert len(hub.requests) == asked, "and not uploaded again"


@pytest.mark.parametrize("stops", [True, False])
async def test_the_end_of_the_agent_does_not_give_up_what_is_on_its_way(hub, state, monkeypatch, stops):
    for name in ("SHUTDOWN_GRACE_S", "SHUTDOWN_KILL_S"):
        monkeypatch.setattr(agent_process_module, name, 0.1)
    config = AgentConfig(
        hub_url=hub.url,
        api_key=API_KEY,
        agent_id="agent-1",
        state_dir=state,
        country="MA",
        sandbox="off",
        stop_tasks_on_exit=stops,
    )
    stop = asyncio.Event()
    running = asyncio.create_task(serve(config, stop=stop))
    hub.closed = True
    spec = task("sh", "-c", TRAIN, artifacts=(MODEL,))
    await hub.start(spec)
    await _until(lambda: hub.refused)
    stop.set()
    await running
    assert [one for one in hub.messages if isinstance(one, TaskEnded)] == []
    hub.closed = False
    stop.clear()
    running = asyncio.create_task(serve(config, stop=stop))
    assert [one.name for one in (await hub.ended(spec.key)).artifacts] == ["model"]
    stop.set()
    await running


async def test_what_must_be_scrubbed_is_not_kept_by_the_next_agent_either(hub, agent_process, state):
    agent = agent_process(sandbox="off")
    agent.start()
    hub.closed, hub.forgets = True, False
    spec = task("sh", "-c", TRAIN, artifacts=(MODEL,))
    await hub.start(spec)
    await _until(lambda: hub.refused)
    agent.kill()
    (state / "tasks" / f"{spec.key.workload_id}.1.0" / "scrub").touch()
    hub.closed = False
    agent.start()
    end = await hub.ended(spec.key)
    assert (end.artifacts, end.scrubbed, hub.requests) == ((), True, [])


# Files of work


async def test_files_of_a_running_task_can_be_read_and_brought(hub, agent):
    spec = task(
        "sh", "-c", "mkdir -p out; echo 1 > out/step; echo ready; until [ -e go/on ]; do sleep 0.01; done; cat go/on"
    )
    await hub.start(spec)
    await _said(hub, spec, b"ready")
    answer = await hub.snapshot(spec.key, "out")
    assert (answer.code, answer.files, answer.size_bytes) == ("", 1, 2)
    assert hub.unpack(answer.digest) == {"step": b"1\n"}
    single = await hub.snapshot(spec.key, "out/step")
    assert hub.unpack(single.digest) == {"step": b"1\n"}
    missing = await hub.snapshot(spec.key, "out/none")
    assert (missing.code, missing.message) == ("E1111", "the working folder has no `out/none`")
    placed = await hub.place(spec.key, "go", _tree(hub, on=b"brought\n"))
    assert (placed.code, placed.files, placed.size_bytes) == ("", 1, 8)
    assert (await hub.ended(spec.key)).exit_code == 0
    assert b"brought" in (await hub.log(spec.key)).data


async def test_files_of_an_ended_task_stay_for_a_while_and_cannot_be_changed(hub, agent, state):
    spec = task("sh", "-c", "echo result > result; mkdir empty; chmod 500 empty")
    await hub.run(spec)
    await _until(lambda: not list((state / "tasks").iterdir()))
    answer = await hub.snapshot(spec.key)
    assert hub.unpack(answer.digest) == {"result": b"result\n"}
    refused = await hub.place(spec.key, ".", _tree(hub, on=b"x"))
    assert (refused.code, refused.message) == ("E0304", "the task does not run")


async def test_files_that_made_room_are_said_to_be_gone(hub, run_agent, state):
    await run_agent(sandbox="off", kept_work_bytes=200_000)
    old, new = (task("sh", "-c", f"head -c 150000 /dev/zero > {name}") for name in ("old", "new"))
    for spec in (old, new):
        await hub.run(spec)
        await _until(lambda: not list((state / "tasks").iterdir()))
    await _until(lambda: len(list((state / "work").iterdir())) == 1)
    gone = await hub.snapshot(old.key)
    assert (gone.code, gone.hint) == ("E1112", "declare what must stay as `artifacts`")
    assert (await hub.snapshot(new.key)).files == 1


async def test_what_was_scrubbed_or_never_started_is_not_kept(hub, agent, state, tmp_path):
    code = hub.add(files(tmp_path / "code", train_py="x"), "code", ContentUse.CODE)
    scrubbed = task("sh", "-c", "echo x > file", scrub_after=True)
    unstarted = task("true", environment=Environment(python="3.99"), **given(code))
    await hub.run(scrubbed)
    assert (await hub.run(unstarted)).reason is ExitReason.NOT_STARTED
    await _until(lambda: not list((state / "tasks").iterdir()))
    assert list((state / "work").iterdir()) == []
    for spec in (scrubbed, unstarted):
        assert (await hub.snapshot(spec.key)).code == "E1112"


async def test_files_that_could_not_be_scrubbed_are_not_kept_for_anybody(hub, run_agent, state, monkeypatch):
    monkeypatch.setattr(task_leftovers, "delete", lambda folder: None)
    await run_agent(sandbox="off")
    spec = task("sh", "-c", "echo x > file", scrub_after=True)
    assert not (await hub.run(spec)).scrubbed
    await _until(lambda: not list((state / "tasks").iterdir()))
    assert (await hub.snapshot(spec.key)).code == "E1112"


async def test_links_of_a_task_lead_nowhere(hub, agent, tmp_path):
    """A task that plants links gets neither a file of the node into a snapshot nor one of its own onto the node."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("secret of the node")
    script = f"ln -s {outside} folder; ln -s {outside}/secret file; echo ready; sleep 60"
    spec = task("sh", "-c", script)
    await hub.start(spec)
    await _said(hub, spec, b"ready")
    for path in ("folder", "folder/secret", "file/x"):
        assert (await hub.snapshot(spec.key, path)).code in ("E1111", "E1106"), path
    for path in ("../../..", "/etc", "a/../../x"):
        assert (await hub.snapshot(spec.key, path)).code == "E1111", path
    whole = await hub.snapshot(spec.key)
    assert whole.code == ""
    assert hub.unpack(whole.digest) == {}, "links are kept as links"
    digest = _tree(hub, secret=b"changed")
    assert (await hub.place(spec.key, "folder", digest)).code == "E1111"
    assert (await hub.place(spec.key, "..", digest)).code == "E1111"
    placed = await hub.place(spec.key, ".", _tree(hub, file=b"in place of the link"))
    assert placed.code == ""
    assert (outside / "secret").read_text() == "secret of the node"
    assert sorted(os.listdir(outside)) == ["secret"]


async def test_a_task_that_swaps_folders_for_links_wins_no_race(hub, agent, tmp_path):
    outside = tmp_path / "outside"
    (outside / "deep").mkdir(parents=True)
    (outside / "deep" / "secret").write_text("secret of the node")
    script = f"""
mkdir -p real/deep; echo own > real/deep/secret; ln -s {outside} trap; echo ready
while :; do mv real swap; mv trap real; mv real trap; mv swap real; done
"""
    spec = task("sh", "-c", script)
    await hub.start(spec)
    await _said(hub, spec, b"ready")
    digest = _tree(hub, secret=b"changed")
    for _ in range(25):
        answer = await hub.snapshot(spec.key, "real/deep")
        if not answer.code:
            assert hub.unpack(answer.digest).get("secret", b"own\n") in (b"own\n", b"changed")
        await hub.place(spec.key, "real/deep", digest)
    assert (outside / "deep" / "secret").read_text() == "secret of the node"


async def test_a_task_that_is_not_there_yet_or_paused_is_answered_too(hub, agent, tmp_path):
    hub.held_back = asyncio.Event()
    code = hub.add(files(tmp_path / "code", train_py="x"), "code", ContentUse.CODE)
    preparing = task("true", **given(code))
    await hub.say(StartTask(preparing))
    while not hub.asked("fetch"):
        await asyncio.sleep(0.01)
    assert (await hub.snapshot(preparing.key)).code == "E1111"
    assert (await hub.place(preparing.key, ".", "0" * 64)).code == "E0304"
    hub.held_back.set()
    await hub.ended(preparing.key)
    paused = task("sh", "-c", "echo x > file; echo ready; sleep 60")
    await hub.start(paused)
    await _said(hub, paused, b"ready")
    await hub.say(PauseTask(paused.key))
    assert (await hub.snapshot(paused.key)).files == 1
    assert (await hub.snapshot(task().key)).code == "E1112"


async def test_an_answer_is_never_given_on_another_connection(hub, agent):
    """Request numbers of a hub that was started again mean other requests."""
    spec = task("sh", "-c", "echo x > file; echo ready; sleep 60")
    await hub.start(spec)
    await _said(hub, spec, b"ready")
    hub.held_back = asyncio.Event()
    asking = asyncio.create_task(hub.snapshot(spec.key))
    while not hub.asked("chunks"):
        await asyncio.sleep(0.01)
    await hub.hang_up()
    await hub.until(lambda: len(hub.hellos) == 2)
    hub.held_back.set()
    again = await hub.snapshot(spec.key)
    assert again.files == 1
    assert not asking.done()
    asking.cancel()


async def test_the_working_folder_of_a_shared_place_is_served_while_it_runs(hub, run_agent, tmp_path):
    await run_agent(sandbox="off", share=(tmp_path,))
    shared = files(tmp_path / "shared", data_txt="shared")
    spec = task(
        "sh", "-c", "echo ready; until [ -e go ]; do sleep 0.01; done", working_dir=str(shared), artifacts=(LOGS,)
    )
    await hub.start(spec)
    await _said(hub, spec, b"ready")
    assert hub.unpack((await hub.snapshot(spec.key)).digest) == {"data.txt": b"shared"}
    (shared / "metrics.json").write_text("2")
    (shared / "go").touch()
    end = await hub.ended(spec.key)
    assert hub.unpack(end.artifacts[0].digest) == {"metrics.json": b"2"}
    assert (shared / "data.txt").exists()


def _tree(hub: ContentHub, **contents: bytes) -> str:
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as folder:
        for name, content in contents.items():
            (Path(folder) / name).write_bytes(content)
        return hub.add(Path(folder), "placed").content.digest


async def _said(hub, spec, word: bytes) -> None:
    async with asyncio.timeout(15):
        while word not in (await hub.log(spec.key)).data:
            await asyncio.sleep(0.01)


async def _until(condition) -> None:
    async with asyncio.timeout(15):
        while not condition():
            await asyncio.sleep(0.01)
