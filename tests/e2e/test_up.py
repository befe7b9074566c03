"""A newcomer's journey: start the federation, run work, ask why, kill a hub, stop, and find everything again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import httpx
import pytest
from click.testing import CliRunner
from rich.cells import cell_len

from harch.cli.main import root
from harch.testing.ports import free_port_base

pytestmark = pytest.mark.uses("bubblewrap")

HARCH = [sys.executable, "-m", "harch"]
HUBS = ("dakhla", "tangier", "casablanca", "dakar", "abidjan")


class Federation:
    """`harch up` in a folder of its own."""

    def __init__(self, home: Path) -> None:
        self.folder = home / "typed-here"
        self.folder.mkdir(parents=True)
        self.environment = {**os.environ, "HARCH_HOME": str(home), "HARCH_PORT_BASE": str(free_port_base())}
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen([*HARCH, "up"], env=self.environment, stdout=subprocess.PIPE, text=True)
        self.said: list[str] = []
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said.append(line.rstrip())
            if "Ctrl-C" in line:
                return
        raise AssertionError(f"`harch up` ended: {self.said}")

    def interrupt(self) -> int:
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(60)

    def harch(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = [*HARCH, *words]
        # In a folder of its own: where a project is, its code would travel.
        return subprocess.run(
            command, env=self.environment, cwd=self.folder, capture_output=True, text=True, timeout=60
        )

    def json(self, *words: str) -> Any:
        done = self.harch(words[0], "--json", *words[1:])
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout)

    def url(self, hub_id: str) -> str:
        return f"http://127.0.0.1:{int(self.environment['HARCH_PORT_BASE']) + 1 + HUBS.index(hub_id)}"

    def row(self, hub_id: str, name: str, **params: str) -> Any:
        """A workload as a hub lists it. Asked again and again, the API costs less than a command."""
        key = (Path(self.environment["HARCH_HOME"]) / "admin.key").read_text().strip()
        page = httpx.get(
            f"{self.url(hub_id)}/v1/workloads", params={"name": name, **params}, headers={"X-API-Key": key}
        )
        return next(iter(page.json()["items"]), {"status": "absent"})

    def processes(self) -> list[int]:
        """Everything on this machine that was started with our state folder."""
        mark = f"HARCH_HOME={self.environment['HARCH_HOME']}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal() and int(entry.name) != os.getpid():
                try:
                    if mark in (entry / "environ").read_bytes().split(b"\0"):
                        found.append(int(entry.name))
                except OSError:
                    continue
        return found


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    made = Federation(tmp_path_factory.mktemp("up") / "state")
    yield made
    if made.process.poll() is None:
        made.interrupt()


def test_it_says_one_line_per_hub_the_address_the_key_file_and_three_things_to_try(federation: Federation) -> None:
    text = "\n".join(federation.said)
    for name, gpus in {"Dakhla": 640, "Tangier": 320, "Casablanca": 464, "Dakar": 214, "Abidjan": 160}.items():
        (line,) = [line for line in federation.said if line.startswith(name)]
        assert str(gpus) in line
        assert "modelled" in line
    key_file = Path(federation.environment["HARCH_HOME"]) / "admin.key"
    assert str(key_file) in text
    assert key_file.stat().st_mode & 0o777 == 0o600
    assert key_file.read_text().strip() not in text
    assert len([line for line in federation.said if line.startswith("  ") and "harch" in line]) == 3


def test_any_hub_shows_all_five_with_the_age_of_what_it_knows(federation: Federation) -> None:
    _until(lambda: all(hub["reachable"] for hub in federation.json("hubs")["items"]))
    hubs = federation.json("hubs")
    assert sum(hub["capacity"]["total_gpus"] for hub in hubs["items"]) == 1798


def test_work_runs_its_output_is_shown_and_its_exit_code_is_ours(federation: Federation) -> None:
    done = federation.harch("run", "--gpus", "2", "--", "/bin/sh", "-c", "echo on $HARCH_GPUS; exit 3")
    assert done.returncode == 3, done.stderr
    assert "on dakhla-" in done.stdout


def test_work_for_senegal_runs_in_dakar_by_itself_unless_it_is_to_stay(federation: Federation) -> None:
    done = federation.harch(
        "run", "--country", "SN", "--gpus", "1", "--", "/bin/sh", "-c", "echo on $HARCH_GPUS; exit 3"
    )
    assert done.returncode == 3, done.stderr
    assert "on dakar-" in done.stdout
    refused = federation.harch("run", "--country", "SN", "--stay-home", "--", "true")
    assert refused.returncode == 4
    assert "E0902" in refused.stderr
    assert "dakar" in refused.stderr.lower()


def test_work_of_a_full_hub_runs_elsewhere_and_is_seen_read_and_stopped_from_its_owner(federation: Federation) -> None:
    fill_tangier(federation)
    command = ("/bin/sh", "-c", "echo $HARCH_GPUS; sleep 300")
    job = federation.json("run", "-d", "--hub", "tangier", "--gpus", "2", "--name", "lent", "--", *command)
    _until(lambda: federation.row("tangier", "lent")["status"] == "running")
    (row,) = [row for row in federation.json("ps", "--all")["items"] if row["name"] == "lent"]
    assert (row["id"], row["hub_id"], row["epoch"]) == (job["id"], "tangier", 1)
    runner = row["runner_hub"]
    assert runner != "tangier"
    _until(lambda: f"{runner}-" in federation.harch("logs", "lent", "--hub", "tangier").stdout)
    assert federation.row(runner, "lent")["status"] == "absent"
    assert federation.row(runner, "lent", guests="true")["guest"]
    assert f"running at {runner} under lease, epoch 1" in federation.harch("why", "lent", "--hub", "tangier").stdout
    for verb, status in (("pause", "paused"), ("resume", "running")):
        assert federation.harch(verb, "lent", "--hub", "tangier").returncode == 0
        _until(lambda wanted=status: federation.row(runner, "lent", guests="true")["status"] == wanted)
    stopped = federation.harch("stop", "--wait", "lent", "--hub", "tangier")
    assert stopped.returncode == 0, stopped.stderr
    assert federation.row("tangier", "lent")["status"] == "cancelled"


def test_a_killed_runner_comes_back_and_what_was_lent_to_it_runs_on_once(federation: Federation) -> None:
    fill_tangier(federation)
    words = ("run", "-d", "--hub", "tangier", "--gpus", "2", "--name", "survives", "--")
    federation.json(*words, "/bin/sh", "-c", "echo started; sleep 300")
    _until(lambda: federation.row("tangier", "survives")["status"] == "running")
    before = federation.row("tangier", "survives")
    runner = before["runner_hub"]
    killed = _pid_of(federation, runner.encode(), b"serve")
    os.kill(killed, signal.SIGKILL)
    federation.environment["HARCH_URL"] = federation.url("tangier")  # the first one, which we would ask, may be killed
    try:
        _until(lambda: _pid_of(federation, runner.encode(), b"serve") not in (0, killed))
        _until(lambda: federation.harch("logs", "survives").stdout.strip() == "started")
        after = federation.row("tangier", "survives")
        same = ("id", "status", "runner_hub", "epoch", "attempt", "started_at", "retry_count")
        assert {key: after[key] for key in same} == {key: before[key] for key in same}
        everywhere = federation.json("ps", "--all")
        assert (everywhere["complete"], everywhere["total"]) == (True, 2)
        kinds = {event["kind"] for event in federation.json("events")["items"] if event["subject"] == runner}
        assert "hub.appeared" in kinds
        assert federation.harch("stop", "--wait", "survives", "full").returncode == 0
    finally:
        del federation.environment["HARCH_URL"]


def test_it_is_found_from_any_folder_by_its_context(federation: Federation, tmp_path: Path) -> None:
    others = {"HARCH_HOME", "HARCH_PORT_BASE", "HARCH_URL", "HARCH_API_KEY"}
    environment = {name: value for name, value in federation.environment.items() if name not in others}
    environment["HARCH_CONTEXT"] = f"local-{federation.environment['HARCH_PORT_BASE']}"
    command = [*HARCH, "hubs", "-o", "name"]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == list(HUBS), done.stderr
    assert any(line.startswith(f"context  {environment['HARCH_CONTEXT']} (") for line in federation.said)


def test_why_shows_every_hub_and_every_rule(federation: Federation) -> None:
    job = federation.json("run", "-d", "--gpus", "8", "--name", "asked", "--", "sleep", "60")
    short = federation.harch("why", "asked")
    assert short.stdout.startswith(f"asked ({job['id']}): placed\n")
    assert "`harch why asked --all` shows every rule" in short.stderr
    why = federation.harch("why", "asked", "--all")
    for word in ("Dakhla", "Tangier", "Casablanca", "Dakar", "Abidjan", "residency", "capacity"):
        assert word.lower() in why.stdout.lower(), why.stdout
    assert federation.harch("stop", job["id"]).returncode == 0


def test_a_killed_hub_comes_back_and_nothing_is_lost(federation: Federation) -> None:
    job = federation.json("run", "-d", "--name", "survivor", "--", "sleep", "300")
    _until(lambda: federation.json("ps")["items"][0]["status"] == "running")
    hub = _pid_of(federation, b"dakhla", b"serve")
    done = federation.harch("hub", "kill", "dakhla", "--wait", "--json")
    assert done.returncode == 0, done.stderr
    killed = json.loads(done.stdout)
    assert (killed["hub_id"], killed["pid"]) == ("dakhla", hub)
    assert _pid_of(federation, b"dakhla", b"serve") != hub
    (found,) = federation.json("ps")["items"]
    assert (found["id"], found["status"], found["attempt"]) == (job["id"], "running", 1)


TABLES = (  # that are no lists, and print no sentences beside their rows
    "carbon now",
    "carbon forecast",
    "carbon plan",
    "carbon report",
    "data where patients-of-the-university-hospital",
    "energy prices",
    "node topology",
    "policy jurisdictions",
    "top --once",
    "tour --list",
)


def test_every_list_and_table_fits_80_columns_and_shows_whole_ids(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every verb with the options of a list that needs no argument is one, so a new verb is tested, too."""
    federation.json("run", "-d", "--gpus", "2", "--name", "a-rather-long-name-of-a-training-run", "--", "sleep", "300")
    federation.harch("data", "add", "patients-of-the-university-hospital", "--process-in", "MA", "--rest-in", "MA")
    for name, value in {**federation.environment, "COLUMNS": "80", "NO_COLOR": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("click.testing._NamedTextIOWrapper.isatty", lambda stream: True)
    lists = [words for words, command in _leaves(root) if _is_list(command)]
    assert {("ps",), ("hubs",), ("node", "ls"), ("data", "ls")} <= set(lists)
    for words in (*lists, *(tuple(table.split()) for table in TABLES)):
        done = CliRunner().invoke(root, words)
        if words[0] == "sentinel" and done.exit_code:
            continue  # none runs beside the hubs of this test
        assert done.exit_code == 0, (words, done.output)
        lines = done.stdout.splitlines()
        assert max(map(cell_len, lines), default=0) <= 80, (words, lines)
        if words in lists:
            names = CliRunner().invoke(root, (*words, "-o", "name")).stdout.split("\n")
            shown = done.stdout.casefold()  # a hub is found by its id and by its name
            parts = [part for name in names for part in name.casefold().split("/")]  # `quota` has a name in two columns
            assert [part for part in parts if part not in shown] == [], words
    assert federation.harch("stop", "--wait", "a-rather-long-name-of-a-training-run").returncode == 0


def _leaves(group: click.Group, before: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from _leaves(command, (*before, name))
        elif not command.hidden:
            yield (*before, name), command


def _is_list(command: click.Command) -> bool:
    options = {word for option in command.params for word in option.opts}
    return "--no-headers" in options and not any(option.required for option in command.params)


@pytest.mark.timeout(300)
def test_the_tour_shows_every_station_and_leaves_no_work_of_its_own(federation: Federation) -> None:
    before = {work["name"] for work in federation.json("ps", "--all-hubs")["items"]}
    command = [*HARCH, "tour", "--yes", "--json"]
    done = subprocess.run(command, env=federation.environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    went = json.loads(done.stdout)
    assert [one["name"] for one in went["items"] if one["outcome"] != "done"] == ["telemetry"]  # no SENTINEL runs here
    assert went["left"] == ["telemetry"]
    assert "running on dakar-" in done.stderr
    assert "read on dakar-" in done.stderr
    assert "never" not in [line.strip() for line in done.stderr.splitlines()]
    after = federation.json("ps", "--all-hubs")
    assert (after["complete"], {work["name"] for work in after["items"]}) == (True, before)
    hubs = federation.json("hubs")["items"]
    assert {hub["status"] for hub in hubs} == {"ready"}
    listed = federation.harch("tour", "--list", "--json")
    assert [one["name"] for one in json.loads(listed.stdout)["items"] if not one["passed"]] == ["telemetry"]


def test_hubs_are_forked_from_one_process_and_start_without_it_as_well(federation: Federation) -> None:
    """Memory that is shared is the reason; a process that was killed must not be missed."""
    (shared,) = _processes(federation, b"harch.cli.preload", b"hub")
    hub = _pid_of(federation, b"dakar", b"serve")
    assert _kilobytes(hub, "Shared_Dirty:") > _kilobytes(hub, "Private_Dirty:")
    os.kill(shared, signal.SIGKILL)
    done = federation.harch("hub", "kill", "dakar", "--wait", "--json")
    assert done.returncode == 0, done.stderr
    assert _kilobytes(_pid_of(federation, b"dakar", b"serve"), "Shared_Dirty:") == 0


def test_ctrl_c_stops_every_process_and_a_second_start_resumes(federation: Federation) -> None:
    assert federation.interrupt() == 0
    assert federation.processes() == []
    federation.start()
    _until(lambda: [w["status"] for w in federation.json("ps")["items"] if w["name"] == "survivor"] == ["running"])
    assert federation.harch("stop", "survivor").returncode == 0


def test_the_docs_page_of_the_api_names_no_outside_host(federation: Federation) -> None:
    base = f"http://127.0.0.1:{int(federation.environment['HARCH_PORT_BASE']) + 1}"
    page = httpx.get(f"{base}/docs").text
    assert "http://" not in page.replace(base, "")
    assert "https://" not in page


def test_a_second_federation_on_the_same_ports_is_told_which_port_is_taken(
    federation: Federation, tmp_path: Path
) -> None:
    environment = {**federation.environment, "HARCH_HOME": str(tmp_path / "other")}
    tried = subprocess.run([*HARCH, "up"], env=environment, capture_output=True, text=True, timeout=60)
    assert tried.returncode == 1
    assert "E1004" in tried.stderr


def fill_tangier(federation: Federation) -> None:
    """With a reservation of all its 320 GPUs, once."""
    words = ("--hub", "tangier", "--gpus", "8", "--tasks", "40", "--modelled-duration", "1h", "--stay-home")
    federation.json("run", "-d", *words, "--name", "full")
    _until(lambda: federation.row("tangier", "full")["status"] == "running")


def _until(look: Any, within_s: float = 30) -> None:
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        if look():
            return
        time.sleep(0.1)
    raise AssertionError(f"waited {within_s:g} s")


def _pid_of(federation: Federation, *words: bytes) -> int:
    return next(iter(_processes(federation, b"hub", *words)), 0)


def _processes(federation: Federation, *words: bytes) -> list[int]:
    """Of this federation, whose command has all these words."""
    found = []
    for pid in federation.processes():
        try:
            arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        found += [pid] if all(word in arguments for word in words) else []
    return found


def _kilobytes(pid: int, what: str) -> int:
    """A line of what the kernel says of the memory of a process."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(what))
