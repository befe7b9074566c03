"""`harch show` and `harch wait`: everything about one workload on a screen, and waiting for what becomes of it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import click

from harch.base.errors import EXIT_ERROR
from harch.cli.failure import INTERRUPTED_EXIT_CODE
from harch.cli.inputs import DURATION
from harch.cli.remote import connect, remote_options

if TYPE_CHECKING:
    from datetime import datetime

    from harch.sdk import Event, Explanation, Workload

_EVENTS = 10
_NODES_LISTED = 8
_LABEL_WIDTH = 10
TIMED_OUT_EXIT_CODE = 124  # as of `timeout`


@click.command()
@click.argument("ref", metavar="ID")
@click.option(
    "--events",
    metavar="N",
    type=click.IntRange(0, 1000),
    default=_EVENTS,
    show_default=True,
    help="Newest events to show.",
)
@remote_options
def show_command(ref: str, events: int, hub: str | None, as_json: bool) -> None:
    """Show everything about a workload.

    How it stands and why, its request, where it runs, how it ended, and its newest events. ID is an id or a name.
    """
    from harch.base.clock import SystemClock
    from harch.cli.follow import state_of
    from harch.cli.output import clean, emit_json

    with connect(hub) as client:
        workload = client.workloads.get(ref)
        explanation = client.workloads.why(workload.id)
        found = client.event_page(limit=events, subject=workload.id).items if events else []
    if as_json:
        emit_json({"workload": workload, "why": explanation, "events": found})
        return
    click.echo(f"{click.style(clean(workload.name), bold=True)} ({workload.id}): {state_of(workload)}")
    for label, text in description(workload, explanation, SystemClock().now()):
        click.echo(f"  {label:<{_LABEL_WIDTH}}  {clean(text)}")
    for event in found:
        click.echo(f"  {_moment(event.at)}  {clean(_sentence(event))}")


def description(workload: Workload, explanation: Explanation, now: datetime) -> Iterator[tuple[str, str]]:
    """Labels and what stands behind them; what there is nothing to say about is left out."""
    from harch.cli.follow import elapsed_s
    from harch.cli.output import age_text, since_text
    from harch.cli.views.gpu_ids import gpu_ranges

    spec = workload.spec
    yield "why", workload.error_message or explanation.sentence
    if workload.preparing:
        yield "preparing", workload.preparing
    yield "request", _request(workload)
    if command := spec.get("command"):
        yield "command", shlex.join(map(str, command)) if isinstance(command, list | tuple) else str(command)
    for label, field in (("countries", "countries_allowed"), ("data", "data"), ("outputs", "outputs")):
        if (values := spec.get(field)) and isinstance(values, list | tuple):
            yield label, ", ".join(map(str, values))
    yield from _brought(spec)
    yield "tenant", f"{workload.tenant}, class {workload.scheduling_class or '-'}"
    created_at, ran_s = workload.metadata.created_at, elapsed_s(workload)
    times = [f"submitted {since_text(created_at, now)} ago"]
    times += [f"ran for {age_text(ran_s)}"] if ran_s is not None else []
    times += [f"attempt {workload.attempt}"] if workload.attempt > 1 else []
    yield "times", ", ".join(times)
    owner, runner = workload.hub_id or "-", workload.runner_hub
    yield "hub", owner if runner in ("", owner) else f"{runner}, under a lease of {owner}"
    for task in workload.placement[:_NODES_LISTED]:
        yield f"task {task.rank}", f"{task.node_id}: {gpu_ranges(task.node_id, task.gpu_ids)}"
    if len(workload.placement) > _NODES_LISTED:
        yield "", f"and {len(workload.placement) - _NODES_LISTED} more tasks"
    for end in sorted(workload.task_ends, key=lambda end: end.rank)[:_NODES_LISTED]:
        code = "" if end.exit_code is None else f" with {end.exit_code}"
        yield f"task {end.rank}", f"{end.reason.replace('_', ' ')}{code}{f': {end.detail}' if end.detail else ''}"
    for text in explanation.power:
        yield "power", text
    if workload.trace_id:
        yield "trace", f"{workload.trace_id} (`harch sentinel traces show {workload.trace_id}`)"


def _brought(spec: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """What it brings and leaves."""
    for label in ("code", "image"):
        if value := spec.get(label):
            yield label, str(value)
    environment, artifacts = spec.get("environment"), spec.get("artifacts")
    if isinstance(environment, Mapping):
        words = (
            f"{name} {', '.join(map(str, value)) if isinstance(value, list | tuple) else value}"
            for name, value in environment.items()
            if value
        )
        yield "packages", ", ".join(words)
    if artifacts and isinstance(artifacts, list | tuple):
        yield "artifacts", ", ".join(f"{one.get('name')} from {one.get('path')}" for one in artifacts)


def _request(workload: Workload) -> str:
    resources = workload.spec.get("resources")
    resources = resources if isinstance(resources, dict) else {}
    tasks = workload.spec.get("tasks", 1)
    model = resources.get("gpu_model") or " or ".join(resources.get("gpu_models") or ())
    share = resources.get("gpu_fraction")
    count = share if share is not None else resources.get("gpus", 0)
    gpus = f"{count} GPU{'s' if count != 1 else ''} of {model or 'any model'}"
    rest = [
        f"{resources[name]:g} {unit}" for name, unit in (("cpus", "cpus"), ("memory_gb", "GB")) if name in resources
    ]
    each = ", ".join([gpus, *rest])
    modelled = " (modelled)" if workload.modelled else ""
    return f"{each}{modelled}" if tasks == 1 else f"{tasks} tasks of {each}{modelled}"


def _moment(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S}"


def _sentence(event: Event) -> str:
    return f"{event.kind}: {event.message}" if event.message else event.kind


# `harch wait`: until it runs, or has ended.


@click.command()
@click.argument("refs", metavar="ID...", nargs=-1, required=True)
@click.option("--for", "what", type=click.Choice(["running", "ended"]), default="ended", help="Default: ended.")
@click.option("--timeout", "timeout_s", type=DURATION, metavar="DURATION", help="Give up after this time, e.g. 10m.")
@remote_options
def wait_command(refs: tuple[str, ...], what: str, timeout_s: float | None, hub: str | None, as_json: bool) -> int:
    """Wait until workloads run, or have ended.

    Exits with the exit code of the first that failed, with 124 on a timeout; --for running with 1 if one has
    ended before it ran. ID is an id or a name.
    """
    from harch.base.clock import SystemClock
    from harch.cli.follow import how_it_ended
    from harch.cli.output import emit_json, note

    clock = SystemClock()
    until_s = None if timeout_s is None else clock.monotonic_s() + timeout_s

    def is_there(workload: Workload) -> bool:
        return workload.is_final or (what == "running" and workload.status == "running")

    workloads: list[Workload] = []
    late = ""
    try:
        with connect(hub) as client:
            for ref in refs:
                left_s = None if until_s is None else max(0.0, until_s - clock.monotonic_s())
                workload = client.workloads.wait(ref, until=is_there, timeout_s=left_s)
                workloads.append(workload)
                if not as_json:
                    note(how_it_ended(workload) if workload.is_final else f"{workload.name} {workload.status}")
    except TimeoutError:
        late = refs[len(workloads)]
        if not as_json:
            words = "is not running" if what == "running" else "has not ended"
            note(f"{late} {words} after {timeout_s:g} s; `harch why {late}` says why")
    except KeyboardInterrupt:
        return INTERRUPTED_EXIT_CODE
    if as_json:
        emit_json({"items": workloads, "total": len(workloads), "timed_out": late})
    if late:
        return TIMED_OUT_EXIT_CODE
    if what == "running":
        return EXIT_ERROR if any(workload.is_final for workload in workloads) else 0
    return next((workload.exit_code for workload in workloads if workload.exit_code), 0)
