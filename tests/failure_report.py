"""What failed in this run? A plugin of pytest that leaves it in a file, for `tests/repeat_failed.py`.

Written where HARCH_TEST_REPORTS names a folder, as PART.json; HARCH_TEST_PART names the part. A run that dies leaves
none.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

FOLDER, PART = "HARCH_TEST_REPORTS", "HARCH_TEST_PART"


class FailureReport:
    """Tests by how they ended. One that failed in any phase has failed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._failed: dict[str, None] = {}
        self._passed: dict[str, None] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed[report.nodeid] = None
        elif report.passed and report.when == "call":
            self._passed[report.nodeid] = None

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        skips = session.config.pluginmanager.get_plugin("expected-skips")
        found = {
            "failed": list(self._failed),
            "passed": [test for test in self._passed if test not in self._failed],
            "problems": list(skips.problems) if skips is not None else [],
            "hidden": os.environ.get("HARCH_TEST_HIDE", ""),
        }
        self._path.write_text(json.dumps(found), "utf-8")


def pytest_configure(config: pytest.Config) -> None:
    if folder := os.environ.get(FOLDER):
        path = Path(folder) / f"{os.environ.get(PART, 'tests')}.json"
        path.unlink(missing_ok=True)
        config.pluginmanager.register(FailureReport(path), "failure-report")
