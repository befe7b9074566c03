"""How much may one client ask for? Every limit of the HTTP side, in one place."""

from __future__ import annotations

from dataclasses import dataclass

FRAME_BYTES_MAX = 8 * 1024 * 1024  # of a WebSocket


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """What an operator may want to change."""

    body_bytes_max: int = 1024 * 1024
    # What is read and thrown away after a 413, so that a client which sends first and reads later sees the answer.
    drain_bytes_max: int = 256 * 1024 * 1024
    drain_s_max: float = 20.0
    event_streams_max: int = 64  # each reads the history whenever something happens
    log_streams_max: int = 256
    exports_max: int = 8
    heartbeat_s: float = 15.0
    stalled_s_max: float = 60.0  # a reader of a stream that takes nothing for so long is dropped
    log_poll_s: float = 0.3
