"""How does an agent get at its hub's content? Requests with its key that survive a hub which restarts.

Requests run in threads of their own: whoever waits for one and is called off leaves at once. None of them changes
anything at the hub when it is made twice, so each is repeated until the hub answers or patience is at its end.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar
from urllib.parse import urlsplit

import httpx
import msgspec

from harch.base.errors import REGISTRY, HarchError
from harch.content.frames import BATCH_BYTES_MAX, HEAD_BYTES, decode_ids, encode_ids
from harch.execution.content.cancellation import Cancellation
from harch.wire.content import ChunksStored, TransferView, TreeView

CONNECT_TIMEOUT_S = 5.0
ANSWER_TIMEOUT_S = 60.0  # the hub may have to read a whole batch from a bucket
CONNECTIONS_MAX = 32
RETRY_S_MAX = 600.0  # without one answer; a hub that is started again is back long before
BACKOFF_S_MIN, BACKOFF_S_MAX = 0.1, 5.0
POLL_S = 1.0  # while the hub fetches something from another one
ANSWER_BYTES_MAX = 2 * BATCH_BYTES_MAX
JSON_BYTES_MAX = 1024 * 1024
_AGAIN = frozenset({429, 502, 503, 504})
_BYTES = {"content-type": "application/octet-stream"}
_PATH = "/v1/agents/content"
_CONNECT_PATH = "/v1/agents/connect"
Answer = TypeVar("Answer")


def connect(hub_url: str, api_key: str) -> httpx.Client:
    """One for all tasks of an agent: it may be used from many threads."""
    return httpx.Client(
        base_url=http_url(hub_url),
        headers={"X-API-Key": api_key},
        timeout=httpx.Timeout(ANSWER_TIMEOUT_S, connect=CONNECT_TIMEOUT_S),
        limits=httpx.Limits(max_connections=CONNECTIONS_MAX, max_keepalive_connections=CONNECTIONS_MAX),
        trust_env=False,
    )


def http_url(hub_url: str) -> str:
    """From the hub's address as people write it (http or ws, with or without the agents' path)."""
    parts = urlsplit(hub_url)
    scheme = {"ws": "http", "wss": "https"}.get(parts.scheme, parts.scheme)
    return f"{scheme}://{parts.netloc}{parts.path.rstrip('/').removesuffix(_CONNECT_PATH)}"


class HubClient:
    """The content routes of the hub, on behalf of one workload. `note` hears, once, that the hub does not answer."""

    def __init__(
        self,
        client: httpx.Client,
        workload_id: str,
        cancellation: Cancellation,
        *,
        note: Callable[[str], None] = lambda text: None,
        retry_s_max: float = RETRY_S_MAX,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client, self._workload_id, self._cancellation = client, workload_id, cancellation
        self._note, self._retry_s_max, self._monotonic_s = note, retry_s_max, monotonic_s
        self._failing_since_s: float | None = None
        self._lock = threading.Lock()

    def tree(self, data_id: str, *, progress: Callable[[TransferView], None] = lambda view: None) -> TreeView:
        """What a data object holds, once this hub has it. Raises E1102 if no hub may or can send it, E1113 if it stops
        coming."""
        best, since_s = -1, self._monotonic_s()
        while True:
            answer = self.request("POST", "/trees", {"data": data_id})
            if answer.status_code != httpx.codes.ACCEPTED:
                return _decoded(answer, TreeView)
            view = _decoded(answer, TransferView)
            if view.error:
                raise HarchError("E1113", f"{data_id} does not come from hub {view.source_hub}: {view.error}")
            if view.bytes_done > best:
                best, since_s = view.bytes_done, self._monotonic_s()
            elif self._monotonic_s() - since_s > self._retry_s_max:
                raise HarchError("E1113", f"{data_id} has stopped coming from hub {view.source_hub}")
            progress(view)
            self._cancellation.sleep(POLL_S)

    def image(self, reference: str) -> TreeView | None:
        """The OCI layout that the hub has for this reference, if it has one."""
        try:
            return _decoded(self.request("POST", "/images", {}, _json(reference=reference)), TreeView)
        except HarchError as error:
            if error.code == "E1102":
                return None
            raise

    def keep_image(self, reference: str, image_digest: str, digest: str) -> TreeView:
        """Tells the hub which tree, uploaded before, is the OCI layout of a reference."""
        body = _json(reference=reference, image_digest=image_digest, digest=digest)
        return _decoded(self.request("PUT", "/images", {}, body), TreeView)

    def chunks(self, ref: str = "") -> HubChunks:
        """Where the chunks of a tree are read, by its `ref`, or where those of a new one are put."""
        return HubChunks(self, ref)

    def request(
        self,
        method: str,
        path: str,
        params: Mapping[str, str],
        body: bytes | None = None,
        *,
        bytes_max: int = JSON_BYTES_MAX,
        headers: Mapping[str, str] | None = None,
    ) -> httpx.Response:
        """The hub's answer, unless it is an error, which is raised. Tries again where that can help."""
        failures = 0
        while True:
            failure, retry_after_s = self._once(method, path, params, body, bytes_max, headers)
            if isinstance(failure, httpx.Response):
                self._failing_since_s = None
                return failure
            failures += 1
            self._bear(failure)
            ceiling_s = min(BACKOFF_S_MAX, BACKOFF_S_MIN * float(1 << min(failures, 10)))
            jitter = 0.5 + 0.5 * random.random()  # noqa: S311 - not a secret
            self._cancellation.sleep(max(ceiling_s * jitter, min(retry_after_s, BACKOFF_S_MAX)))

    def _once(
        self,
        method: str,
        path: str,
        params: Mapping[str, str],
        body: bytes | None,
        bytes_max: int,
        headers: Mapping[str, str] | None,
    ) -> tuple[httpx.Response | HarchError, float]:
        request = self._client.build_request(
            method, _PATH + path, params={"workload": self._workload_id, **params}, content=body, headers=headers
        )
        try:
            answer = self._cancellation.abandonable(lambda: _send(self._client, request, bytes_max))
        except httpx.RequestError as error:
            sentence = f"the hub at {self._client.base_url} does not answer: {type(error).__name__} {error}".rstrip()
            return HarchError("E1113", sentence, hint="see whether the hub runs and can be reached"), 0.0
        if answer.is_success:
            return answer, 0.0
        refusal = _error_of(answer)
        if answer.status_code not in _AGAIN:
            raise refusal
        return refusal, _seconds(answer.headers.get("retry-after", ""))

    def _bear(self, failure: HarchError) -> None:
        """Raises it when there was no answer for too long."""
        with self._lock:
            now_s = self._monotonic_s()
            is_first = self._failing_since_s is None
            since_s = self._failing_since_s = now_s if self._failing_since_s is None else self._failing_since_s
        if is_first:
            self._note(f"{failure.message}; trying again")
        if now_s - since_s >= self._retry_s_max:
            raise failure


