"""Are failed tests repeated alone, and is nothing green that is no passed test? Real runs of pytest on tiny suites."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[2]
SUITE = """
import os, pathlib
import pytest

runs = pathlib.Path("runs")

def first_time(name):
    with runs.open("a") as file:
        file.write(name + "\\n")
    return runs.read_text().split().count(name) == 1

@pytest.mark.parametrize("kind", ["a b"])
def test_chance(kind):
    assert not first_time("chance")

def test_good():
    first_time("good")

@pytest.fixture
def broken_end():
    yield
    assert not first_time("end")

def test_end(broken_end):
    pass
"""
BROKEN = "def test_broken():\n    assert False\n"


class Repository:
    def __init__(self, folder: Path) -> None:
        self.folder, self.reports = folder, folder / "reports"
        self.reports.mkdir()
        self.listed = folder / "flaky.txt"
        (folder / "conftest.py").write_text("pytest_plugins = ('expected_skips', 'failure_report')\n")
        options = f"-q -p no:cacheprovider --skip-list {folder}/skips.txt"
        (folder / "pytest.ini").write_text(f"[pytest]\naddopts = {options}\n")
        (folder / "skips.txt").write_text("")

    @property
    def environment(self) -> dict[str, str]:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("HARCH_TEST_")}
        return {
            **clean,
            "PYTHONPATH": str(TESTS),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PATH": "",
            "TMPDIR": str(self.folder),
        }

    def part(self, name: str, suite: str) -> int:
        """Runs a part as the Makefile does."""
        (self.folder / f"test_{name}.py").write_text(suite)
        own = {"HARCH_TEST_REPORTS": str(self.reports), "HARCH_TEST_PART": name}
        command = [sys.executable, "-m", "pytest", f"test_{name}.py"]
        status = subprocess.run(
            command, cwd=self.folder, env={**self.environment, **own}, capture_output=True, timeout=100, check=False
        ).returncode
        (self.reports / f"{name}.status").write_text(f"{status}\n")
        return status

    def repeat(self, *parts: str) -> tuple[int, list[str]]:
        command = [sys.executable, str(TESTS / "repeat_failed.py"), str(self.reports), *parts]
        command += ["--root", str(self.folder), "--flaky-list", str(self.listed)]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=100, check=False)
        return done.returncode, done.stdout.splitlines()

    def runs(self) -> list[str]:
        return (self.folder / "runs").read_text().split()


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path)


def test_what_passes_alone_is_flaky_and_does_not_fail_the_run(repository: Repository) -> None:
    assert repository.part("one", SUITE) == 1
    assert repository.part("two", "def test_it():\n    pass\n") == 0
    code, said = repository.repeat("one", "two")
    assert code == 0
    chance, end = "test_one.py::test_chance[a b]", "test_one.py::test_end"
    assert [line for line in said if line.startswith("flaky:")] == [f"flaky: {chance}", f"flaky: {end}"]
    assert [line.split(" ", 1)[1] for line in repository.listed.read_text().splitlines()] == [
        f"{chance} -- unknown",
        f"{end} -- unknown",
    ]
    assert sorted(repository.runs()) == ["chance", "chance", "end", "end", "good"], "what had passed is not repeated"
    before = repository.listed.read_text()
    assert repository.repeat("one", "two")[0] == 0
    assert repository.listed.read_text() == before, "a test is listed once"


def test_what_fails_twice_fails_the_run_and_what_is_flaky_beside_it_is_still_told(repository: Repository) -> None:
    repository.part("one", SUITE + BROKEN)
    code, said = repository.repeat("one")
    assert code == 1
    assert "flaky: test_one.py::test_end" in said
    assert said[-1] == "error: failed twice: test_one.py::test_broken"


@pytest.mark.parametrize(
    ("suite", "error"),
    [
        ("import nothing_like_that\n", "one ended with 2: interrupted, or tests that cannot be collected"),
        ("import os\ndef test_it():\n    os.abort()\n", "one ended with -6 before its tests had ended"),
        ("import os\ndef test_it():\n    os._exit(0)\n", "one ended with 0 before its tests had ended"),
        ("import os\ndef test_it():\n    os._exit(1)\n", "one ended with 1 before its tests had ended"),
        ("def test_it():\n    raise KeyboardInterrupt\n", "one ended with 2: interrupted"),
        ("", "one ended with 5: no tests"),
        ("import pytest\ndef test_it():\n    pytest.skip('no')\n", "one: skipped, but not listed for anything absent"),
        (
            "".join(f"def test_{n}():\n    assert 0\n" for n in range(21)),
            "21 tests failed; more than 20",
        ),
    ],
    ids=["collection", "crash", "exit 0", "exit 1", "interrupt", "no tests", "skips", "too many"],
)
def test_what_is_no_failed_test_cannot_become_green(repository: Repository, suite: str, error: str) -> None:
    repository.part("one", suite)
    code, said = repository.repeat("one")
    assert code == 1
    assert said[-1].startswith(f"error: {error}")
    assert not repository.listed.exists()


def test_a_part_that_left_nothing_or_that_nobody_named_is_judged_too(repository: Repository) -> None:
    assert repository.part("one", "def test_it():\n    pass\n") == 0
    assert repository.repeat("one", "two") == (1, ["error: two did not end"])
    repository.part("unnamed", BROKEN)
    assert repository.repeat("one")[0] == 1


def test_a_repetition_must_pass_and_not_merely_end_well(repository: Repository) -> None:
    """A test that is gone, or that is skipped, when it is repeated."""
    repository.part("one", BROKEN)
    report = repository.reports / "one.json"
    report.write_text(json.dumps({**json.loads(report.read_text()), "failed": ["test_one.py::test_gone"]}))
    assert repository.repeat("one")[0] == 1
    (repository.folder / "test_one.py").write_text("import pytest\n@pytest.mark.skip\ndef test_broken():\n    pass\n")
    report.write_text(json.dumps({**json.loads(report.read_text()), "failed": ["test_one.py::test_broken"]}))
    assert repository.repeat("one")[0] == 1


def test_it_is_repeated_with_the_same_programs_hidden(repository: Repository) -> None:
    suite = "import os\ndef test_it():\n    assert os.environ.get('HARCH_TEST_HIDE') == 'serf'\n"
    repository.part("one", suite)
    report = repository.reports / "one.json"
    report.write_text(json.dumps({**json.loads(report.read_text()), "hidden": "serf"}))
    assert repository.repeat("one")[0] == 0
