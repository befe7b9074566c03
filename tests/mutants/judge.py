"""Is this mutant noticed? A pytest session that collects all tests once and then runs those of each mutant in a fork.

Steps: load modules so that blocks are counted, collect, measure the tests that are not in the map yet, draw mutants,
run the tests of each until one fails.
"""

from __future__ import annotations

import dataclasses
import functools
import gc
import importlib
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _pytest.runner import runtestprotocol
from hypothesis import HealthCheck, Phase, settings

from mutants.children import Ended, Job, run_all
from mutants.hits import Hits
from mutants.inplace import Functions, NotViable, bring_to_life, loaded_functions
from mutants.operators import Mutant
from mutants.tests_map import Measured, TestsMap, tests_by_block

TEST_CPU_S_MAX = 3.0  # a slower test judges nothing
FILE_CPU_S_MAX = 60.0  # and neither do those of its file after a minute
JUDGES_CPU_S_MAX = 15.0  # of all tests of one mutant, fastest first
KILLED, TIMEOUT, SURVIVED, UNREACHED, NOT_VIABLE = "killed", "timeout", "survived", "unreached", "not viable"
_PASSED, _FAILED, _SKIPPED, _TOO_SLOW = "passed", "failed", "skipped", "too slow"


@dataclass(frozen=True, slots=True)
class Fate:
    """What became of a mutant; `by` is the test that noticed it."""

    mutant: Mutant
    kind: str
    tests: int = 0  # that run its statement
    by: str = ""


class TooSlow(BaseException):
    """Not an Exception, so that no test swallows it."""


class Judge:
    """The plugin of the session: in the place of running the tests it judges mutants by them."""

    def __init__(
        self,
        source: Path,
        hits: Hits,
        known: TestsMap,
        mutants: Sequence[Mutant],
        workers: int,
        say: Callable[[str], None],
    ) -> None:
        self.fates: list[Fate] = []
        self.problem = ""
        self._functions: Functions = {}
        self._source, self._hits, self._map = source, hits, known
        self._mutants, self._workers, self._say = mutants, workers, say

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self) -> None:
        settings.register_profile(
            "mutants",
            settings.get_profile(settings.get_current_profile_name()),
            database=None,
            derandomize=True,
            phases=(Phase.explicit, Phase.generate),  # that it fails is enough, by whatever example
            suppress_health_check=list(HealthCheck),
        )
        settings.load_profile("mutants")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        if session.testsfailed:
            self.problem = f"{session.testsfailed} files of tests cannot be collected"
            return True
        _forget_cached(self._source.name)
        self._functions = loaded_functions(self._source)
        gc.freeze()  # forks share what they do not touch, and a collection would touch everything
        items: defaultdict[str, list[pytest.Item]] = defaultdict(list)
        for item in session.items:
            items[item.nodeid.partition("::")[0]].append(item)
        judges = tests_by_block(self._measure(items))
        by_name = {item.nodeid: item for item in session.items}
        self._judge(judges, by_name)
        return True

    def _measure(self, items: Mapping[str, list[pytest.Item]]) -> list[Measured]:
        found = {file: self._map.known(file) for file in items}
        jobs = [
            Job(file, functools.partial(self._measure_file, items[file]), 2 * FILE_CPU_S_MAX)
            for file, measured in found.items()
            if measured is None
        ]
        jobs.sort(key=lambda job: "tests/unit" not in job.name)  # simulations, which take longest, last
        started = time.monotonic()
        for number, ended in enumerate(run_all(jobs, at_once=self._workers), 1):
            result = ended.result or {"passed": (), "failed": ()}
            rows = [Measured(test, cpu_s, tuple(blocks)) for test, cpu_s, blocks in result["passed"]]
            for test in result["failed"]:
                self._say(f"judges nothing, because it fails without a mutant: {test}")
            if ended.result is not None:
                self._map.keep(ended.job.name, rows)
            else:
                self._say(f"not measured: {ended.job.name}: {ended.error.strip()[-300:]}")
            found[ended.job.name] = rows
            if number % 50 == 0 or number == len(jobs):
                self._say(f"measured {number} of {len(jobs)} files of tests in {time.monotonic() - started:.0f} s")
        return [one for measured in found.values() for one in measured or ()]

    def _measure_file(self, items: Sequence[pytest.Item], folder: Path) -> dict[str, Any]:
        _use_folder(items[0].config, folder)
        signal.signal(signal.SIGVTALRM, _too_slow)
        rows, failed = [], []
        self._hits.take()
        ends_at = time.process_time() + FILE_CPU_S_MAX
        for item, following in zip(items, [*items[1:], None], strict=True):
            started = time.process_time()
            if started > ends_at:
                break
            signal.setitimer(signal.ITIMER_VIRTUAL, TEST_CPU_S_MAX)
            try:
                outcome = _outcome(item, following)
            except TooSlow:
                outcome = _TOO_SLOW
            finally:
                signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            blocks = self._hits.take()
            if outcome == _PASSED and blocks:
                rows.append((item.nodeid, round(time.process_time() - started, 4), blocks))
            elif outcome == _FAILED:
                failed.append(item.nodeid)
        return {"passed": rows, "failed": failed}

    def _judge(self, judges: Mapping[int, list[Measured]], items: Mapping[str, pytest.Item]) -> None:
        jobs: list[Job] = []
        chosen: dict[str, tuple[Mutant, int]] = {}
        for mutant in self._mutants:
            block = self._hits.blocks[mutant.path][mutant.statement]
            tests, total_s = [], 0.0
            for one in judges.get(block, ()):
                total_s += one.cpu_s
                if total_s > JUDGES_CPU_S_MAX and tests:
                    break
                if one.test in items:
                    tests.append(items[one.test])
            if not tests:
                self.fates.append(Fate(mutant, UNREACHED))
                continue
            chosen[mutant.id] = (mutant, len(tests))
            jobs.append(Job(mutant.id, functools.partial(self._try, mutant, tests), 3.0 * total_s + 5.0))
        for number, ended in enumerate(run_all(jobs, at_once=self._workers), 1):
            mutant, count = chosen[ended.job.name]
            self.fates.append(_fate(mutant, count, ended))
            if self.fates[-1].kind == SURVIVED:
                self._say(f"{number} of {len(jobs)}: survived: {mutant}")

    def _try(self, mutant: Mutant, tests: Sequence[pytest.Item], folder: Path) -> dict[str, str]:
        try:
            bring_to_life(mutant, self._source, self._functions)
        except NotViable as refused:
            return {"kind": NOT_VIABLE, "by": str(refused)}
        _use_folder(tests[0].config, folder)
        for item, following in zip(tests, [*tests[1:], None], strict=True):
            if _outcome(item, following) != _PASSED:
                return {"kind": KILLED, "by": item.nodeid}
        return {"kind": SURVIVED, "by": ""}


