"""What do both kinds of routes about content share? Bodies of bytes, their limits, and how a tree is answered."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from harch.api.limits import CHUNK_NAMES_BYTES_MAX, CHUNKS_BYTES_MAX
from harch.api.routes.context import reply
from harch.api.schema import answers
from harch.base.http.limits import HttpLimits
from harch.wire.content import TransferView, TreeView

BYTES = "application/octet-stream"
_BINARY = {"schema": {"type": "string", "format": "binary"}}
TAKES_BYTES: dict[str, Any] = {"requestBody": {"required": True, "content": {BYTES: _BINARY}}}
GIVES_BYTES: dict[int | str, dict[str, Any]] = {200: {"description": "Done.", "content": {BYTES: _BINARY}}}
NAMES = HttpLimits(body_bytes_max=CHUNK_NAMES_BYTES_MAX)
CHUNKS = HttpLimits(body_bytes_max=CHUNKS_BYTES_MAX)
TREE = answers(TreeView) | answers(TransferView, "Another hub has it, and it is on its way: ask again.", 202)


def tree_reply(found: TreeView | TransferView) -> Response:
    return reply(found, status=200 if isinstance(found, TreeView) else 202)


def bytes_reply(body: bytes) -> Response:
    return Response(body, media_type=BYTES)
