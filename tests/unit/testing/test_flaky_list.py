"""Is a flaky test a debt with a date, that nobody can put off forever?"""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

import flaky

TODAY = date(2026, 3, 20)
TEST = "tests/test_it.py::test_it"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_it.py").write_text("")
    return tmp_path


@pytest.mark.parametrize(
    ("line", "mistake"),
    [
        (f"2026-03-06 {TEST} -- a port is taken by others", ""),
        (f"2026-03-21 {TEST} -- unknown", ""),
        (f"2026-03-20 {TEST}[a -- b] -- unknown", ""),
        ("# no entry", ""),
        (f"2026-03-05 {TEST} -- unknown", f"line 1: {TEST} is flaky for 15 days; mend it and remove the line"),
        (f"2026-03-22 {TEST} -- unknown", "line 1: 2026-03-22 is in the future"),
        (f"yesterday {TEST} -- unknown", "line 1: Invalid isoformat string: 'yesterday'"),
        (f"2026-03-20 {TEST}", "line 1: not of the form `DATE TEST -- CAUSE`"),
        (f"2026-03-20 {TEST} -- ", "line 1: not of the form `DATE TEST -- CAUSE`"),
        (f"2026-03-20 {TEST} -- a\n2026-03-20 {TEST} -- b", f"line 2: {TEST} is there twice"),
        ("2026-03-20 tests/gone.py::test_it -- a", "line 1: tests/gone.py::test_it is no test; remove the line"),
    ],
)
def test_a_line_is_checked_for_its_form_its_age_and_its_test(root: Path, line: str, mistake: str) -> None:
    assert flaky.mistakes(line, today=TODAY, root=root) == ([mistake] if mistake else [])


def test_an_entry_keeps_the_day_on_which_it_came_and_its_cause(root: Path) -> None:
    path = root / "flaky.txt"
    path.write_text(f"# why\n2026-03-10 {TEST} -- known")  # the last line has no end
    assert flaky.add(path, [TEST], today=TODAY) == []
    new = f"2026-03-20 {TEST}[x y] -- unknown"
    assert flaky.add(path, [f"{TEST}[x y]", TEST, f"{TEST}[x y]"], today=TODAY) == [new]
    assert path.read_text() == f"# why\n2026-03-10 {TEST} -- known\n{new}\n"


def test_where_the_list_cannot_be_written_the_line_is_told_all_the_same(root: Path) -> None:
    assert flaky.add(root / "nowhere" / "flaky.txt", [TEST], today=TODAY) == [f"2026-03-20 {TEST} -- unknown"]


def test_the_list_of_this_repository_has_a_form_that_can_be_read() -> None:
    lines = [flaky.read_line(line) for _, line in flaky.entries(flaky.LIST.read_text())]
    assert all(one.test.startswith("tests/") for one in lines)
