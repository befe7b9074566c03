"""How is a workload watched until it ends? Shared by `run`, `apply` and `logs -f`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from harch.base.clock import SystemClock
from harch.cli.output import clean, note
from harch.cli.remote import hub_suffix
from harch.cli.views.progress import progress_line

if TYPE_CHECKING:
    from harch.sdk import Client, Workload

_WHY_EVERY_S = 5.0  # how often a waiting workload is asked for its reason
_END_SETTLES_S = 1.0
_WHY_FIRST_S = 1.0  # most start sooner than this; then no reason is worth printing
_WAITING = ("pending", "scheduled")


def follow(client: Client, workload: Workload, *, rank: int = 0, offset: int = 0) -> Workload:
    """Copies the output of one task to stdout until the workload has ended, across restarts. Answers how it ended.

    `offset`: where to begin in the output of the attempt that runs now.
    """
    attempt = workload.attempt if offset else 0
    while True:
        workload = wait_to_start(client, workload)
        if workload.attempt != attempt:
            if attempt:
                note(f"{clean(workload.name)} was restarted (attempt {workload.attempt})")
            offset, attempt = 0, workload.attempt
        if not workload.spec.get("command"):
            return client.workloads.wait(workload.id)  # no process, so no output
        if workload.started_at is not None:
            # Ends with the task, or with the hub: then the rest is read once the hub is back.
            offset += copy_log(
                client.workloads.logs(workload.id, rank=rank, attempt=workload.attempt, offset=offset, follow=True)
            )
        if workload.is_final:
            return workload
        workload = _seen_after(client, workload)


def _seen_after(client: Client, workload: Workload) -> Workload:
    """The log ends a moment before the hub has written down the end of the task."""
    attempt = workload.attempt
    try:
        return client.workloads.wait(
            workload.id, until=lambda now: now.is_final or now.attempt != attempt, timeout_s=_END_SETTLES_S
        )
    except TimeoutError:
        return client.workloads.get(workload.id)


def wait_to_start(client: Client, workload: Workload) -> Workload:
    """Returns once it runs or has ended; meanwhile tells, once per reason, why it waits, and what is prepared."""
    reported, pause_s = "", _WHY_FIRST_S
    while workload.status in _WAITING:
        if workload.preparing:
            workload, reported = _wait_for_preparation(client, workload), ""
            continue
        try:
            workload = client.workloads.wait(workload.id, until=_is_under_way, timeout_s=pause_s)
        except TimeoutError:
            why = client.workloads.why(workload.id)
            if why.sentence != reported:
                note(f"waiting: {clean(why.sentence)}")
            reported, pause_s = why.sentence, _WHY_EVERY_S
    return workload


def _is_under_way(workload: Workload) -> bool:
    return bool(workload.preparing) or workload.status not in _WAITING


def _wait_for_preparation(client: Client, workload: Workload) -> Workload:
    """Names each step once; a terminal also sees how far it is."""
    step = ""
    with progress_line("preparing") as line:
        while workload.preparing and workload.status in _WAITING:
            seen = workload.preparing
            text = f"preparing: {clean(seen)}"
            if seen.partition(":")[0] != step:
                step = seen.partition(":")[0]
                line.echo(text, err=True)
            line.update(0, None, text)
            workload = client.workloads.wait(workload.id, until=_is_past(seen))
    return workload


def _is_past(preparing: str) -> Callable[[Workload], bool]:
    return lambda now: now.preparing != preparing or now.status not in _WAITING


def state_of(workload: Workload) -> str:
    """In one word, as lists show it."""
    if workload.stopping:
        return "stopping"
    return "preparing" if workload.preparing and workload.status == "scheduled" else workload.status


def how_it_ended(workload: Workload) -> str:
    modelled = " (modelled: no process ran)" if workload.modelled and not workload.spec.get("command") else ""
    reason = f": {clean(workload.error_message)}" if workload.error_message else ""
    lost = "".join(f"\nnot kept: artifact {clean(one)}" for one in workload.artifacts_lost)
    return f"{clean(workload.name)} {workload.status}{modelled}{reason}{lost}"


def how_to_go_on(workload: Workload, hub: str | None) -> str:
    suffix = hub_suffix(hub)
    return f"  follow it:  harch logs {workload.id} -f{suffix}\n  stop it:    harch stop {workload.id}{suffix}"


def copy_log(pieces: Iterable[bytes]) -> int:
    """To stdout, piece by piece as it comes. Answers how many bytes that were."""
    copied = 0
    for piece in pieces:
        sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()
        copied += len(piece)
    return copied


def elapsed_s(workload: Workload) -> float | None:
    """How long it has run, or ran."""
    if workload.started_at is None:
        return None
    ran_s = ((workload.completed_at or SystemClock().now()) - workload.started_at).total_seconds()
    return max(0.0, ran_s)  # this machine's clock may be behind the hub's
