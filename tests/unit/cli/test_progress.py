"""Is somebody who waits at a terminal kept informed, and nobody else?"""

from __future__ import annotations

import io
import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from harch.cli.views import progress
from harch.cli.views.progress import ProgressLine, is_visible, progress_line, progress_text


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "SHOW_AFTER_S", 0.01)
    monkeypatch.setattr(progress, "REDRAW_S", 0.01)
    monkeypatch.setattr(progress, "DUMB_EVERY_S", 0.01)
    monkeypatch.setenv("TERM", "xterm")


@given(
    st.text(st.characters(codec="ascii", categories=["L"]), max_size=200),
    st.floats(0, 2e9),
    st.none() | st.floats(0, 1e9),
    st.floats(0, 1e6),
    st.integers(1, 200),
)
def test_the_line_never_wraps(what: str, done: float, total: float | None, elapsed_s: float, columns: int) -> None:
    assert cell_len(progress_text(what, done, total, elapsed_s, columns)) < max(columns, 2)


def test_it_says_what_how_far_and_how_long() -> None:
    assert progress_text("testing", 3, 4, 12.3, 80) == "testing  " + "█" * 18 + "░" * 6 + "   75 %  12 s"
    assert progress_text("compiling", 0, None, 300, 80) == "compiling  5 min"


def test_the_line_is_redrawn_in_place_and_erased_at_the_end(soon: None) -> None:
    stream = io.StringIO()
    line = ProgressLine("waiting", enabled=True, stream=stream)
    until(lambda: "waiting" in stream.getvalue())
    line.update(1, 2, "still waiting")
    until(lambda: "still waiting" in stream.getvalue())
    line.finish()
    assert "\n" not in stream.getvalue()
    assert stream.getvalue().endswith("\r\x1b[K")


def test_a_dumb_terminal_gets_lines_without_control_codes(soon: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    stream = io.StringIO()
    line = ProgressLine("waiting", enabled=True, stream=stream)
    until(lambda: stream.getvalue().count("\n") > 1)
    line.finish()
    assert "\x1b" not in stream.getvalue()
    assert "\r" not in stream.getvalue()


def test_what_is_printed_meanwhile_stands_on_lines_of_its_own(soon: None, capsys: pytest.CaptureFixture[str]) -> None:
    stream = io.StringIO()
    line = ProgressLine("waiting", enabled=True, stream=stream)
    until(lambda: "waiting" in stream.getvalue())
    line.echo("a hub is ready")
    line.finish()
    assert capsys.readouterr().out == "a hub is ready\n"


def test_pipes_and_programs_see_nothing(soon: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert not is_visible()
    with progress_line("waiting") as line:
        line.update(1, 2)
        assert line._thread is None
    assert capsys.readouterr().err == ""


def test_json_switches_it_off_at_a_terminal_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    assert is_visible()
    assert not is_visible(as_json=True)


def test_a_terminal_that_has_gone_does_not_stop_the_work(soon: None) -> None:
    stream = io.StringIO()
    stream.close()
    line = ProgressLine("waiting", enabled=True, stream=stream)
    until(line._ended.is_set)
    line.finish()


def test_a_short_wait_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    ProgressLine("waiting", enabled=True, stream=stream).finish()
    assert stream.getvalue() == ""
