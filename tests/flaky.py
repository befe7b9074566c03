"""Which tests are known to fail by chance, since when, and why? The lines of `tests/flaky.txt`.

    2026-03-01 tests/unit/test_it.py::test_it -- the cause, or `unknown`

`.ci/run` adds a test that failed and passed when it was repeated. A line is a debt with a date: after two weeks
`make check` fails, until the test is mended and its line removed. Run as a program, this is that check.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

LIST = Path(__file__).with_name("flaky.txt")
KEPT_MAX = timedelta(days=14)
UNKNOWN = "unknown"
_BEFORE_CAUSE = " -- "


@dataclass(frozen=True)
class Flaky:
    since: date
    test: str
    cause: str

    def __str__(self) -> str:
        return f"{self.since.isoformat()} {self.test}{_BEFORE_CAUSE}{self.cause}"


def read_line(line: str) -> Flaky:
    """Raises ValueError. A test's name may have spaces and dashes: its cause is behind the last ones."""
    since, _, rest = line.strip().partition(" ")
    test, between, cause = rest.rpartition(_BEFORE_CAUSE)
    if not between or not test.strip() or not cause.strip():
        raise ValueError("not of the form `DATE TEST -- CAUSE`")
    return Flaky(date.fromisoformat(since), test.strip(), cause.strip())


def entries(text: str) -> Iterable[tuple[int, str]]:
    """Lines with their numbers, without comments."""
    return ((number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip() and line[0] != "#")


def mistakes(text: str, *, today: date, root: Path) -> list[str]:
    """What is wrong with the list, one sentence each."""
    found, seen = [], set()
    for number, line in entries(text):
        try:
            one = read_line(line)
        except ValueError as error:
            found.append(f"line {number}: {error}")
            continue
        if one.since > today + timedelta(days=1):  # somewhere it is tomorrow already
            found.append(f"line {number}: {one.since} is in the future")
        elif today - one.since > KEPT_MAX:
            days = (today - one.since).days
            found.append(f"line {number}: {one.test} is flaky for {days} days; mend it and remove the line")
        if one.test in seen:
            found.append(f"line {number}: {one.test} is there twice")
        if not (root / one.test.partition("::")[0]).is_file():
            found.append(f"line {number}: {one.test} is no test; remove the line")
        seen.add(one.test)
    return found


def add(path: Path, tests: Iterable[str], *, today: date) -> list[str]:
    """Adds those that are new, as far as the file can be written; answers their lines."""
    text = path.read_text("utf-8") if path.exists() else ""
    known = set()
    for _, line in entries(text):
        try:
            known.add(read_line(line).test)
        except ValueError:
            continue
    new = [str(Flaky(today, test, UNKNOWN)) for test in dict.fromkeys(tests) if test not in known]
    if new:
        try:
            path.write_text("".join(f"{line}\n" for line in (*text.splitlines(), *new)), "utf-8")
        except OSError as error:
            print(f"{path} cannot be written: {error.strerror}")
    return new


def today_utc() -> date:
    return datetime.now(UTC).date()


def main() -> int:
    found = mistakes(LIST.read_text("utf-8"), today=today_utc(), root=LIST.parent.parent)
    for one in found:
        print(f"error: tests/{LIST.name}, {one}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
