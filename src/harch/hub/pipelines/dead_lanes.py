"""How does what was given up go through the pipeline again? From the dead lanes, by number or time."""

from __future__ import annotations

import base64
from datetime import datetime
from typing import Any

from harch.base.errors import HarchError
from harch.pipelines.client.errors import JetStreamRefused, NatsError, as_harch_error
from harch.pipelines.engine.jetstream_api import JetStreamAdmin
from harch.pipelines.workers.names import PipelineNames

REPLAYED_MAX = 10_000
_NO_MESSAGE = 10037


async def replay_lane(
    admin: JetStreamAdmin,
    names: PipelineNames,
    lane: str,
    *,
    from_seq: int,
    since: datetime | None,
    dry_run: bool,
) -> tuple[int, int]:
    """Sends messages of one dead lane again, `features` to THINK or `outputs` to ACT; answers how many, and the last.

    Each is stored in its lane before the dead one is deleted, so that a crash repeats it and loses none: windows and
    commands carry their own keys. Raises E0701."""
    seq, count = max(0, from_seq - 1), 0
    target = names.features if lane == "features" else names.outputs
    try:
        while count < REPLAYED_MAX:
            message = await _next(admin, names, seq + 1)
            if message is None:
                break
            seq = int(message["seq"])
            if since is not None and _time_of(message) < since:
                continue
            if not dry_run:
                partition = str(message["subject"]).rpartition(".")[2]
                payload = base64.b64decode(message.get("data", ""))
                await admin.client.publish_stored(target(partition), payload)
                await admin.call(f"STREAM.MSG.DELETE.{names.dead_stream}", {"seq": seq, "no_erase": True})
            count += 1
    except NatsError as error:
        raise as_harch_error(error, f"replaying {lane}") from error
    return count, seq


async def _next(admin: JetStreamAdmin, names: PipelineNames, seq: int) -> dict[str, Any] | None:
    try:
        found = await admin.call(f"STREAM.MSG.GET.{names.dead_stream}", {"seq": seq, "next_by_subj": names.dead("*")})
    except JetStreamRefused as error:
        if error.code == _NO_MESSAGE:
            return None
        raise
    message = found.get("message")
    if not isinstance(message, dict):
        raise HarchError("E1001", "the engine answered something that is no message")
    return message


def _time_of(message: dict[str, Any]) -> datetime:
    """JetStream writes nanoseconds, which Python does not read."""
    text = str(message["time"]).removesuffix("Z")
    whole, _, part = text.partition(".")
    return datetime.fromisoformat(f"{whole}.{(part or '0')[:6]:0<6}+00:00")
