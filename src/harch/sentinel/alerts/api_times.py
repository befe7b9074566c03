"""How does Alertmanager's API write a time? RFC 3339 with milliseconds; and how is one read?"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from harch.base.errors import HarchError

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ZERO_TIME = "0001-01-01T00:00:00"


def shown_time(at_ms: int) -> str:
    return f"{(_EPOCH + timedelta(milliseconds=at_ms)).isoformat(timespec='milliseconds')[:-6]}Z"


def read_time_ms(value: object, field: str) -> int:
    """0 for no time and for Go's zero time. Raises E0201."""
    if value is None or value == "":
        return 0
    if isinstance(value, str):
        if value.startswith(_ZERO_TIME):
            return 0
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            moment = None
        if moment is not None and moment.tzinfo is not None:
            return (moment - _EPOCH) // timedelta(milliseconds=1)
    raise HarchError(
        "E0201",
        f"`{str(value)[:40]}` is not a time in RFC 3339",
        hint="write e.g. `2026-01-01T12:00:00Z`",
        field=field,
    )
