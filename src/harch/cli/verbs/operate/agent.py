"""`harch agent serve`: the agent of one or more nodes as a process."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from harch.base.errors import HarchError
from harch.cli.options import log_file_option
from harch.cli.verb_group import VerbGroup

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harch.base.tracing.exporter import ProcessTracing
    from harch.base.tracing.spans import Attributes
    from harch.execution.admission import AgentConfig
    from harch.sentinel.log_shipper.shipper import Shipper
    from harch.sentinel.node.gpus import Sensors
    from harch.sentinel.node.sensors import RunningTask


@click.group("agent", help="Run the agent of one or more nodes.", cls=VerbGroup)
def command() -> None:
    pass


@command.command(
    "serve", help="Serve nodes of a hub until stopped; tasks keep running unless --stop-tasks-on-exit is set."
)
@click.option("--hub-url", metavar="URL", required=True, help="Address of the hub, e.g. http://127.0.0.1:7701.")
@click.option(
    "--key-file",
    metavar="FILE",
    required=True,
    type=click.Path(dir_okay=False),
    help="File with an API key of role agent.",
)
@click.option("--country", metavar="CC", required=True, help="Country of the nodes; must match the hub's.")
@click.option(
    "--state-dir",
    metavar="DIR",
    required=True,
    type=click.Path(file_okay=False),
    help="Folder for tasks, logs, status.",
)
@click.option("--id", "agent_id", metavar="NAME", required=True, help="Agent id; keep it across restarts.")
@click.option(
    "--node", "nodes", metavar="ID", multiple=True, help="Node to serve (default: all nodes of the hub). Repeatable."
)
@click.option(
    "--share",
    metavar="DIR",
    multiple=True,
    type=click.Path(file_okay=False),
    help="Folder that tasks may use. Repeatable.",
)
@click.option(
    "--hide", metavar="DIR", multiple=True, type=click.Path(), help="Folder hidden from all tasks. Repeatable."
)
@click.option("--process-slots", metavar="N", default=64, show_default=True, help="Maximum concurrent processes.")
@click.option(
    "--address", metavar="ADDRESS", default="127.0.0.1", show_default=True, help="Address for gangs of other nodes."
)
@click.option(
    "--gang-ports", metavar="A-B", default="29500-29599", show_default=True, help="Port range for gang rendezvous."
)
@click.option(
    "--sandbox",
    type=click.Choice(["auto", "off", "required"]),
    envvar="HARCH_SANDBOX",
    default="auto",
    show_default=True,
    help="Run tasks in bubblewrap: if it works, never, or always (no work without it).",
)
@click.option(
    "--cache-gb",
    metavar="N",
    type=click.FloatRange(min=0),
    default=50,
    show_default=True,
    help="Limit of cached code, data, environments and images that no task uses.",
)
@click.option(
    "--keep-files-gb",
    metavar="N",
    type=click.FloatRange(min=0),
    default=20,
    show_default=True,
    help="Limit of files of ended tasks, kept for a day.",
)
@click.option("--encrypts-at-rest", is_flag=True, help="Declare that the nodes encrypt storage and scratch.")
@click.option("--keys-in", multiple=True, metavar="CC", help="Country of a key store that the nodes use. Repeatable.")
@click.option(
    "--framework",
    "frameworks",
    multiple=True,
    metavar="ID",
    help="Legal framework upheld besides the country's own. Repeatable.",
)
@click.option(
    "--telemetry-url", metavar="URL", help="SENTINEL remote-write URL, e.g. http://127.0.0.1:7711/api/v1/write."
)
@click.option("--stop-tasks-on-exit", is_flag=True, help="Also stop all tasks; the hub requeues them.")
@log_file_option
def serve(
    hub_url: str,
    key_file: str,
    country: str,
    state_dir: str,
    agent_id: str,
    nodes: tuple[str, ...],
    share: tuple[str, ...],
    hide: tuple[str, ...],
    process_slots: int,
    address: str,
    gang_ports: str,
    sandbox: Literal["auto", "off", "required"],
    cache_gb: float,
    keep_files_gb: float,
    encrypts_at_rest: bool,
    keys_in: tuple[str, ...],
    frameworks: tuple[str, ...],
    telemetry_url: str | None,
    stop_tasks_on_exit: bool,
    log_file: str | None,
) -> None:
    import uvloop

    from harch.base.state_files import close_to_others, keep_files_private
    from harch.cli.process import calm_collector, end_with_parent, set_up_logging
    from harch.execution.admission import GB, AgentConfig
    from harch.execution.preparation import MADE_PRIVATE
    from harch.sovereignty.geography import SiteSafeguards

    keep_files_private()
    end_with_parent()
    set_up_logging(log_file)
    config = AgentConfig(
        hub_url=hub_url,
        api_key=_read_key(Path(key_file)),
        agent_id=agent_id,
        state_dir=Path(state_dir),
        country=country.upper(),
        node_ids=nodes,
        process_slots=process_slots,
        address=address,
        gang_ports=_port_range(gang_ports),
        share=tuple(Path(folder) for folder in share),
        hide=tuple(Path(folder) for folder in hide),
        stop_tasks_on_exit=stop_tasks_on_exit,
        sandbox=sandbox,
        cache_bytes=int(cache_gb * GB),
        kept_work_bytes=int(keep_files_gb * GB),
        safeguards=SiteSafeguards(
            encrypts_at_rest=encrypts_at_rest,
            keys_in=tuple(code.upper() for code in keys_in),
            frameworks=frameworks,
        ),
    )
    close_to_others(config.state_dir, deep=False)
    with contextlib.suppress(OSError):
        for folder in config.state_dir.iterdir():
            close_to_others(folder, deep=folder.name not in MADE_PRIVATE)
    calm_collector()
    uvloop.run(_serve(config, telemetry_url))


async def _serve(config: AgentConfig, telemetry_url: str | None) -> None:
    """The agent, and beside it what tells SENTINEL how the node is. Work does not depend on telemetry."""
    from harch.execution.agent_process import serve as serve_agent

    tracing = _trace(config, telemetry_url)
    shipper = _ship(config, telemetry_url) if telemetry_url else None
    metrics_task = asyncio.create_task(_send_metrics(config, telemetry_url, shipper)) if telemetry_url else None
    try:
        await serve_agent(config, tracing=tracing)
    finally:
        if tracing is not None:
            await asyncio.to_thread(tracing.close)
        if shipper is not None:
            await asyncio.to_thread(shipper.close)
        if metrics_task is not None:
            metrics_task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await metrics_task


def _trace(config: AgentConfig, url: str | None) -> ProcessTracing | None:
    from importlib.metadata import version

    from harch.base.clock import SystemClock
    from harch.base.tracing.exporter import open_tracing

    about: Attributes = {"agent": config.agent_id, "country": config.country, "service.version": version("harch")}
    if len(config.node_ids) == 1:
        about["node"] = config.node_ids[0]
    return open_tracing("harchos-agent", about, url=url, token=lambda: config.api_key, clock=SystemClock())


def _ship(config: AgentConfig, url: str) -> Shipper | None:
    from harch.cli.agent_logs import ship_agent_logs

    return ship_agent_logs(config, url)


async def _send_metrics(config: AgentConfig, url: str, shipper: Shipper | None) -> None:
    from harch.base.clock import SystemClock
    from harch.sentinel.node.gpus import find_gpus
    from harch.sentinel.node.sensors import Host

    try:
        from harch.sentinel.node.sender import MetricSender
    except ImportError:
        logging.getLogger("harch.agent").warning("no telemetry is sent: pip install 'harch[sentinel]'")
        return
    from harch.sentinel.node.sensors import TaskUsage
    from harch.sentinel.node.spool import RequestSpool

    clock = SystemClock()
    gpus = find_gpus()
    sensors: list[Sensors] = [Host(), TaskUsage(lambda: _running(config.state_dir), clock.monotonic_s)]
    if gpus is not None:
        sensors.append(gpus)
    if shipper is not None:
        from harch.cli.agent_logs import ShipperMetrics

        sensors.append(ShipperMetrics(shipper))
    sender = MetricSender(
        url,
        lambda: config.api_key,
        [("job", "harchos-node"), ("instance", config.agent_id), ("country", config.country)],
        sensors,
        RequestSpool(config.state_dir / "telemetry"),
        clock,
    )
    await sender.run()


def _running(state_dir: Path) -> Iterator[RunningTask]:
    """The tasks of the agent, by their files."""
    from harch.execution.preparation import WORKLOAD_TYPE
    from harch.execution.taskdir import TaskDir, key_of
    from harch.sentinel.node.sensors import RunningTask

    for record in (state_dir / "tasks").glob("*/running.json"):
        key = key_of(record.parent.name)
        running, launched = TaskDir(record.parent).facts().running, TaskDir(record.parent).launch_spec()
        if running is None or launched is None:
            continue  # it has just ended
        if key is not None and not (record.parent / "ended.json").exists():
            yield RunningTask(key.workload_id, running.pid, launched.env.get(WORKLOAD_TYPE, ""))


def _read_key(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError as error:
        raise HarchError(
            "E0101", f"cannot read {path}: {error.strerror}", hint="the hub writes `agent.key` into its state folder"
        ) from error


def _port_range(text: str) -> tuple[int, int]:
    first, _, last = text.partition("-")
    if not (first.isdecimal() and last.isdecimal() and 1024 <= int(first) <= int(last) <= 65535):
        raise HarchError("E0201", f"invalid --gang-ports: `{text}`", hint="use a range such as 29500-29599")
    return int(first), int(last)
