"""`python -m harch.pipelines.workers STAGE --config FILE`: one worker, until SIGTERM and drained."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
from collections.abc import Callable, MutableMapping
from pathlib import Path

from harch.base.errors import HarchError
from harch.base.state_files import keep_files_private
from harch.pipelines.workers.config import WorkerConfig, read_config
from harch.pipelines.workers.shell import Shell, StageBody

# Variables by which clients of sinks and sources would connect to somebody else than they are told to: proxies, and
# what libpq fills in.
_LEADING_ELSEWHERE = ("PROXY", "PGHOST", "PGHOSTADDR", "PGPORT", "PGSERVICE", "PGSERVICEFILE", "PGSYSCONFDIR")
STAGES = ("source", "sense", "think", "act", "fused", "replay")


def main() -> int:
    parser = argparse.ArgumentParser(prog="harch.pipelines.workers", description=__doc__)
    parser.add_argument("stage", choices=STAGES)
    parser.add_argument("--config", type=Path, required=True, help="file of mode 0600, written by the hub")
    arguments = parser.parse_args()
    keep_files_private()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s", stream=sys.stderr)
    logging.getLogger("httpx").setLevel(logging.WARNING)  # a line per request, with its address, is nobody's business
    forget_what_leads_elsewhere(os.environ)
    try:
        config = read_config(arguments.config)
        if config.stage != arguments.stage:
            raise HarchError(
                "E0750", f"the configuration is for `{config.stage}`, not `{arguments.stage}`", hint="use its own"
            )
        run(config)
    except HarchError as error:
        logging.getLogger(__name__).error("error[%s]: %s; hint: %s", error.code, error.message, error.hint)
        return 1
    return 0


def forget_what_leads_elsewhere(environment: MutableMapping[str, str]) -> None:
    """Clients shall connect to what the file says and the proof allows, whatever the machine or a secret is called."""
    for name in [name for name in environment if name.upper().endswith(_LEADING_ELSEWHERE)]:
        del environment[name]


def run(config: WorkerConfig) -> None:
    """The worker on an event loop of its own; uvloop where it is installed."""
    try:
        import uvloop
    except ImportError:
        asyncio.run(_run(config))
    else:
        uvloop.run(_run(config))


async def _run(config: WorkerConfig) -> None:
    shell = Shell(config)
    shell.claim_name()
    await shell.run(_body_of(config))


def _body_of(config: WorkerConfig) -> Callable[[Shell], StageBody]:
    """Imports only what this stage needs."""
    match config.stage:
        case "source":
            from harch.pipelines.workers.source_worker import SourceWorker

            return SourceWorker
        case "sense":
            from harch.pipelines.workers.lanes import lane_of
            from harch.pipelines.workers.sense_worker import SenseWorker

            return lambda shell: SenseWorker(shell, lane_of(shell))
        case "think":
            from harch.pipelines.workers.think_worker import ThinkWorker

            return ThinkWorker
        case "act":
            from harch.pipelines.workers.act_worker import ActWorker

            return ActWorker
        case "fused":
            from harch.pipelines.workers.lanes import FusedWorker

            return FusedWorker
        case "replay":
            from harch.pipelines.workers.replay_worker import ReplayWorker

            return ReplayWorker


if __name__ == "__main__":
    sys.exit(main())