class HubChunks:
    """The `ChunkDoor` of an agent."""

    def __init__(self, hub: HubClient, ref: str) -> None:
        self._hub, self._ref = hub, ref

    def missing(self, ids: Sequence[bytes]) -> list[bytes]:
        answer = self._hub.request(
            "POST", "/missing", {}, encode_ids(ids), headers=_BYTES, bytes_max=max(JSON_BYTES_MAX, 32 * len(ids))
        )
        return decode_ids(answer.content)

    def put(self, body: bytes) -> ChunksStored:
        return _decoded(self._hub.request("POST", "/chunks", {}, body, headers=_BYTES), ChunksStored)

    def fetch(self, ids: Sequence[bytes]) -> bytes:
        limit = ANSWER_BYTES_MAX + HEAD_BYTES * len(ids)
        params = {"ref": self._ref}
        return self._hub.request("POST", "/fetch", params, encode_ids(ids), headers=_BYTES, bytes_max=limit).content


def _send(client: httpx.Client, request: httpx.Request, bytes_max: int) -> httpx.Response:
    """The whole answer, up to a limit. Raises httpx.RequestError."""
    answer = client.send(request, stream=True)
    try:
        pieces, size = [], 0
        for piece in answer.iter_bytes():
            size += len(piece)
            if size > bytes_max:
                raise httpx.RemoteProtocolError(f"its answer is larger than {bytes_max} bytes")
            pieces.append(piece)
    finally:
        answer.close()
    return httpx.Response(
        answer.status_code,
        headers={name: answer.headers[name] for name in ("retry-after",) if name in answer.headers},
        content=b"".join(pieces),
    )


def _error_of(answer: httpx.Response) -> HarchError:
    try:
        body = answer.json()
        code, message, hint = str(body["code"]), str(body["message"]), str(body["error"].get("hint", ""))
    except (ValueError, KeyError, TypeError, AttributeError):
        code, message, hint = "", "", ""
    if code not in REGISTRY:
        code, message = "E1113", f"the hub answered with status {answer.status_code}"
    return HarchError(code, message, hint=hint)


def _decoded(answer: httpx.Response, kind: type[Answer]) -> Answer:
    try:
        return msgspec.json.decode(answer.content, type=kind)
    except msgspec.DecodeError as error:
        raise HarchError("E1113", f"the hub gave an answer that this agent cannot read: {error}") from error


def _json(**fields: str) -> bytes:
    return msgspec.json.encode(fields)


def _seconds(text: str) -> float:
    return float(text) if text.isdecimal() else 0.0
