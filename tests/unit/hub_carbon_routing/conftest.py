"""The bench of the job machine, here too."""

from __future__ import annotations

from unit.hub.conftest import bench

__all__ = ["bench"]
