"""`harch hub kill` touches only what `harch up` has started here."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from harch.base.config import Home
from harch.base.errors import HarchError
from harch.cli.contexts import remember
from harch.cli.local_federation import HUB_RECORD
from harch.cli.local_hubs import kill_hub, local_home
from harch.execution.kernel import start_ticks
from harch.execution.process_record import ProcessRecord, write_record


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "60"]) as sleeping:
        yield sleeping
        sleeping.kill()


def record(home: Home, pid: int, ticks: int) -> None:
    write_record(home.hub("dakhla") / HUB_RECORD, ProcessRecord(pid, ticks, ""))


def test_the_hub_that_was_written_down_is_killed(tmp_path: Path, process: subprocess.Popen[bytes]) -> None:
    record(Home(tmp_path), process.pid, start_ticks(process.pid))
    assert kill_hub(Home(tmp_path), "dakhla") == process.pid
    assert process.wait(10) == -9


def test_a_hub_that_does_not_run_here_is_refused(tmp_path: Path, process: subprocess.Popen[bytes]) -> None:
    home = Home(tmp_path)
    record(home, process.pid, start_ticks(process.pid) - 1)  # the pid is somebody else's by now
    for hub_id in ("dakhla", "dakar", "../dakhla"):
        with pytest.raises(HarchError, match="runs no hub") as refused:
            kill_hub(home, hub_id)
        assert refused.value.code == "E0305"
    assert process.poll() is None


def test_the_state_folder_is_the_one_of_the_folder_or_of_the_context_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("HARCH_HOME", str(tmp_path / "named"))
    assert local_home() == Home(tmp_path / "named"), "the only one that is known"
    remember("field", ("http://127.0.0.1:7701",), tmp_path / "elsewhere" / "admin.key")
    assert local_home() == Home(tmp_path / "elsewhere")
    (tmp_path / "named").mkdir()
    (tmp_path / "named" / "admin.key").write_text("key")
    assert local_home() == Home(tmp_path / "named")
