"""A confined worker sees its own files and read-only code, and nothing of the hub, other stages or other people."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec import structs

from harch.execution.isolation.sandbox import Sandbox, choose
from harch.pipelines.act.settings import ActionSettings, ActSettings, SqlSink
from harch.pipelines.sense.gate import PolicyTable
from harch.pipelines.sense.settings import SenseSettings
from harch.pipelines.workers.config import EngineAccess, WorkerConfig, write_config
from harch.pipelines.workers.process import confined, make_ready
from harch.sovereignty.geography import LegalSite

LOOK = """
import os, sys
def tried(what):
    try:
        what()
        return "yes"
    except OSError as error:
        return type(error).__name__
state, config, foreign, package, home = sys.argv[1:]
print(tried(lambda: open(os.path.join(state, "mine"), "w")), tried(lambda: open(config)), tried(lambda: open(foreign)),
      tried(lambda: open(os.path.join(package, "planted.py"), "w")), tried(lambda: os.listdir(home)),
      os.getpid(), os.environ.get("KEY"), os.environ.get("OTHER"), tried(lambda: __import__("numba")))
"""


def config_of(folder: Path) -> WorkerConfig:
    access = EngineAccess(servers=("nats://127.0.0.1:4222",), user="u", seed="s")
    return WorkerConfig(
        worker="think-0",
        stage="think",
        pipeline="p",
        country="MA",
        site=LegalSite(hub="dakhla", country="MA"),
        policy=PolicyTable(1, {"dakhla": 0}),
        juris_mask=1,
        sense=SenseSettings(),
        engine=access,
        act_engine=access,
        state_folder=str(folder / "state" / "think"),
    )


@pytest.mark.needs("bubblewrap")
def test_code_of_users_finds_its_own_folder_and_nothing_to_take_or_to_change(tmp_path: Path) -> None:
    sandbox = choose("auto", tmp_path)
    config, file = config_of(tmp_path), tmp_path / "think-0.json"
    write_config(file, config)
    make_ready(config)
    foreign = tmp_path / "state" / "act" / "ledger.db"
    foreign.parent.mkdir(parents=True)
    foreign.write_text("another stage's")
    package = str(Path(sys.modules["harch"].__file__ or "").parent)
    arguments = confined(sandbox, config, file, {"KEY": "of-the-sink"}, {**os.environ, "OTHER": "of-the-hub"})
    seen = (config.state_folder, str(file), str(foreign), package, str(Path.home()))
    done = subprocess.run(
        [sandbox.program, *arguments, "--", sys.executable, "-c", LOOK, *seen],
        env={},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    own, told, other, planted, home, pid, key, hubs, numba = done.stdout.split()
    assert (own, told, pid, key, hubs, numba) == ("yes", "yes", "1", "of-the-sink", "None", "yes")
    assert other == "FileNotFoundError"
    assert planted == "OSError"  # it is read-only
    assert home in ("FileNotFoundError", "yes")  # the path to a Python below it may be there, and only that
    assert not (Path(package) / "planted.py").exists()
    assert (tmp_path / "state" / "think" / "mine").exists()


def test_a_database_that_an_action_writes_to_is_there_for_act_alone(tmp_path: Path) -> None:
    sink = SqlSink(url=f"sqlite:///{tmp_path}/desk/book.db", statement="insert into t values (:device)")
    act = ActSettings(sinks={"book": sink}, actions=(ActionSettings(name="a", when="x > 0", ttl_s=1, sink="book"),))
    (tmp_path / "desk").mkdir()
    config = config_of(tmp_path)
    found = choose("off", tmp_path)
    sandbox = Sandbox("/usr/bin/bwrap", found.host, "for its arguments")
    for stage, is_there in (("act", True), ("think", False)):
        asked = structs.replace(config, stage=stage, act=act if stage == "act" else None)
        arguments = confined(sandbox, asked, tmp_path / "c.json", {}, {})
        assert (f"{tmp_path}/desk" in arguments) is is_there
