"""What does a request to SENTINEL say, and what goes back?

Parameters, times and the tenant in; Prometheus' envelope around data or an error out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qs

import orjson

from harch.base.errors import HarchError
from harch.base.integers import read_natural
from harch.sentinel.http.access import ANONYMOUS, Caller
from harch.sentinel.model.durations import parse_duration_ms

PARAMETERS_MAX = 1000
HUBS_HEADER = "x-harch-hubs"
_COUNT_MAX = 10**12
_MS_MAX = 2**53  # beyond it no double tells one millisecond from the next


@dataclass(frozen=True, slots=True)
class TelemetryRequest:
    """One request, read as far as every route needs it."""

    method: str
    path: str
    headers: Mapping[str, str]  # names in lower case
    parameters: Mapping[str, Sequence[str]]  # of the address and, with POST, of the form
    body: bytes
    tenant: str
    now_ms: int
    is_gone: Callable[[], bool] = lambda: False  # whether the caller has hung up: nobody waits for the answer any more
    caller: Caller = ANONYMOUS

    @property
    def hubs(self) -> str:
        """Which hubs are asked: `all`, or names with commas; empty for this one alone."""
        return self.one("hubs") or self.headers.get(HUBS_HEADER, "")

    def one(self, name: str, default: str = "") -> str:
        values = self.parameters.get(name)
        return values[0] if values else default

    def needed(self, name: str) -> str:
        value = self.one(name)
        if not value:
            raise HarchError("E0201", f"the parameter `{name}` is missing", field=name)
        return value

    def all(self, name: str) -> Sequence[str]:
        """All values of a parameter; `name[]` is how Prometheus writes those that may come several times."""
        return [*self.parameters.get(name, ()), *self.parameters.get(f"{name}[]", ())]

    def time_ms(self, name: str, default: int) -> int:
        text = self.one(name)
        return parse_time_ms(text, name) if text else default

    def flag(self, name: str) -> bool:
        return self.one(name).lower() in {"1", "true", "t"}

    def count(self, name: str, default: int = 0) -> int:
        text = self.one(name)
        if not text:
            return default
        number = read_natural(text)
        if number is None or number > _COUNT_MAX:
            raise HarchError("E0201", f"`{name}` must be a whole number, not `{text[:40]}`", field=name)
        return number


def read_parameters(query_string: bytes, form: bytes = b"") -> dict[str, list[str]]:
    """Raises E0201 for more parameters than anybody needs."""
    try:
        found = parse_qs(query_string.decode("utf-8"), keep_blank_values=True, max_num_fields=PARAMETERS_MAX)
        if form:
            posted = parse_qs(form.decode("utf-8"), keep_blank_values=True, max_num_fields=PARAMETERS_MAX)
            for name, values in posted.items():
                found.setdefault(name, []).extend(values)
    except (ValueError, UnicodeDecodeError) as problem:
        raise HarchError("E0201", f"the parameters cannot be read: {problem}") from problem
    return found


def parse_time_ms(text: str, name: str = "time") -> int:
    """Unix seconds with a fraction, or RFC 3339."""
    try:
        seconds = float(text)
    except ValueError:
        return _rfc3339_ms(text, name)
    if not math.isfinite(seconds) or abs(seconds) * 1000 > _MS_MAX:
        raise HarchError("E0201", f"`{name}`: `{text[:40]}` is not a time", field=name, hint="write Unix seconds")
    return round(seconds * 1000)


def parse_step_ms(text: str, name: str = "step") -> int:
    """Seconds with a fraction, or a duration such as `15s`. Raises E0201 for anything not above 0."""
    try:
        ms = round(float(text) * 1000)
    except (ValueError, OverflowError):
        ms = parse_duration_ms(text)
    if ms <= 0 or ms > _MS_MAX:
        raise HarchError("E0201", f"`{name}` must be above 0", field=name, hint="e.g. `step=15` or `step=1m`")
    return ms


def _rfc3339_ms(text: str, name: str) -> int:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        hint = "write Unix seconds or e.g. `2026-01-31T12:00:00Z`"
        raise HarchError("E0201", f"`{name}`: `{text[:40]}` is not a time", field=name, hint=hint) from None
    if moment.tzinfo is None:
        raise HarchError("E0201", f"`{name}`: `{text}` has no time zone", field=name, hint="append `Z`")
    return round(moment.astimezone(UTC).timestamp() * 1000)


# What does SENTINEL answer? Prometheus' envelope around data or an error, which carries our code as well.


JSON = "application/json"
_ERROR_TYPES = {400: "bad_data", 401: "unauthorized", 403: "forbidden", 404: "not_found", 429: "too_many_requests"}


@dataclass(frozen=True, slots=True)
class HttpReply:
    status: int = 200
    body: bytes = b""
    content_type: str = JSON
    headers: Sequence[tuple[str, str]] = field(default=())


def to_json(value: Any) -> bytes:
    """JSON of the value. Text that is no UTF-8 (a query may contain any bytes) is shown with replacement marks."""
    try:
        return orjson.dumps(value)
    except TypeError:
        return orjson.dumps(_readable(value))


def _readable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {_readable(key): _readable(one) for key, one in value.items()}
    return [_readable(one) for one in value] if isinstance(value, (list, tuple)) else value


def success(data: Any, *, warnings: Sequence[str] = (), infos: Sequence[str] = ()) -> HttpReply:
    envelope: dict[str, Any] = {"status": "success", "data": data}
    if warnings:
        envelope["warnings"] = list(warnings)
    if infos:
        envelope["infos"] = list(infos)
    return HttpReply(body=to_json(envelope))


def plain_json(data: Any, status: int = 200) -> HttpReply:
    """Without the envelope: Alertmanager's and other protocols have their own shapes."""
    return HttpReply(status, to_json(data))


def failure(error: HarchError) -> HttpReply:
    """The shape that Grafana shows to people: `errorType` and `error`; `code` and `hint` are ours."""
    status = error.kind.status
    envelope = {
        "status": "error",
        "errorType": _error_type(error),
        "error": error.message,
        "message": error.message,  # Grafana's Loki data source shows this one
        "code": error.code,
        "hint": error.hint or error.kind.explanation,
    }
    headers = [("Retry-After", str(error.retry_after_s))] if error.retry_after_s else []
    return HttpReply(status, to_json(envelope), headers=headers)


def _error_type(error: HarchError) -> str:
    if error.code == "E0604":
        return "timeout"
    status = error.kind.status
    if status >= 500:
        return "unavailable" if status == 503 else "internal"
    return _ERROR_TYPES.get(status, "execution")
