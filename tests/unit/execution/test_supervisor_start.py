"""The supervisor starts with the standard library alone, and only once."""

from __future__ import annotations

import json
import subprocess
import sys

from harch.execution.local_engine import SUPERVISOR
from harch.execution.supervisor import EXIT_REFUSED

SPEC = {
    "argv": ["sh", "-c", "echo ran >> runs"],
    "env": {"PATH": "/usr/bin:/bin"},
    "sandbox": "",
    "sandbox_args": [],
    "cgroups": [],
    "max_duration_s": None,
    "stop_grace_s": 1,
    "secrets_dir": "",
    "log_segment_bytes": 1000,
    "log_segments_max": 2,
}


def supervise(folder, *flags):
    command = [sys.executable, "-I", "-S", *flags, str(SUPERVISOR), str(folder)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env={})


def test_it_imports_nothing_but_the_standard_library_its_own_six_modules_and_the_seal(tmp_path):
    (tmp_path / "spec.json").write_text(json.dumps({**SPEC, "cwd": str(tmp_path)}))
    done = supervise(tmp_path, "-X", "importtime")
    modules = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if "import time:" in line}
    ours = {name for name in modules if name.split(".")[0] == "harch"}
    own = {"kernel", "lease", "lease_watch", "records", "spool", "watch"}
    own_paths = {f"harch.execution.{name}" for name in own}
    assert ours == {"harch", "harch.base", "harch.base.seal", "harch.execution", *own_paths}
    assert {name.split(".")[0] for name in modules} - {"harch", "imported package"} <= sys.stdlib_module_names | {
        "zipimport"
    }


def test_a_second_supervisor_stands_back(tmp_path):
    (tmp_path / "spec.json").write_text(json.dumps({**SPEC, "cwd": str(tmp_path)}))
    first, second = supervise(tmp_path), supervise(tmp_path)
    assert [json.loads(line)["state"] for line in first.stdout.splitlines()] == ["running", "ended"]
    assert (first.returncode, second.returncode, second.stdout) == (0, EXIT_REFUSED, "")
    assert (tmp_path / "runs").read_text() == "ran\n"


def test_without_a_folder_or_a_specification_nothing_runs(tmp_path):
    assert supervise(tmp_path / "gone").returncode == EXIT_REFUSED
    done = supervise(tmp_path)
    assert (done.returncode, json.loads(done.stdout)["reason"]) == (EXIT_REFUSED, "not_started")
    assert not (tmp_path / "started").exists()


def test_a_stop_that_came_first_wins(tmp_path):
    (tmp_path / "spec.json").write_text(json.dumps({**SPEC, "cwd": str(tmp_path)}))
    (tmp_path / "stop.json").write_text(json.dumps({"reason": "stopped", "grace_s": 1}))
    assert json.loads(supervise(tmp_path).stdout)["reason"] == "stopped"
    assert not (tmp_path / "runs").exists()


def test_a_lease_that_ended_on_the_way_to_the_supervisor_starts_nothing(tmp_path):
    (tmp_path / "spec.json").write_text(json.dumps({**SPEC, "cwd": str(tmp_path), "lease_until_s": 1.0}))
    assert json.loads(supervise(tmp_path).stdout)["reason"] == "lease_ended"
    assert not (tmp_path / "runs").exists()
