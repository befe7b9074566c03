"""What does SENTINEL tell about logs? Lines with their labels, and lines as they come."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from msgspec import Struct
from msgspec.json import decode

from harch.base.errors import REGISTRY, HarchError

MESSAGE_BYTES_MAX = 64 << 20
CATEGORIZED = {"X-Loki-Response-Encoding-Flags": "categorize-labels"}
_METADATA, _PARSED = "structuredMetadata", "parsed"


class LogLine(Struct, frozen=True):
    """One line. `labels` are those of its stream; `metadata` came with the line; `parsed` was found by the query."""

    time_ns: int
    line: str
    labels: dict[str, str]
    metadata: dict[str, str] = {}
    parsed: dict[str, str] = {}


class LogLines(Struct, frozen=True):
    """Lines in the order of time, and how many were left out because the reader was too slow.

    `warnings` name hubs that were asked and told nothing.
    """

    lines: list[LogLine]
    dropped: int = 0
    warnings: list[str] = []


def lines_of(told: Mapping[str, Any], warnings: Sequence[str] = ()) -> LogLines:
    """What `query_range` answers as `data`, or what one message of `tail` says."""
    streams: Iterable[Any] = told.get("result", told.get("streams", []))
    found = [
        LogLine(
            int(value[0]),
            value[1],
            stream["stream"],
            value[2].get(_METADATA, {}) if len(value) > 2 else {},
            value[2].get(_PARSED, {}) if len(value) > 2 else {},
        )
        for stream in streams
        for value in stream["values"]
    ]
    found.sort(key=lambda one: one.time_ns)
    return LogLines(found, int(told.get("dropped_count", 0)), list(warnings))


def follow(url: str, headers: Mapping[str, str], parameters: Mapping[str, str]) -> Iterator[LogLines]:
    """Lines as they are stored, until the connection ends. Raises HarchError when SENTINEL says no."""
    from websockets.exceptions import ConnectionClosedError, ConnectionClosedOK, InvalidStatus, WebSocketException
    from websockets.sync.client import connect

    address = f"ws{url.removeprefix('http')}/loki/api/v1/tail?{urlencode(parameters)}"
    try:
        with connect(
            address, additional_headers={**headers, **CATEGORIZED}, max_size=MESSAGE_BYTES_MAX, proxy=None
        ) as socket:
            for message in socket:
                yield lines_of(decode(message))
    except InvalidStatus as refused:
        raise _refusal(refused.response.body, refused.response.status_code) from refused
    except ConnectionClosedOK:
        return
    except ConnectionClosedError as ended:
        reason = ended.rcvd.reason if ended.rcvd is not None else "the connection broke"
        raise HarchError("E0802", f"SENTINEL stopped telling lines: {reason}") from ended
    except (OSError, WebSocketException) as problem:
        raise HarchError("E0802", f"no SENTINEL answers at {url}: {problem}") from problem


def _refusal(body: bytes | None, status: int) -> HarchError:
    try:
        told = decode(body or b"{}")
        code, message, hint = told["code"], told["error"], told.get("hint", "")
    except (ValueError, KeyError, TypeError):
        code, message, hint = "", "", ""
    if code not in REGISTRY:
        return HarchError("E0802", f"the answer was status {status}")
    return HarchError(code, message, hint=hint)
