"""What do the long-running verbs share? Their log, and the fleet that they serve."""

from __future__ import annotations

import ctypes
import gc
import logging
import logging.handlers
import os
import signal
from pathlib import Path

from harch.base.tracing.tracer import show_traces
from harch.fleet.file import load_fleet, shipped_fleet, shipped_fleet_names
from harch.fleet.model import Fleet

_PR_SET_PDEATHSIG = 1
LOG_BYTES_MAX, LOG_FILES_KEPT = 10 * 1024 * 1024, 3


def open_fleet(name_or_path: str) -> Fleet:
    return shipped_fleet(name_or_path) if name_or_path in shipped_fleet_names() else load_fleet(Path(name_or_path))


def end_with_parent() -> None:
    """A child of `harch up` is told to stop when its parent is gone, even if that was killed."""
    parent = os.environ.get("HARCH_PARENT_PID")
    if parent is not None:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM))
        if os.getppid() != int(parent):  # it died before we could ask the kernel
            raise SystemExit(1)


def stay_without_parent() -> None:
    """Takes back `end_with_parent`: from now on somebody else finds this process, and stops it if need be."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, 0)


def calm_collector() -> None:
    """What is loaded at start lives as long as the process: the collector need not look at it again and again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


def set_up_logging(log_file: str | None) -> None:
    handler: logging.Handler = (
        logging.handlers.RotatingFileHandler(log_file, maxBytes=LOG_BYTES_MAX, backupCount=LOG_FILES_KEPT)
        if log_file
        else logging.StreamHandler()
    )
    show_traces(handler)
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    logging.getLogger("httpx").setLevel(logging.WARNING)  # one line per poll of a peer helps nobody
