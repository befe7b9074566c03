"""Is everything installed that pipelines need? Asked with the first pipeline, not before."""

from __future__ import annotations

import logging
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from harch.base.errors import HarchError

if TYPE_CHECKING:
    from harch.hub.pipelines.loop import PipelineLoop
    from harch.pipelines.engine.settings import EngineSettings

ENGINE_FILE = "engine.toml"

log = logging.getLogger("harch.hub")


# Workers import these by themselves: without this look, a pipeline would be accepted that no worker can run.
NEEDED_BY_WORKERS = ("numba", "crc32c", "zstandard")


def engine_settings(folder: Path) -> EngineSettings | None:
    """What `engine.toml` in the hub's state folder says; None without such a file. Raises E0745."""
    path = folder / ENGINE_FILE
    if not path.exists():
        return None
    from harch.pipelines.engine.settings import load_settings

    return load_settings(path)


def loop_maker(*, own_engine: bool = True) -> Callable[..., PipelineLoop]:
    """Raises E0740 with what to install, and E0702 without a message engine where the hub runs its own."""
    try:
        from harch.hub.pipelines.loop import open_loop
        from harch.pipelines.engine.server import find_nats_server
    except ImportError as error:
        raise _missing(str(error.name)) from error
    for package in NEEDED_BY_WORKERS:
        if find_spec(package) is None:
            raise _missing(package)
    if own_engine:
        find_nats_server()
    return open_loop


def _missing(package: str) -> HarchError:
    log.error("pipelines are disabled: the package %s is not installed", package)
    return HarchError(
        "E0740",
        f"pipelines need a package that is not installed: {package}",
        hint="`pip install 'harch[pipelines,inference]'` on the hub (in a clone: `make install`), and restart it",
    )
