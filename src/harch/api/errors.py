"""How is an error answered over HTTP? One body that every public client shows well, for every kind of error."""

from __future__ import annotations

import re

import msgspec
from msgspec import Struct

from harch.base.errors import HarchError

# What the public SDKs call the errors that they have own classes for.
_CLIENT_REASONS = {"E0402": "carbon_budget_exceeded", "E0902": "data_residency_violation"}
_MSGSPEC_PATH = re.compile(r"^(?P<what>.*?)(?: - at `\$\.?(?P<field>[^`]*)`)?$", re.DOTALL)
_UNKNOWN_FIELD = re.compile(r"^Object contains unknown field `(?P<name>.*)`$", re.DOTALL)


class ErrorDetail(Struct, frozen=True, kw_only=True):
    code: str
    title: str
    message: str
    detail: str
    hint: str
    doc_url: str
    field: str | None
    meta: dict[str, object]


class ErrorBody(Struct, frozen=True, kw_only=True):
    """`code`, `message` and `details` at the top for the Terraform client, `error` for the SDKs."""

    success: bool = False
    code: str
    message: str
    details: str  # a string always: the Terraform client cannot decode anything else
    reason: str | None = None
    request_id: str
    error: ErrorDetail


def error_body(error: HarchError, request_id: str) -> bytes:
    detail = error.hint or error.kind.explanation
    return msgspec.json.encode(
        ErrorBody(
            code=error.code,
            message=error.message,
            details=detail,
            reason=_CLIENT_REASONS.get(error.code),
            request_id=request_id,
            error=ErrorDetail(
                code=error.code,
                title=error.kind.title,
                message=error.message,
                detail=detail,
                hint=error.hint,
                doc_url=f"/docs/errors/{error.code}",
                field=error.field,
                meta=error.meta,
            ),
        )
    )


def error_headers(error: HarchError) -> list[tuple[bytes, bytes]]:
    headers = [(b"content-type", b"application/json")]
    if error.retry_after_s is not None:
        headers.append((b"retry-after", b"%d" % error.retry_after_s))
    if error.kind.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    return headers


def input_error(error: Exception) -> HarchError:
    """What msgspec or a value check refused, with the field's path. Values are never repeated: they may be secrets."""
    if isinstance(error, RecursionError):
        return HarchError("E0202", "the JSON is nested too deeply", hint="flatten it")
    if isinstance(error, msgspec.ValidationError):
        match = _MSGSPEC_PATH.match(str(error))
        what, field = (match["what"], match["field"]) if match else (str(error), None)
        unknown = _UNKNOWN_FIELD.match(what)
        if unknown:
            field = f"{field}.{unknown['name']}" if field else unknown["name"]
            return HarchError(
                "E0201", f"field `{field}` is not known", hint="`/docs` lists the fields of each call", field=field
            )
        message = f"field `{field}`: {what[:1].lower()}{what[1:]}" if field else what
        return HarchError("E0201", message, hint="`/docs` lists the fields of each call", field=field or None)
    if isinstance(error, msgspec.DecodeError):
        return HarchError("E0202", f"the body is not well-formed JSON: {error}", hint="send one JSON object in UTF-8")
    return HarchError("E0201", str(error))


def internal_fault(request_id: str) -> HarchError:
    """What a client hears of a fault of ours: nothing of the inside, but where to look for it."""
    return HarchError("E1001", "the hub failed to handle this request", hint=f"see its log under `{request_id}`")
