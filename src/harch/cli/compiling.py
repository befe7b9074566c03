"""Which kernels must this machine still compile? `python -m harch.cli.compiling` compiles them and shows how far it is.

`make` runs it at installation, so that nothing waits for a compiler later. Where all is compiled it says nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import click

from harch.base.compile_once import is_compiled
from harch.cli.views.progress import is_visible, progress_line

StepStarted = Callable[[str], None]


class CompileJob(NamedTuple):
    """Kernels that are compiled under one lock, in so many steps; it tells of each as it begins."""

    what: str
    steps: int
    run: Callable[[StepStarted], None]


def main() -> None:
    jobs = pending_jobs()
    if not jobs:
        return
    click.echo("compiling kernels, once for this machine (about a minute) ...")
    total = sum(job.steps for job in jobs)
    if is_visible():
        _with_line(jobs, total)
        return
    begun = 0

    def started(what: str) -> None:
        nonlocal begun
        begun += 1
        click.echo(f"  {begun} of {total}: {what}")

    for job in jobs:
        job.run(started)


def pending_jobs() -> list[CompileJob]:
    """What is installed and not compiled yet."""
    from harch.api.sentinel_process import missing_packages
    from harch.placement.policy import kernels_available

    jobs = []
    if kernels_available():
        from harch.hub import kernels
        from harch.placement.policy import compiled

        if not is_compiled("placement", compiled.SOURCES):
            jobs.append(CompileJob("placement", 1, kernels.compile_placement))
        from harch.content import chunking, chunking_kernels

        if not is_compiled("content", chunking_kernels.SOURCES):
            jobs.append(CompileJob("content", 1, chunking.compile_kernel))
    if not missing_packages():
        from harch.sentinel import jit, warmup

        if not is_compiled("sentinel", jit.SOURCES):
            jobs.append(CompileJob("SENTINEL", len(warmup.STEPS), warmup.warm_all))
    return jobs


def _with_line(jobs: list[CompileJob], total: int) -> None:
    begun = 0
    with progress_line("") as line:

        def started(what: str) -> None:
            nonlocal begun
            line.update(begun, total, what)  # a step that begins is not done
            begun += 1

        for job in jobs:
            job.run(started)


if __name__ == "__main__":
    main()
