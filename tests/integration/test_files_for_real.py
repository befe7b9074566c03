"""A folder with a `train.py`, a real hub, a real agent, and what somebody types: code there, results and files back."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from harch.testing.hub_process import HubProcess
from harch.testing.samples import TINY_FLEET_TOML

pytestmark = pytest.mark.uses("bubblewrap")
WITHIN_S = 60
TAG = ("--process-in", "MA", "--rest-in", "MA", "--plain-at-rest")
TRAIN = """\
import os, pathlib
from lib import model
print("weights of", model.NAME, flush=True)
out = pathlib.Path("out")
out.mkdir()
(out / "model.pt").write_bytes(b"w" * 1000)
(out / "log.txt").write_text("done")
"""
SERVE = """\
import pathlib, time
pathlib.Path("state.txt").write_text("up")
while not pathlib.Path("stop/now").exists():
    time.sleep(0.05)
print(pathlib.Path("stop/now").read_text())
"""


class Shell:
    """Somebody in a folder of his own, at the hub of this module."""

    def __init__(self, hub: HubProcess, folder: Path) -> None:
        self.folder = folder
        self._environment = {**hub.environment, "XDG_CACHE_HOME": str(folder.parent / "cache"), "NO_COLOR": "1"}

    def write(self, path: str, content: str | bytes) -> None:
        (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / path).write_bytes(content if isinstance(content, bytes) else content.encode())

    def start(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "harch", *words],
            cwd=self.folder,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def harch(self, *words: str, code: int = 0) -> tuple[str, str]:
        out, err = (process := self.start(*words)).communicate(timeout=90)
        assert process.returncode == code, f"{process.returncode}: {out}{err}"
        return out, err

    def json(self, *words: str) -> Any:
        return json.loads(self.harch(*words, "--json")[0])


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubProcess]:
    with HubProcess(TINY_FLEET_TOML, "dakhla", tmp_path_factory.mktemp("hub")) as running:
        yield running


@pytest.fixture
def shell(hub: HubProcess, tmp_path: Path) -> Shell:
    folder = tmp_path / "project"
    folder.mkdir()
    return Shell(hub, folder)


def until(condition: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + WITHIN_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def test_a_train_py_runs_where_its_node_is_and_its_results_come_back(shell: Shell) -> None:
    shell.write("train.py", TRAIN)
    shell.write("lib/model.py", "NAME = 'seven'\n")
    out, err = shell.harch(
        "run", "--name", "training", "--gpus", "1", "--artifact", "weights=out/model.pt", "--", "python3", "train.py"
    )
    assert out == "weights of seven\n"
    assert "code: 2 files, " in err
    assert " 0 chunks sent" in shell.harch("run", "-d", "--", "python3", "train.py")[1]
    (kept,) = shell.json("artifacts", "ls", "training")["items"]
    assert (kept["name"], kept["size_bytes"]) == ("weights", 1000)
    shell.harch("artifacts", "get", "weights")
    assert (shell.folder / "weights/model.pt").read_bytes() == b"w" * 1000
    shell.harch("cp", "training:out", "results")
    assert sorted(path.name for path in (shell.folder / "results").iterdir()) == ["log.txt", "model.pt"]
    shell.harch("cp", "training:out/log.txt", "mine.txt")
    assert (shell.folder / "mine.txt").read_text() == "done"
    assert "E1111" in shell.harch("cp", "training:none", ".", code=1)[1]


def write_wheel(shell: Shell, name: str, code: str) -> None:
    about = f"{name}-1.0.dist-info"
    files = {
        f"{name}.py": code,
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    (shell.folder / "wheels").mkdir()
    with zipfile.ZipFile(shell.folder / f"wheels/{name}-1.0-py3-none-any.whl", "w") as wheel:
        for path, content in files.items():
            wheel.writestr(path, content)
        wheel.writestr(f"{about}/RECORD", "".join(f"{path},,\n" for path in (*files, f"{about}/RECORD")))


def test_packages_are_installed_where_it_runs_and_what_fails_is_in_the_log_of_the_preparation(shell: Shell) -> None:
    write_wheel(shell, "greeting", "WORD = 'salam'\n")
    shell.write("hello.py", "import greeting\nprint(greeting.WORD)\n")
    shell.write("requirements.txt", "greeting==1.0\n")
    words = ("--requirements", "requirements.txt", "--wheels", "wheels", "--", "python", "hello.py")
    assert shell.harch("run", *words)[0] == "salam\n"
    shell.write("requirements.txt", "farewell==1.0\n")
    _, err = shell.harch("run", "--name", "doomed", *words, code=1)
    assert "E1120" in err
    assert "farewell" in shell.harch("logs", "doomed", "--preparation")[0]


def test_files_go_into_work_that_runs(shell: Shell) -> None:
    shell.write("serve.py", SERVE)
    following = shell.start("run", "--name", "serving", "--", "python3", "serve.py")
    until(lambda: "state.txt" in shell.start("cp", "serving:state.txt", ".").communicate()[0])
    shell.write("bye.txt", "bye")
    shell.harch("cp", "bye.txt", "serving:stop/now")
    assert following.communicate(timeout=60)[0] == "bye\n"
    assert following.returncode == 0


def test_data_that_is_held_is_read_by_work_and_fetched_again(shell: Shell) -> None:
    shell.write("corpus/a.txt", "aaa\n")
    shell.write("corpus/more/b.txt", "bbb\n")
    shell.harch("data", "add", "corpus", "--files", "corpus", *TAG)
    out, _ = shell.harch("run", "--no-code", "--data", "corpus", "--", "sh", "-c", "cat $HARCH_DATA/corpus/more/b.txt")
    assert out == "bbb\n"
    shell.harch("data", "get", "corpus", "again")
    assert (shell.folder / "again/more/b.txt").read_text() == "bbb\n"
    shell.harch("data", "rm", "corpus")
    assert "E0906" in shell.harch("data", "get", "corpus", code=1)[1]


def test_an_uploader_that_is_killed_goes_on_where_it_was(shell: Shell, hub: HubProcess) -> None:
    noise = random.Random(1)
    for number in range(6):
        shell.write(f"part{number}.bin", noise.randbytes(8_000_000))
    shell.write("train.py", "print('here')\n")
    before = shell.json("content", "status")["bytes_stored"]
    uploader = shell.start("run", "-d", "--", "python3", "train.py")
    until(lambda: uploader.poll() is not None or shell.json("content", "status")["bytes_stored"] > before)
    uploader.kill()
    uploader.communicate()
    listed = shell.json("data", "ls")["items"]
    out, err = shell.harch("run", "--", "python3", "train.py")
    assert out == "here\n"
    assert "code: 7 files, 48 MB, " in err
    assert len(shell.json("data", "ls")["items"]) <= len(listed) + 1
    assert shell.json("content", "check")["damaged"] == []


def test_operators_see_collect_and_check_the_store(shell: Shell) -> None:
    shell.write("train.py", "1\n")
    shell.harch("run", "-d", "--", "python3", "train.py")
    status = shell.json("content", "status")
    assert status["hub"] == "dakhla"
    assert [one["tenant"] for one in status["tenants"]] == ["default"]
    assert shell.json("content", "collect")["chunks"] >= 0
    checked = shell.json("content", "check")
    assert (checked["damaged"], checked["missing"], checked["chunks"] > 0) == ([], [], True)


def test_code_of_another_country_is_not_sent(shell: Shell) -> None:
    shell.write("harch.toml", '[code]\ncountries = ["SN"]\n')
    shell.write("secret.py", os.urandom(100).hex())
    before = shell.json("content", "status")["bytes_stored"]
    assert "error[E0907]" in shell.harch("run", "--", "python3", "secret.py", code=4)[1]
    assert shell.json("content", "status")["bytes_stored"] == before
