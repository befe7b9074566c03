"""Which share of mutants do the tests notice?

    python tests/mutants/run.py --sample 200 --seed 7
    python tests/mutants/run.py --modules 'placement/queueing/*' --json

Prints the seed, what became of the mutants of each group, and every survivor as `path:line  before -> after`. Exit
status 1 below `--goal`.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import random
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import pytest

from mutants import scope
from mutants.hits import Hits
from mutants.judge import KILLED, NOT_VIABLE, SURVIVED, TIMEOUT, UNREACHED, Fate, Judge, interpret_kernels
from mutants.operators import Mutant, draw, mutants_of
from mutants.tests_map import TestsMap

KINDS = (KILLED, TIMEOUT, SURVIVED, UNREACHED)


@dataclass(frozen=True, slots=True)
class Project:
    """What is mutated, and which tests judge."""

    root: Path
    source: Path
    groups: Mapping[str, tuple[str, ...]]
    tests: tuple[str, ...]  # globs, as those of the groups


HARCH = Project(scope.ROOT, scope.SOURCE, scope.GROUPS, scope.TESTS)


@dataclass(frozen=True, slots=True)
class Result:
    seed: int
    mutants_total: int
    fates: Sequence[Fate]
    groups: Mapping[str, str]  # path -> group

    @property
    def judged(self) -> list[Fate]:
        return [fate for fate in self.fates if fate.kind != NOT_VIABLE]

    @property
    def share_killed(self) -> float:
        """A mutant that loops is noticed, too: no test of it ends."""
        killed = sum(fate.kind in (KILLED, TIMEOUT) for fate in self.judged)
        return killed / len(self.judged) if self.judged else 0.0

    @property
    def survivors(self) -> list[Fate]:
        left = [fate for fate in self.judged if fate.kind in (SURVIVED, UNREACHED)]
        return sorted(left, key=lambda fate: (fate.mutant.path, fate.mutant.line))


def measure(
    project: Project, *, sample: int | None, seed: int, modules: str, workers: int, say: Callable[[str], None]
) -> Result:
    """Raises ValueError where nothing can be judged. Modules in scope must not be loaded yet."""
    groups = scope.modules(project.source, project.groups)
    everything: list[Mutant] = []
    for path in groups:
        if fnmatch(path, modules):
            everything += mutants_of((project.source / path).read_text("utf-8"), path)
    drawn = draw(everything, sample if sample is not None else len(everything), seed)
    say(f"seed {seed}: {len(drawn)} of {len(everything)} mutants of {len({one.path for one in everything})} modules")
    hits = Hits(project.source, list(groups))
    hits.install()
    if project is HARCH:
        interpret_kernels(list(groups))
    known = TestsMap(project.root, project.root / ".mutants", [project.source / path for path in groups])
    judge = Judge(project.source, hits, known, drawn, workers, say)
    output = io.StringIO()
    os.chdir(project.root)
    with contextlib.redirect_stdout(output):
        status = pytest.main(
            ["--capture=no", "--tb=no", "-p", "no:cacheprovider", *scope.matching(project.root, project.tests)],
            plugins=[judge],
        )
    if judge.problem or (drawn and not judge.fates):
        raise ValueError(f"{judge.problem or f'pytest ended with {status}'}\n{output.getvalue()[-4000:]}")
    return Result(seed, len(everything), judge.fates, groups)


def report(result: Result, goal: float) -> str:
    """For people: a line per group, then every survivor."""
    lines = [f"{'':18}" + "".join(f"{kind:>11}" for kind in KINDS)]
    counts: dict[str, Counter[str]] = {}
    for fate in result.judged:
        counts.setdefault(result.groups[fate.mutant.path], Counter())[fate.kind] += 1
    for group, kinds in sorted(counts.items()):
        lines.append(f"{group:18}" + "".join(f"{kinds[kind]:>11}" for kind in KINDS))
    if result.survivors:
        lines.append("survivors:")
        lines += [f"{fate.mutant}  ({fate.kind}, {fate.tests} tests)" for fate in result.survivors]
    killed = len(result.judged) - len(result.survivors)
    lines.append(
        f"killed {killed} of {len(result.judged)} ({result.share_killed:.1%}, goal {goal:.0%}), seed {result.seed}"
    )
    return "\n".join(lines)


def as_json(result: Result, goal: float) -> str:
    return json.dumps(
        {
            "seed": result.seed,
            "mutants": result.mutants_total,
            "judged": len(result.judged),
            "killed": round(result.share_killed, 4),
            "goal": goal,
            "fates": [
                {
                    "id": fate.mutant.id,
                    "group": result.groups[fate.mutant.path],
                    "change": str(fate.mutant),
                    "kind": fate.kind,
                    "tests": fate.tests,
                    "by": fate.by,
                }
                for fate in result.fates
            ],
        }
    )


def main(arguments: Sequence[str] | None = None, project: Project = HARCH) -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--sample", type=int, help="Mutants to draw; all of them if absent.")
    options.add_argument("--seed", type=int, help="Of the draw; random, and printed, if absent.")
    options.add_argument("--modules", default="*", help="Glob of modules, as in placement/queueing/*.")
    options.add_argument("--goal", type=float, default=0.9, help="Share to kill.")
    options.add_argument("--workers", type=int, default=2, help="Processes at a time.")
    options.add_argument("--json", action="store_true", help="Print JSON, and progress on standard error.")
    chosen = options.parse_args(arguments)
    out = sys.stderr if chosen.json else sys.stdout
    result = measure(
        project,
        sample=chosen.sample,
        seed=chosen.seed if chosen.seed is not None else random.SystemRandom().randrange(1_000_000),
        modules=chosen.modules,
        workers=chosen.workers,
        say=lambda line: print(line, file=out, flush=True),
    )
    print(as_json(result, chosen.goal) if chosen.json else report(result, chosen.goal), flush=True)
    return 0 if result.share_killed >= chosen.goal else 1


if __name__ == "__main__":
    sys.exit(main())
