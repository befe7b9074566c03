"""How are times of telemetry shown to people?"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def moment(time_ms: int) -> datetime:
    """A time in milliseconds as a moment; also before 1970."""
    return _EPOCH + timedelta(milliseconds=time_ms)
