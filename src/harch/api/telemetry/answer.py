"""What does SENTINEL answer? Prometheus' envelope around data or an error, which carries our code as well."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from harch.base.errors import HarchError

JSON = "application/json"
_ERROR_TYPES = {400: "bad_data", 401: "unauthorized", 403: "forbidden", 404: "not_found", 429: "too_many_requests"}


@dataclass(frozen=True, slots=True)
class Answer:
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


def success(data: Any, *, warnings: Sequence[str] = (), infos: Sequence[str] = ()) -> Answer:
    told: dict[str, Any] = {"status": "success", "data": data}
    if warnings:
        told["warnings"] = list(warnings)
    if infos:
        told["infos"] = list(infos)
    return Answer(body=to_json(told))


def plain_json(data: Any, status: int = 200) -> Answer:
    """Without the envelope: Alertmanager's and other protocols have their own shapes."""
    return Answer(status, to_json(data))


def failure(error: HarchError) -> Answer:
    """The shape that Grafana shows to people: `errorType` and `error`; `code` and `hint` are ours."""
    status = error.kind.status
    told = {
        "status": "error",
        "errorType": _error_type(error),
        "error": error.message,
        "message": error.message,  # Grafana's Loki data source shows this one
        "code": error.code,
        "hint": error.hint or error.kind.explanation,
    }
    headers = [("Retry-After", str(error.retry_after_s))] if error.retry_after_s else []
    return Answer(status, to_json(told), headers=headers)


def _error_type(error: HarchError) -> str:
    if error.code == "E0604":
        return "timeout"
    status = error.kind.status
    if status >= 500:
        return "unavailable" if status == 503 else "internal"
    return _ERROR_TYPES.get(status, "execution")
