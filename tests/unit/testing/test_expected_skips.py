"""Does a run of tests fail when it skips what the list does not name, and when it runs what it should have skipped?"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from capabilities import CAPABILITIES

TESTS = Path(__file__).parents[2]
SUITE = """
import shutil, subprocess
import pytest

@pytest.mark.needs("serf")
def test_with_serf():
    assert subprocess.run(["serf"], capture_output=True).stdout == b"serf says hello"

def test_without():
    pass
"""
SKIPS_ITSELF = "import pytest\ndef test_it():\n    pytest.skip('not today')"
LIST = "[serf]\ntest_it.py::test_with_serf\n"


class Runs:
    """pytest on a folder of its own, with `serf` on the PATH or without."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.programs = folder, folder / "bin"
        self.programs.mkdir()
        (self.programs / "sh").symlink_to("/bin/sh")
        (folder / "pytest.ini").write_text("[pytest]\naddopts = -q -p no:cacheprovider --strict-markers\n")

    def install(self, program: str) -> None:
        file = self.programs / program
        file.write_text(f"#!/bin/sh\nprintf '{program} says hello'\n")
        file.chmod(0o755)

    def run(self, suite: str, listed: str, *arguments: str, **environment: str) -> tuple[int, str]:
        (self.folder / "test_it.py").write_text(suite)
        (self.folder / "skips.txt").write_text(listed)
        clean = {name: value for name, value in os.environ.items() if not name.startswith("HARCH_TEST_")}
        own = {"PYTHONPATH": str(TESTS), "PATH": str(self.programs), **environment}
        own["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # nothing but what is tested
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "expected_skips", "--skip-list", "skips.txt", *arguments],
            cwd=self.folder,
            env={**clean, **own},
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    made = Runs(tmp_path)
    made.install("amtool")  # something that is never named here
    return made


def test_a_program_that_is_there_is_found_by_the_tests_that_name_it(runs: Runs) -> None:
    runs.install("serf")
    code, said = runs.run(SUITE, LIST)
    assert code == 0
    assert "2 passed" in said


def test_a_program_that_is_absent_skips_what_is_listed_and_says_how_to_get_it(runs: Runs) -> None:
    code, said = runs.run(SUITE, LIST)
    assert code == 0
    assert "1 passed, 1 skipped" in said
    assert "skipped: 1 that need serf: `serf` is not installed (apt-get install serf)" in said


@pytest.mark.parametrize("hide", ["serf", "programs", "strace, serf"])
def test_a_hidden_program_is_absent_for_tests_and_for_what_they_start(runs: Runs, hide: str) -> None:
    runs.install("serf")
    suite = f"{SUITE}\ndef test_shell():\n    assert subprocess.run(['sh', '-c', 'serf']).returncode == 127\n"
    code, said = runs.run(suite, LIST, HARCH_TEST_HIDE=hide)
    assert code == 0
    assert "2 passed, 1 skipped" in said
    assert "hidden by HARCH_TEST_HIDE" in said


def test_a_program_that_is_there_is_not_found_by_tests_that_do_not_name_it(runs: Runs) -> None:
    runs.install("serf")
    suite = "import shutil\ndef test_it():\n    assert shutil.which('sh')\n    assert not shutil.which('serf')\n"
    assert runs.run(suite, "")[0] == 0


def test_a_test_that_works_with_and_without_a_program_is_told_so_with_another_mark(runs: Runs) -> None:
    runs.install("serf")
    suite = (
        "import pytest, shutil\n@pytest.mark.uses('serf')\ndef test_it():\n    print('found', shutil.which('serf'))\n"
    )
    code, said = runs.run(suite, "", "-s")
    assert (code, "found None" in said) == (0, False)
    code, said = runs.run(suite, "", "-s", HARCH_TEST_HIDE="programs")
    assert (code, "found None" in said) == (0, True)


@pytest.mark.parametrize(
    ("suite", "listed", "code", "said"),
    [
        (SUITE, "", 1, "add under [serf]: test_it.py::test_with_serf"),
        (SUITE, LIST.replace("serf]", "strace]"), 1, "add under [serf]: test_it.py::test_with_serf"),
        (SUITE, f"{LIST}test_it.py::test_gone", 1, "remove from [serf]: test_it.py::test_gone"),
        (SUITE, f"{LIST}test_gone.py::test_it", 1, "remove from [serf]: test_gone.py::test_it"),
        (SUITE, f"{LIST}test_it.py::test_without", 1, "not skipped, but listed for what is absent, serf: test_it.py::"),
        (SKIPS_ITSELF, "", 1, "skipped, but not listed for anything absent: test_it.py::test_it: Skipped: not today"),
        ("import pytest\npytest.importorskip('no_such_package')", "", 5, "skipped as a whole: test_it.py"),
    ],
    ids=["unlisted", "listed elsewhere", "no such test", "no such file", "ran", "skipped itself", "skipped file"],
)
def test_what_is_skipped_or_run_against_the_list_fails_the_run(
    runs: Runs, suite: str, listed: str, code: int, said: str
) -> None:
    got, output = runs.run(suite, listed)
    assert got == code
    assert f"error: skips.txt: {said}" in output


def test_ci_installs_packages_of_programs_that_tests_name() -> None:
    found = re.search(r"^PACKAGES=\((.*)\)$", (TESTS.parent / ".ci" / "run").read_text(), re.MULTILINE)
    assert found is not None
    named = {one.how_to_get.rpartition(" ")[2] for one in CAPABILITIES.values() if one.programs}
    assert set(found[1].split()) <= named


def test_a_part_of_the_tests_is_compared_with_its_part_of_the_list(runs: Runs) -> None:
    (runs.folder / "test_other.py").write_text("def test_it():\n    pass\n")
    assert runs.run(SUITE, LIST, "test_other.py")[0] == 0
    assert runs.run(SUITE, LIST, "test_it.py::test_without")[0] == 0
    assert runs.run(SUITE, LIST, "-k", "without")[0] == 0


@pytest.mark.parametrize(
    ("suite", "listed", "environment"),
    [
        (SUITE.replace("serf", "surf"), "", {}),
        (SUITE, "[surf]\n", {}),
        (SUITE, "test_it.py::test_without\n", {}),
        (SUITE, LIST, {"HARCH_TEST_HIDE": "surf"}),
    ],
    ids=["in a mark", "in the list", "before a section", "to hide"],
)
def test_an_unknown_name_ends_the_run_before_it_begins(
    runs: Runs, suite: str, listed: str, environment: dict[str, str]
) -> None:
    code, said = runs.run(suite, listed, **environment)
    assert code == 4
    assert "surf" in said or "before the first" in said
