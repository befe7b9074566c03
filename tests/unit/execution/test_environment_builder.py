"""What a build gets to see, what it is told, and what is said of one that failed."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from harch.base.errors import HarchError
from harch.execution.content import environments as module
from harch.execution.content.cache import NodeCache
from harch.execution.content.cancellation import Cancellation, Cancelled, Slots
from harch.execution.content.environments import BuildSite, EnvironmentBuilder, Uv, find_uv
from harch.execution.content.pythons import Python
from harch.execution.guarded_process import GuardedCommand, ProcessResult
from harch.execution.isolation.sandbox import HostLayout, Sandbox
from harch.execution.protocol import TaskKey, TaskSpec
from harch.execution.trash import Trash
from harch.workloads.spec import Environment

OWN = Python("3.12.3", "cpython", "/opt/py/bin/python3.12", "/opt/py")
ENVIRON = {
    "UV_DEFAULT_INDEX": "https://user:word@index.example/simple",
    "UV_INDEX_TEAM_PASSWORD": "word",
    "HTTPS_PROXY": "http://proxy.example:3128",
    "SSL_CERT_FILE": "/opt/certs/ca.pem",
    "HOME": "/nonexistent",
    "HARCH_API_KEY": "key of the agent",
    "AWS_SECRET_ACCESS_KEY": "secret of the agent",
    "UV_CACHE_DIR": "/elsewhere",
    "LD_PRELOAD": "/elsewhere.so",
}


class Runs:
    """In place of programs: takes notes, and makes the folder that `uv venv` would make."""

    def __init__(self, result: ProcessResult | None = None) -> None:
        self.commands: list[GuardedCommand] = []
        self._result = result or ProcessResult(0, ())

    def __call__(self, command: GuardedCommand, **_: object) -> ProcessResult:
        self.commands.append(command)
        if command.argv[1] == "venv":
            Path(command.argv[-1]).mkdir()
        return self._result

    @property
    def words(self) -> list[list[str]]:
        return [[word for word in one.argv[1:] if not word.startswith("/")] for one in self.commands]


@pytest.fixture
def runs(monkeypatch) -> Runs:
    runs = Runs()
    monkeypatch.setattr(module, "run_guarded", runs)
    return runs


@pytest.fixture
def builder(tmp_path) -> EnvironmentBuilder:
    (tmp_path / "trash").mkdir()
    now = datetime(2026, 1, 1, tzinfo=UTC)
    cache = NodeCache(tmp_path / "content", Trash(tmp_path / "trash"), lambda: now, boot_id="b", bytes_max=10**9)
    cache.open()
    return EnvironmentBuilder(
        uv=Uv("/opt/bin/uv", "0.9.1"),
        own=OWN,
        pythons=[Python("3.13.0", "cpython", f"{tmp_path}/bin/python3.13", str(tmp_path))],
        cache=cache,
        root=tmp_path / "content" / "environments",
        sandbox=Sandbox("", HostLayout((), ()), ""),
        hidden=(f"{tmp_path}/state",),
        environ=ENVIRON,
    )


def prepare(builder: EnvironmentBuilder, tmp_path: Path, environment: Environment, *, may_rest: bool = True, **changes):
    work = tmp_path / "work"
    work.mkdir(exist_ok=True)
    task = TaskSpec(
        key=TaskKey("wl_1", 1, 0),
        name="n",
        tenant="t",
        node_id="n1",
        gpu_ids=(),
        gpu_indexes=(),
        gpus_modelled=True,
        environment=environment,
        **changes,
    )
    site = BuildSite(work, is_shared=False, private=tmp_path / "task" / "content", may_rest=may_rest, cgroups=())
    said: list[bytes] = []
    return builder.prepare(task, site, said.append, Cancellation()), b"".join(said).decode()


def test_a_build_sees_how_to_reach_an_index_and_nothing_else_of_the_agent(builder, runs, tmp_path):
    _, said = prepare(builder, tmp_path, Environment(packages=("numpy",)))
    env = runs.commands[-1].env
    assert {name: env[name] for name in ENVIRON if name in env and name not in ("HOME", "UV_CACHE_DIR")} == {
        name: ENVIRON[name] for name in ("UV_DEFAULT_INDEX", "UV_INDEX_TEAM_PASSWORD", "HTTPS_PROXY", "SSL_CERT_FILE")
    }
    assert env["UV_CACHE_DIR"].endswith("/packages")
    assert env["HOME"].startswith(str(tmp_path))
    assert "word" not in said, "passwords are in no log"
    assert all("word" not in " ".join(one.argv) for one in runs.commands), "nor on a command line"


def test_an_index_of_the_specification_takes_the_place_of_the_nodes_own(builder, runs, tmp_path):
    prepare(builder, tmp_path, Environment(packages=("numpy",), index_url="https://me:word@other.example/simple"))
    env = runs.commands[-1].env
    assert env["UV_DEFAULT_INDEX"] == "https://me:word@other.example/simple"
    assert "UV_INDEX_TEAM_PASSWORD" not in env
    assert all("word" not in " ".join(one.argv) for one in runs.commands)
    (tmp_path / "work" / "wheels").mkdir()
    prepare(builder, tmp_path, Environment(packages=("numpy",), wheels="wheels"))
    assert "UV_DEFAULT_INDEX" not in runs.commands[-1].env
    assert "--no-index" in runs.commands[-1].argv


def test_another_index_of_the_node_means_another_environment(builder, runs, tmp_path):
    first, _ = prepare(builder, tmp_path, Environment(packages=("numpy",)))
    other = replace(builder, environ=ENVIRON | {"UV_DEFAULT_INDEX": "https://other.example/simple"})
    second, _ = prepare(other, tmp_path, Environment(packages=("numpy",)))
    same = replace(builder, environ=ENVIRON | {"HTTPS_PROXY": "", "HARCH_API_KEY": "another"})
    third, _ = prepare(same, tmp_path, Environment(packages=("numpy",)))
    assert first.path == third.path != second.path
    assert len([one for one in runs.words if one[0] == "pip"]) == 2


def test_the_nodes_own_settings_are_a_file_that_counts(builder, runs, tmp_path):
    settings = tmp_path / "uv.toml"
    settings.write_text("offline = true")
    node = replace(builder, environ={"UV_CONFIG_FILE": str(settings)})
    first, _ = prepare(node, tmp_path, Environment(packages=("numpy",)))
    assert runs.commands[-1].argv[runs.commands[-1].argv.index("--config-file") + 1] == str(settings)
    settings.write_text("offline = false")
    second, _ = prepare(node, tmp_path, Environment(packages=("numpy",)))
    assert first.path != second.path
    prepare(node, tmp_path, Environment(packages=("numpy",), index_url="https://other.example/simple"))
    assert "--no-config" in runs.commands[-1].argv


def test_a_python_beside_which_hidden_folders_lie_is_not_shown_to_tasks(builder, runs, tmp_path):
    assert builder.features()["pythons"] == "3.12.3"
    with pytest.raises(HarchError) as caught:
        prepare(builder, tmp_path, Environment(python="3.13"))
    assert (caught.value.code, runs.commands) == ("E1122", [])


@pytest.mark.parametrize(
    ("result", "why"),
    [
        (ProcessResult(1, ("a", "no such package")), "could not be built: a; no such package"),
        (ProcessResult(2, ()), "could not be built: uv ended with exit code 2"),
        (ProcessResult(137, ("x",)), "uv was killed; a build has the memory of its task, 1.5 GB. x"),
        (ProcessResult(-9, ()), "uv was killed; a build has the memory of its task, 1.5 GB."),
        (ProcessResult(-9, (), timed_out=True), "was not built within 30 minutes"),
    ],
)
def test_a_failed_build_is_told_in_words_and_leaves_nothing(builder, monkeypatch, tmp_path, result, why):
    monkeypatch.setattr(module, "run_guarded", Runs(result))
    with pytest.raises(HarchError) as caught:
        prepare(builder, tmp_path, Environment(packages=("numpy",)), memory_gb=1.5)
    assert caught.value.code == "E1120"
    assert why in caught.value.message
    assert list((tmp_path / "content" / "environments").glob("*/building/*")) == []
    assert list((tmp_path / "content" / "environments").glob("*/ready/*")) == []


def test_a_program_that_is_not_there_any_more_is_an_error_of_the_node(builder, monkeypatch, tmp_path):
    def gone(command: GuardedCommand, **_: object) -> ProcessResult:
        raise FileNotFoundError(2, "No such file", "/opt/bin/uv")

    monkeypatch.setattr(module, "run_guarded", gone)
    with pytest.raises(HarchError) as caught:
        prepare(builder, tmp_path, Environment())
    assert caught.value.code == "E1121"


def test_what_may_not_rest_is_built_with_a_cache_of_its_own(builder, runs, tmp_path):
    prepared, _ = prepare(builder, tmp_path, Environment(packages=("numpy",)), may_rest=False)
    private = tmp_path / "task" / "content"
    assert prepared.path == str(private / "environment")
    assert (prepared.uses, runs.commands[-1].env["UV_CACHE_DIR"]) == ((), str(private / "packages"))
    assert list((tmp_path / "content" / "environments").iterdir()) == []


def test_uv_is_found_beside_the_interpreter_or_on_the_path(tmp_path, monkeypatch):
    monkeypatch.setattr(module.sys, "prefix", str(tmp_path / "venv"))
    assert find_uv({"PATH": str(tmp_path)}).path == ""
    for folder, answer in ((tmp_path, "uv 0.9.1"), (tmp_path / "venv" / "bin", "uv 1.2.3 (abc)")):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "uv").write_text(f"#!/bin/sh\necho '{answer}'\n")
        (folder / "uv").chmod(0o755)
        assert find_uv({"PATH": str(tmp_path)}) == Uv(str(folder / "uv"), answer.split()[1])
    (tmp_path / "venv" / "bin" / "uv").write_text("#!/bin/sh\nexit 1\n")
    assert "does not work" in find_uv({}).detail


def test_only_so_many_transfers_go_on_at_once_and_those_that_wait_can_be_called_off():
    slots, inside, go_on = Slots(2), [], threading.Event()

    def take(number: int, cancellation: Cancellation) -> None:
        try:
            with slots.taken(cancellation):
                inside.append(number)
                go_on.wait(5)
        except Cancelled:
            inside.append(-number)

    cancellations = [Cancellation() for _ in range(5)]
    threads = [threading.Thread(target=take, args=(number, one)) for number, one in enumerate(cancellations, 1)]
    for number, thread in enumerate(threads, 1):
        thread.start()
        _until(lambda: len(inside) + len(slots._waiting) == number)  # noqa: B023
    assert (len(inside), len(slots._waiting)) == (2, 3)
    cancellations[2].cancel()
    _until(lambda: -3 in inside)
    assert sorted(one for one in inside if one > 0) == [1, 2]
    go_on.set()
    for thread in threads:
        thread.join(5)
    assert sorted(one for one in inside if one > 0) == [1, 2, 4, 5]
    with slots.taken(Cancellation()), slots.taken(Cancellation()):
        pass


def _until(condition) -> None:
    pause = threading.Event()
    for _ in range(5000):
        if condition():
            return
        pause.wait(0.001)
    raise AssertionError("it never came true")
