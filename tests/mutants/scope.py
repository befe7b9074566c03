"""Which modules are mutated? Those that decide and those that guard, by group. The one place to edit on a rename."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "harch"
# Tests over values and simulated time, fast and the same every time. Rooms that only use the deciding modules from afar
# are left out: they would cost minutes and kill nothing that tests next to the module do not kill.
TESTS = (
    "tests/property/test_*.py",
    "tests/sim/test_*.py",
    "!tests/sim/test_alert_*.py",
    "!tests/sim/test_gossip.py",
    "!tests/sim/test_traces.py",
    "tests/unit/*",
    "!tests/unit/*.py",
    "!tests/unit/api*",
    "!tests/unit/base",
    "!tests/unit/cli",
    "!tests/unit/energy",
    "!tests/unit/sdk",
    "!tests/unit/sentinel*",
    "!tests/unit/testing",
)

# Globs below src/harch; `!` takes out what an earlier one took in. A glob may match nothing, a whole group may not.
GROUPS: Mapping[str, tuple[str, ...]] = {
    "placement": ("placement/**/*.py",),
    # Processes, files and pages of a report decide nothing.
    "sovereignty": (
        "sovereignty/**/*.py",
        "!sovereignty/policy/worker.py",
        "!sovereignty/policy/supervisor.py",
        "!sovereignty/policy/evaluation.py",
        "!sovereignty/audit/report.py",
        "!sovereignty/proof/view.py",
    ),
    "lending": ("hub/jobs/lending/*.py", "hub/jobs/leases.py", "federation/bidding.py", "federation/offers.py"),
    "carbon promises": ("carbon/planning/*.py", "hub/jobs/carbon_routing/*.py"),
    "jobs": ("hub/jobs/*.py",),
    "content": (
        "content/frames.py",
        "content/ignore.py",
        "content/image_reference.py",
        "content/model.py",
        "content/secret_files.py",
        "federation/bulk/limits.py",
        "federation/bulk/pacing.py",
        "federation/bulk/plan.py",
        "federation/bulk/protocol.py",
        "federation/bulk/tickets.py",
        "hub/content/gates.py",
        "hub/content/retention.py",
    ),
    "ACT ledger": (
        "pipelines/act/attempt.py",
        "pipelines/act/guards.py",
        "pipelines/act/ledger.py",
        "pipelines/act/review.py",
        "pipelines/act/stage.py",
    ),
}


class EmptyGroup(ValueError):
    """Every glob of a group matches nothing: its modules have moved, and nothing would be mutated unnoticed."""


def modules(source: Path = SOURCE, groups: Mapping[str, tuple[str, ...]] = GROUPS) -> dict[str, str]:
    """Path below `source` -> its group, in order of paths. A module belongs to the first group that names it."""
    found: dict[str, str] = {}
    for group, patterns in groups.items():
        paths = matching(source, patterns)
        if not paths:
            raise EmptyGroup(f"no module matches the group {group!r}: edit GROUPS in {Path(__file__).name}")
        for path in paths:
            found.setdefault(path, group)
    return dict(sorted(found.items()))


def matching(folder: Path, patterns: Iterable[str]) -> list[str]:
    """Paths below `folder`, in order; a pattern with `!` takes out again."""
    paths: set[str] = set()
    for pattern in patterns:
        matches = {path.relative_to(folder).as_posix() for path in folder.glob(pattern.removeprefix("!"))}
        paths = paths - matches if pattern.startswith("!") else paths | matches
    return sorted(path for path in paths if "__pycache__" not in path)
