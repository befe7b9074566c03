"""Of many log lines, few tell what went wrong: those are found by level, novelty and number."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from harch.sentinel.alert_context.log_groups import grouped, level_of, pattern_of, select_groups
from harch.sentinel.traces.search import TraceLine

BEGAN = 1000


def line(text: str, at: int = BEGAN, level: str = "", trace: str = "") -> TraceLine:
    return TraceLine(at, text, (("job", "x"),), level, trace, "")


def test_lines_that_differ_in_numbers_and_ids_are_one_kind() -> None:
    texts = [
        "2026-01-02T10:00:00.123Z lease 0af7651916cd43dd ended after 12.5 s at n17",
        "2026-01-02T10:01:07.001+01:00 lease 99f7651916cd43aa ended after 3 s at n4",
    ]
    assert {pattern_of(text) for text in texts} == {"# lease # ended after # s at n#"}
    assert pattern_of("wl_1m7gqh7tm7y132d5b4b7q submitted") == "# submitted"
    assert pattern_of("deadbeef cafe") == "deadbeef cafe"  # words are no ids


def test_the_worst_comes_first_then_what_is_new_then_what_is_frequent() -> None:
    lines = [
        *(line(f"tick {i}", 10 + i) for i in range(50)),
        *(line(f"tick {i}", BEGAN + i) for i in range(60)),
        *(line(f"retry {i}", BEGAN + i) for i in range(5)),
        line("disk slow", 500, "warning"),
        line("no space left", BEGAN + 3, "error", "a" * 32),
        line("no space left", BEGAN + 4, "error", "b" * 32),
    ]
    found = select_groups(grouped(lines, began_ns=BEGAN), 10)
    assert [(one.level, one.pattern, one.count, one.before, one.is_new) for one in found] == [
        ("error", "no space left", 2, 0, True),
        ("warn", "disk slow", 1, 1, False),
        ("", "retry #", 5, 0, True),
        ("", "tick #", 110, 50, False),
    ]
    assert found[0].trace_ids == ["a" * 32, "b" * 32]
    assert found[3].example.time_ns >= BEGAN
    assert len(select_groups(grouped(lines, began_ns=BEGAN), 2)) == 2


def test_a_line_that_was_read_twice_counts_once() -> None:
    (only,) = grouped([line("a", level="error"), line("a", level="error")], began_ns=BEGAN)
    assert only.count == 1


def test_a_level_is_what_came_with_the_line_or_what_it_begins_with() -> None:
    assert level_of(line("x", level="WARNING")) == "warn"
    assert level_of(line("2026-01-02 ERROR harch.hub: no disk")) == "error"
    assert level_of(line('{"level":"fatal","msg":"x"}')) == "critical"
    assert level_of(line("all went well")) == ""


@given(st.lists(st.builds(line, st.text(max_size=30), st.integers(0, 2000), st.sampled_from(["", "error", "odd"]))))
def test_no_line_is_lost(lines: list[TraceLine]) -> None:
    groups = grouped(lines, began_ns=BEGAN)
    assert sum(one.count for one in groups) == len(set(lines))
    assert len(select_groups(groups, 1000)) == len(groups)
    assert all(one.first_ns <= one.last_ns and one.before <= one.count for one in groups)
