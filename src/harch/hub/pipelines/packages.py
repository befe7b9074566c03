"""Is everything installed that pipelines need? Asked with the first pipeline, not before."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from harch.base.errors import HarchError

if TYPE_CHECKING:
    from harch.hub.pipelines.loop import PipelineLoop

log = logging.getLogger("harch.hub")


def loop_maker() -> Callable[..., PipelineLoop]:
    """Raises E0740 with what to install."""
    try:
        from harch.hub.pipelines.opening import open_loop
    except ImportError as error:
        log.error("pipelines do not run: the package %s is not installed", error.name)
        raise HarchError(
            "E0740",
            f"pipelines need a package that is not installed here: {error.name}",
            hint="`pip install 'harch[pipelines,inference]'` on the hub, and start it again",
        ) from error
    return open_loop
