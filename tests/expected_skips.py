"""Are the skipped tests exactly those that the list names for what is absent here? A plugin of pytest.

The list, `tests/skips.txt`, says for each capability of the machine which tests are skipped without it. A run fails if

- a test is skipped that the list does not name for something absent here: it would be skipped unseen from now on,
- a test runs that the list names for something absent: it does not need it, or does not say so,
- the marks of the collected tests and the list disagree, whatever this machine has.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from capabilities import HIDE, Machine, UnknownCapability, known

LIST = Path(__file__).with_name("skips.txt")
ORIGINAL_PATH = "HARCH_TEST_PATH"  # the PATH before anything was hidden, for runs of pytest inside of tests


def read_list(text: str) -> dict[str, frozenset[str]]:
    """Test -> what it needs. `[NAME]` begins a section with one test a line."""
    needs: defaultdict[str, set[str]] = defaultdict(set)
    section = ""
    for number, line in enumerate(text.splitlines(), 1):
        entry = line.strip()
        if entry.startswith("[") and entry.endswith("]"):
            section = entry[1:-1]
            known([section])
        elif entry and not entry.startswith("#"):
            if not section:
                raise UnknownCapability(f"line {number} of {LIST.name}: a test before the first [NAME]")
            needs[entry].add(section)
    return {test: frozenset(names) for test, names in needs.items()}


def declared(item: pytest.Item, mark: str) -> frozenset[str]:
    """What a test names in marks of this kind."""
    names = frozenset(name for one in item.iter_markers(mark) for name in one.args)
    known(names)
    return names


class ExpectedSkips:
    """The plugin of one run; `problems` are what makes it fail."""

    def __init__(self, machine: Machine, listed: dict[str, frozenset[str]], folder: Path) -> None:
        self.machine, self.listed = machine, listed
        self.problems: list[str] = []
        self._folder = folder
        self._shown: dict[str, frozenset[str]] = {}  # file -> what its tests may find on the PATH
        self._skipped: Counter[str] = Counter()  # capability -> tests

    @pytest.hookimpl(tryfirst=True)  # before a selection by name or mark
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        shown: defaultdict[str, set[str]] = defaultdict(set)
        found = {}
        for item in items:
            found[item.nodeid] = needs = declared(item, "needs")
            shown[_file(item.nodeid)] |= needs | declared(item, "uses")
        self._shown = {file: frozenset(names) for file, names in shown.items()}
        self.problems += [
            f"add under [{name}]: {test}"
            for test, needs in found.items()
            for name in sorted(needs - self.listed.get(test, frozenset()))
        ]
        whole = {_file(test) for test in found} if not any("::" in argument for argument in config.args) else set()
        self.problems += [
            f"remove from [{name}]: {test}"
            for test, names in self.listed.items()
            if test in found or _file(test) in whole or not (config.rootpath / _file(test)).exists()
            for name in sorted(names - found.get(test, frozenset()))
        ]

    @pytest.hookimpl(tryfirst=True)  # before fixtures start anything
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        os.environ["PATH"] = self.machine.path_with(self._shown.get(_file(item.nodeid), ()))
        for name in sorted(declared(item, "needs")):
            if why := self.machine.why_missing(name):
                self._skipped[name] += 1
                pytest.skip(f"needs {name}: {why}")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if hasattr(report, "wasxfail"):
            return
        absent = [name for name in self.listed.get(report.nodeid, ()) if self.machine.why_missing(name)]
        if report.skipped and not absent:
            self.problems.append(f"skipped, but not listed for anything absent: {report.nodeid}: {_why(report)}")
        if report.when == "call" and not report.skipped and absent:
            self.problems.append(f"not skipped, but listed for what is absent, {', '.join(absent)}: {report.nodeid}")

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.skipped:
            self.problems.append(f"skipped as a whole: {report.nodeid}: {_why(report)}")

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.problems and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for name, tests in sorted(self._skipped.items()):
            terminalreporter.line(f"skipped: {tests} that need {name}: {self.machine.why_missing(name)}")
        for problem in self.problems:
            terminalreporter.line(f"error: {LIST.name}: {problem}", red=True)

    def pytest_unconfigure(self) -> None:
        os.environ["PATH"] = os.environ.pop(ORIGINAL_PATH)
        shutil.rmtree(self._folder, ignore_errors=True)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--skip-list", type=Path, default=LIST, help="Tests that may be skipped, and without what.")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "needs(*names): skipped where one of these is absent (tests/capabilities.py)")
    config.addinivalue_line("markers", "uses(*names): finds these programs where they are, and passes without them")
    folder = Path(tempfile.mkdtemp(prefix="harch-programs-"))
    folder.chmod(0o755)  # servers that tests start as another user look programs up, too
    path = os.environ.setdefault(ORIGINAL_PATH, os.environ.get("PATH", os.defpath))
    try:
        listed = read_list(config.getoption("--skip-list").read_text("utf-8"))
        plugin = ExpectedSkips(Machine(path=path, hide=os.environ.get(HIDE, ""), folder=folder), listed, folder)
    except BaseException:
        shutil.rmtree(folder)
        raise
    os.environ["PATH"] = plugin.machine.path_with(())
    config.pluginmanager.register(plugin, "expected-skips")


def problems_of(config: pytest.Config) -> list[str]:
    plugin = config.pluginmanager.get_plugin("expected-skips")
    return plugin.problems if plugin is not None else []


def _file(nodeid: str) -> str:
    return nodeid.partition("::")[0]


def _why(report: pytest.TestReport | pytest.CollectReport) -> str:
    return report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