def _fate(mutant: Mutant, tests: int, ended: Ended) -> Fate:
    """A child that breaks was broken by its mutant: without it the same tests passed."""
    if ended.timed_out:
        return Fate(mutant, TIMEOUT, tests)
    if ended.result is None:
        return Fate(mutant, KILLED, tests, ended.error.strip().rpartition("\n")[2])
    return Fate(mutant, ended.result["kind"], tests, ended.result["by"])


def _outcome(item: pytest.Item, following: pytest.Item | None) -> str:
    """Skipped is not passed: it judges nothing, neither when it is measured nor later."""
    reports = runtestprotocol(item, log=False, nextitem=following)
    if all(report.passed or hasattr(report, "wasxfail") for report in reports):
        return _PASSED
    return _FAILED if any(report.failed for report in reports) else _SKIPPED


def _use_folder(config: pytest.Config, folder: Path) -> None:
    """A folder for temporary files per child, removed with it; pytest would number them and forget to remove them."""
    factory: Any = config._tmp_path_factory  # type: ignore[attr-defined]
    factory._given_basetemp, factory._basetemp = folder / "tests", None


def _too_slow(*_: object) -> None:
    raise TooSlow


def _forget_cached(package: str) -> None:
    """What was computed while tests were collected would hide a mutant from the tests that use it."""
    for cached in [one for one in gc.get_objects() if isinstance(one, functools._lru_cache_wrapper)]:
        if str(getattr(cached, "__module__", "")).partition(".")[0] == package:
            cached.cache_clear()


def interpret_kernels(scope: Sequence[str]) -> None:
    """Kernels of modules in scope stay Python: machine code is stored under its source and would hide mutants.

    Hashes overflow on purpose: machine code does so silently, NumPy would warn of it each time.
    """
    np.seterr(over="ignore")
    compiling = importlib.import_module("harch.base.compiling")
    compile_kernel = compiling.compile_kernel
    names = {f"harch.{path.removesuffix('.py').replace('/', '.')}" for path in scope}

    def compile_others(function: Any, *arguments: Any, **options: Any) -> Any:
        return function if function.__module__ in names else compile_kernel(function, *arguments, **options)

    compiling.compile_kernel = compile_others
    intrinsic = importlib.import_module("numba.core.extending")._Intrinsic
    proxy = importlib.import_module("numba.experimental.structref").StructRefProxy
    for name in names:
        if name.endswith(".compiled"):
            module = importlib.import_module(name)
            for key, value in list(vars(module).items()):
                if isinstance(value, intrinsic):
                    setattr(module, key, lambda lent: lent)  # arrays are lent to machine code; Python counts them
                elif isinstance(value, type) and issubclass(value, proxy):  # only machine code can read its fields
                    setattr(module, key, dataclasses.make_dataclass(key, value.__annotations__))
