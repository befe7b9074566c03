"""Did tests fail by chance? Repeats those that failed, each alone, and judges all parts of a run.

    python tests/repeat_failed.py REPORTS PART...

REPORTS is the folder in which each part has left PART.status, the exit status of its pytest, and PART.json, what failed
(`tests/failure_report.py`). What passes now is flaky: it is printed, goes into `tests/flaky.txt`, and does not fail the
run. What fails again fails it, and so does whatever is no failed test: a part that did not end, a pytest that died or
was interrupted, a file that cannot be collected, skips that are not listed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import flaky
from failure_report import FOLDER, PART

REPEATED_MAX = 20  # more failures than that are no chance
REPEAT_TIMEOUT_S = 1_200.0  # the longest test may take 900 s
MEANINGS = {2: "interrupted, or tests that cannot be collected", 3: "internal error", 4: "usage error", 5: "no tests"}
ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Failed:
    test: str
    hidden: str  # HARCH_TEST_HIDE of the run that it failed in


def judged(folder: Path, parts: list[str]) -> tuple[list[str], list[Failed]]:
    """What no repetition can heal, and what is to be repeated."""
    fatal: list[str] = []
    failed: list[Failed] = []
    for part in sorted({*parts, *(path.stem for path in folder.glob("*.status"))}):
        try:
            status = int((folder / f"{part}.status").read_text())
        except (OSError, ValueError):
            fatal.append(f"{part} did not end")
            continue
        try:
            report = json.loads((folder / f"{part}.json").read_text("utf-8"))
        except (OSError, ValueError):
            fatal.append(f"{part} ended with {status} before its tests had ended")
            continue
        fatal += [f"{part}: {problem}" for problem in report["problems"]]
        if status not in (0, 1):
            fatal.append(f"{part} ended with {status}: {MEANINGS.get(status, 'pytest died')}")
        elif status == 1 and not report["failed"] and not report["problems"]:
            fatal.append(f"{part} ended with 1 and does not say which test failed")
        failed += [Failed(test, report["hidden"]) for test in report["failed"]]
    if len(failed) > REPEATED_MAX:
        fatal.append(f"{len(failed)} tests failed; more than {REPEATED_MAX} are not repeated")
    return fatal, failed


def passes_alone(one: Failed, *, root: Path) -> bool:
    """In a process of its own, with nothing beside it. It must pass: not being found or being skipped is no pass."""
    with tempfile.TemporaryDirectory(prefix="harch-repeated-") as folder:
        environment = {**os.environ, FOLDER: folder, PART: "alone", "HARCH_TEST_HIDE": one.hidden}
        try:
            command = [sys.executable, "-m", "pytest", one.test]
            status = subprocess.run(
                command, cwd=root, env=environment, timeout=REPEAT_TIMEOUT_S, check=False
            ).returncode
            report = json.loads((Path(folder) / "alone.json").read_text("utf-8"))
        except (subprocess.TimeoutExpired, OSError, ValueError):
            return False
    return status == 0 and one.test in report["passed"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reports", type=Path)
    parser.add_argument("parts", nargs="+")
    parser.add_argument("--root", type=Path, default=ROOT, help="Where the names of tests begin.")
    parser.add_argument("--flaky-list", type=Path, default=flaky.LIST)
    given = parser.parse_args()
    fatal, failed = judged(given.reports, given.parts)
    passed: list[str] = []
    if not fatal:
        for one in failed:
            if passes_alone(one, root=given.root):
                passed.append(one.test)
            else:
                fatal.append(f"failed twice: {one.test}")
    for test in dict.fromkeys(passed):
        print(f"flaky: {test}")
    for line in flaky.add(given.flaky_list, passed, today=flaky.today_utc()):
        print(f"add to tests/flaky.txt, with its cause: {line}")
    for sentence in fatal:
        print(f"error: {sentence}")
    return 1 if fatal else 0


if __name__ == "__main__":
    sys.exit(main())
