"""Does `harch show` say everything about a workload, and does `harch wait` end when and as it should?"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import Result
from hub_double import HubDouble
from hypothesis import given
from hypothesis import strategies as st
from test_cli_verbs import explanation, workload

from harch.cli.verbs.workloads.logs import last_lines

Harch = Callable[..., Result]

EVENTS = {
    "items": [
        {
            "seq": 7,
            "at": "2026-01-02T03:04:06Z",
            "kind": "workload.running",
            "subject": "wl_1",
            "message": "runs on 1 node",
            "data": {},
        }
    ],
    "last_seq": 7,
    "next_after": 7,
}


def plan(hub: HubDouble, one: dict[str, Any]) -> None:
    hub.on("GET /workloads/train", one)
    hub.on("GET /workloads/wl_1", one)
    hub.on("GET /workloads/wl_1/why", explanation("placed"))
    hub.on("GET /events", EVENTS)


def test_show_says_what_was_asked_for_where_it_runs_and_what_happened(harch: Harch, hub: HubDouble) -> None:
    plan(hub, workload(runner_hub="dakar", attempt=2, trace_id="ab12"))
    done = harch("show", "train")
    assert done.exit_code == 0
    lines = done.stdout.splitlines()
    assert lines[0] == "train (wl_1): running"
    for line in (
        "  why         It waits for 8 GPUs.",
        "  request     2 tasks of 8 GPUs of any model",
        "  command     true",
        "  hub         dakar, under a lease of dakhla",
        "  task 0      dakhla-n1: g1-g2",
        "  trace       ab12 (`harch sentinel traces show ab12`)",
        "  2026-01-02 03:04:06  workload.running: runs on 1 node",
    ):
        assert line in lines
    assert any("attempt 2" in line for line in lines)
    assert hub.asked[-1].params == {"limit": "10", "subject": "wl_1"}


def test_show_says_how_each_task_ended(harch: Harch, hub: HubDouble) -> None:
    end = {"rank": 0, "reason": "out_of_memory", "exit_code": 137, "detail": "killed at its memory limit"}
    plan(hub, workload("failed", task_ends=[end], error_message="task 0 ran out of memory"))
    text = harch("show", "train", "--events", "0").stdout
    assert "  why         task 0 ran out of memory\n" in text
    assert "  task 0      out of memory with 137: killed at its memory limit\n" in text
    assert "workload.running" not in text


def test_show_as_json_has_workload_reason_and_events(harch: Harch, hub: HubDouble) -> None:
    plan(hub, workload())
    found = json.loads(harch("show", "train", "--json").stdout)
    assert (found["workload"]["id"], found["why"]["verdict"], found["events"][0]["seq"]) == ("wl_1", "placed", 7)


FAILED = {"rank": 0, "reason": "exited", "exit_code": 3}


@pytest.mark.parametrize(
    ("words", "states", "code"),
    [
        ((), [workload(), workload("completed")], 0),
        ((), [workload("failed", task_ends=[FAILED])], 3),
        (("--for", "running"), [workload("pending"), workload()], 0),
        (("--for", "running"), [workload("cancelled")], 1),
        (("--timeout", "0s"), [workload()], 124),
    ],
)
def test_wait_ends_as_what_it_waited_for(
    harch: Harch, hub: HubDouble, words: tuple[str, ...], states: list[dict[str, Any]], code: int
) -> None:
    hub.on("GET /workloads/train", *states)
    done = harch("wait", "train", *words)
    assert done.exit_code == code
    assert done.stdout == ""
    assert done.stderr


def test_wait_as_json_says_whom_it_gave_up_on(harch: Harch, hub: HubDouble) -> None:
    hub.on("GET /workloads/done", workload("completed"))
    hub.on("GET /workloads/late", workload())
    done = harch("wait", "done", "late", "--timeout", "0s", "--json")
    found = json.loads(done.stdout)
    assert (done.exit_code, found["timed_out"], found["total"]) == (124, "late", 1)


@given(st.lists(st.sampled_from([b"a\n", b"\n", b"bc", b"d\ne\nf", b""])), st.integers(0, 6))
def test_the_last_lines_are_the_end_of_the_text(pieces: list[bytes], lines: int) -> None:
    text = b"".join(pieces)
    assert last_lines(pieces, lines) == b"".join(text.splitlines(keepends=True)[-lines:] if lines else [])


def test_the_output_of_a_gang_is_told_apart_by_rank(harch: Harch, hub: HubDouble) -> None:
    hub.on("GET /workloads/train", workload())
    for words, shown in (
        (("--all-ranks",), "[0] one\n[0] two\n[1] three\n"),
        (("--all-ranks", "--tail", "1"), "[0] two\n[1] three\n"),
    ):
        hub.on("GET /workloads/wl_1/logs", b"one\ntw", b"o\n", b"", b"three", b"")
        assert harch("logs", "train", *words).stdout == shown
    hub.on("GET /workloads/wl_1/logs", b"one\n", b"", b"three", b"")
    found = json.loads(harch("logs", "train", "--all-ranks", "--json").stdout)
    assert [(one["rank"], one["text"]) for one in found["items"]] == [(0, "one\n"), (1, "three")]


def test_a_tail_is_followed_from_where_it_ends(harch: Harch, hub: HubDouble) -> None:
    hub.on("GET /workloads/train", workload("running"))
    hub.on("GET /workloads/wl_1", workload("completed"))
    hub.on("GET /workloads/wl_1/logs", b"one\ntwo\n", b"", b"three\n", b"")
    assert harch("logs", "train", "-f", "--tail", "1").stdout == "two\nthree\n"
    offsets = [asked.params["offset"] for asked in hub.asked if asked.path.endswith("/logs")]
    assert offsets[:3] == ["0", "8", "8"]
    assert harch("logs", "train", "-f", "--all-ranks").exit_code == 2
