"""How does an agent process live? From the lock on its state folder to an orderly end.

By default, tasks outlive the agent and are adopted by the next one. With `stop_tasks_on_exit`, they are stopped first.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

from harch.base.clock import SystemClock
from harch.base.errors import HarchError
from harch.base.steady import SteadyClock
from harch.base.tracing.tracer import Tracing
from harch.execution import cgroups, sandbox
from harch.execution.admission import Premises
from harch.execution.agent import Agent
from harch.execution.config import AgentConfig
from harch.execution.local import LocalEngine
from harch.execution.modelled import ModelledEngine
from harch.execution.preparation import Preparation, StateFolder
from harch.execution.protocol import Hello
from harch.execution.session import Session
from harch.execution.task_spans import TaskSpans

SHUTDOWN_GRACE_S = 5.0  # between TERM and KILL, when the agent stops its tasks; a task's own grace may be an hour
SHUTDOWN_KILL_S = 3.0
SHUTDOWN_FORGET_S = 3.0
POLL_S = 0.01


async def serve(config: AgentConfig, *, stop: asyncio.Event | None = None, tracing: Tracing | None = None) -> None:
    """Runs an agent until SIGTERM or SIGINT, or until `stop` is set by a caller who handles signals itself.

    Raises E0312 where tasks must be confined and cannot be: a node that starts nothing should not be given work.
    """
    state = StateFolder(Path(_real(config.state_dir)))
    with held(state):
        if stop is None:
            stop = asyncio.Event()
            for signum in (signal.SIGTERM, signal.SIGINT):
                asyncio.get_running_loop().add_signal_handler(signum, stop.set)
        await _serve(config, state, stop, TaskSpans(tracing) if tracing is not None else None)


async def _serve(config: AgentConfig, state: StateFolder, stop: asyncio.Event, spans: TaskSpans | None) -> None:
    clock = SteadyClock(SystemClock())
    hidden = tuple(_real(folder) for folder in (state.root, state.secrets, *config.hide))
    shared = tuple(_real(folder) for folder in config.share)
    box = sandbox.choose(config.sandbox, state.trash)
    box.check()
    limits = cgroups.detect(state.tag)
    premises = Premises(config.country, frozenset(config.node_ids), shared, hidden, config.safeguards, box.refusal)
    agent = Agent(premises, clock, spans)
    local = LocalEngine(Preparation(state, box, limits, hidden), agent, clock, process_slots=config.process_slots)
    modelled = ModelledEngine(agent, clock)
    agent.use(local, modelled)
    features = {**box.features(), **limits.features()}

    def say_hello() -> Hello:
        return agent.hello(
            agent_id=config.agent_id,
            process_slots=config.process_slots,
            address=config.address,
            gang_ports=config.gang_ports,
            features=features,
        )

    local.recover()
    if spans is not None:
        for known in local.running():
            launched = state.task(known.key).launch_spec()
            spans.adopted(known, launched.env if launched is not None else {})
    session = Session(agent, hub_url=config.hub_url, api_key=config.api_key, say_hello=say_hello)
    talking = asyncio.create_task(session.run())
    waiting = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({talking, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if talking.done():
            talking.result()  # raises what ended it
        elif config.stop_tasks_on_exit:
            await _stop_tasks(agent, session)
    finally:
        for task in (talking, waiting):
            task.cancel()
        await asyncio.gather(talking, waiting, return_exceptions=True)
        local.close()
        modelled.close()
        limits.close()
        state.close()


async def _stop_tasks(agent: Agent, session: Session) -> None:
    """Stops all tasks, then waits until the hub has their ends; what it could not hear is on disk for the next time."""
    agent.stop_everything(grace_s=SHUTDOWN_GRACE_S)
    await _until(lambda: agent.is_quiet, timeout_s=SHUTDOWN_GRACE_S + SHUTDOWN_KILL_S)
    await _until(lambda: agent.is_idle or not session.is_connected, timeout_s=SHUTDOWN_FORGET_S)


def _real(folder: Path) -> str:
    """Free of links: paths are compared as text from here on."""
    return os.path.realpath(folder)


async def _until(condition: Callable[[], bool], *, timeout_s: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            while not condition():  # noqa: ASYNC110 - once in the life of a process, for a few seconds
                await asyncio.sleep(POLL_S)


@contextlib.contextmanager
def held(state: StateFolder) -> Iterator[None]:
    """Makes the state folder and keeps every other agent out of it."""
    fd = -1
    try:
        state.make()
        fd = os.open(state.root / "agent.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(fd)
        hint = "stop that agent, or give this one another state folder"
        raise HarchError("E1005", f"another agent uses {state.root}", hint=hint) from error
    except OSError as error:
        hint = "give the agent a folder that it may write"
        raise HarchError("E1005", f"{error.filename or state.root}: {error.strerror}", hint=hint) from error
    try:
        yield
    finally:
        os.close(fd)
