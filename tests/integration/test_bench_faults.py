"""The benchmark of faults ends with a verdict, whatever becomes of its parts."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).parents[2] / "bench"


def run(*command: str) -> dict[str, dict[str, object]]:
    done = subprocess.run([sys.executable, *command], cwd=BENCH, capture_output=True, text=True, check=True)
    verdict = json.loads(done.stdout.splitlines()[-1])
    return {goal["name"]: goal for goal in verdict["goals"]}


def test_random_events_with_errors_inside_leave_the_books_as_the_disk_has_them() -> None:
    goals = run("faults_events.py", "--events", "60")
    assert goals["random_events"] == {"name": "random_events", "goal": ">= 20000", "got": 60, "met": False}
    assert goals["random_events_20000_books_unequal_disk"]["met"]


def test_a_part_that_fails_costs_its_own_goals_and_the_verdict_says_so(tmp_path: Path) -> None:
    broken = "import sys, types; part = types.ModuleType('faults_events'); part.measure = lambda verdict: 1 / 0"
    script = f"{broken}; sys.modules['faults_events'] = part; sys.argv = ['faults.py', '--parts', 'events']"
    goals = run("-c", f"{script}; sys.path.insert(0, '.'); import faults; faults.main()")
    assert goals["random_events"] == {"name": "random_events", "goal": ">= 20000", "got": None, "met": False}
    assert {goal["met"] for goal in goals.values()} == {False}
    assert {"faults_silent_of_500", "kills_of_sentinel_and_hub_violations"} <= goals.keys()


def test_parts_answer_for_the_goals_that_the_verdict_waits_for() -> None:
    waited_for = set(re.findall(r'\("([a-z_0-9]+)", "[<>=]', (BENCH / "faults.py").read_text()))
    named = re.compile(r'verdict\.goal\(f?"([^"]+)"')
    reported = [name for part in BENCH.glob("faults_*.py") for name in named.findall(part.read_text())]
    assert {name.replace("{count}", "500") for name in reported} == waited_for
