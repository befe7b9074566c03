"""What has to stay of a task that ended well? The declared files of its working folder, at the hub, by their hash."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from harch.base.errors import HarchError
from harch.execution.content.cancellation import Cancellation
from harch.execution.content.hub_client import HubClient
from harch.execution.content.work_files import snapshot
from harch.execution.protocol import TaskArtifact
from harch.execution.taskdir import ArtifactsKept
from harch.workloads.spec import Artifact

LOST_CHARS_MAX = 500
_log = logging.getLogger(__name__)


def keep_artifacts(work: Path, wanted: Sequence[Artifact], hub: HubClient, cancellation: Cancellation) -> ArtifactsKept:
    """Uploads what the hub lacks of each. What cannot be kept does not stop the others. Raises Cancelled."""
    kept: list[TaskArtifact] = []
    lost: list[str] = []
    for artifact in wanted:
        try:
            kept.append(_keep(work, artifact, hub, cancellation))
        except HarchError as error:
            lost.append(f"{artifact.name}: {error.code} {error.message}"[:LOST_CHARS_MAX])
            _log.warning("artifact %s is not kept: %s %s", artifact.name, error.code, error.message)
    return ArtifactsKept(artifacts=tuple(kept), lost=tuple(lost))


def _keep(work: Path, artifact: Artifact, hub: HubClient, cancellation: Cancellation) -> TaskArtifact:
    packed = snapshot(work, artifact.path, hub, cancellation)
    return TaskArtifact(artifact.name, packed.digest, packed.size_bytes, packed.files)
