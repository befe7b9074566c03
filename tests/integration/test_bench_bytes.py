"""The benchmark of bytes ends with a verdict that has every goal, whatever becomes of its parts."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).parents[2] / "bench"


def run(script: str) -> list[dict[str, object]]:
    done = subprocess.run([sys.executable, "-c", script], cwd=BENCH, capture_output=True, text=True, check=True)
    return list(json.loads(done.stdout.splitlines()[-1])["goals"])


def script(part: str, measure: str) -> str:
    """`bench/bytes.py` with a part in place of the real one."""
    made = f"part = types.ModuleType('bytes_{part}'); part.measure = {measure}; sys.modules['bytes_{part}'] = part"
    return (
        f"import sys, types; sys.path.insert(0, '.'); {made}; import bytes_goals; "
        f"sys.argv = ['bytes.py', '--parts', '{part}']; import importlib; importlib.import_module('bytes').main()"
    )


def test_a_part_that_fails_costs_its_own_goals_and_the_verdict_says_so() -> None:
    goals = run(script("kills", "lambda verdict, chosen: 1 / 0"))
    assert {(goal["got"], goal["met"]) for goal in goals} == {(None, False)}
    assert len(goals) == len({goal["name"] for goal in goals}) > 15


def test_what_a_part_has_measured_is_in_the_verdict_once() -> None:
    goals = run(script("kills", "lambda verdict, chosen: bytes_goals.LEAKED.met(verdict, 0)"))
    measured = [goal for goal in goals if goal["got"] is not None]
    assert [(goal["name"], goal["goal"], goal["met"]) for goal in measured] == [
        ("leaked chunks after collection", "== 0", True)
    ]


def test_every_goal_is_measured_by_the_part_that_answers_for_it() -> None:
    text = (BENCH / "bytes_goals.py").read_text()
    parts = dict(re.findall(r'^    "(\w+)": (.+),$', text.partition("PARTS")[2], re.MULTILINE))
    assert set(parts) == {"dedupe", "ingest", "transfer", "kills", "borders", "start"}
    for part, goals in parts.items():
        source = (BENCH / f"bytes_{part}.py").read_text()
        for goal in re.findall(r"[A-Z_]{3,}", goals):
            assert re.search(rf"\b{goal}(\[.*\])?\.met\(verdict", source), (part, goal)
