"""How do events reach a pipeline through the API of its hub? Handed to its HTTP source, whose answer is the answer."""

from __future__ import annotations

from collections.abc import Mapping

import httpx

from harch.base.egress import Guard, NotPermitted
from harch.base.errors import HarchError
from harch.base.guarded_http import GuardedTransport
from harch.sovereignty.places import EgressRule

TIMEOUT_S = 20.0


def served_source(sources: Mapping[str, str], wanted: str, pipeline: str) -> str:
    """The wanted HTTP source, or the only one. Raises E0751 while there is none, E0201."""
    served = {name: url for name, url in sources.items() if url.startswith("http")}
    if not served:
        raise HarchError(
            "E0751",
            f"no HTTP source of `{pipeline}` is served yet",
            hint="`harch pipeline show` tells",
            retry_after_s=2,
        )
    if wanted and wanted not in served:
        raise HarchError("E0201", f"`{pipeline}` has no HTTP source `{wanted}`", hint=f"it has {', '.join(served)}")
    if not wanted and len(served) > 1:
        raise HarchError("E0201", f"`{pipeline}` has several HTTP sources", hint=f"name one: {', '.join(served)}")
    return wanted or next(iter(served))


async def forward(url: str, body: bytes, content_type: str, key: str) -> bytes:
    """What the source answered. Raises E0742 if it has no room, E0201 if it refuses, E0751 if it is not there.

    Workers say themselves where they listen, so the address is held to this machine."""
    headers = {"content-type": content_type, "x-api-key": key}
    transport = GuardedTransport(Guard(EgressRule().refusal))
    try:
        async with httpx.AsyncClient(timeout=TIMEOUT_S, trust_env=False, transport=transport) as client:
            answer = await client.post(f"{url}/v1/events", content=body, headers=headers)
    except (httpx.HTTPError, NotPermitted) as error:
        raise HarchError(
            "E0751", f"the source does not answer ({type(error).__name__})", hint="try again", retry_after_s=1
        ) from error
    if answer.status_code == 429:
        raise HarchError("E0742", "the pipeline is behind and has no room", hint="try again", retry_after_s=1)
    if answer.status_code == 401:
        raise HarchError(
            "E0751", "the source does not know its new key yet", hint="try again in a moment", retry_after_s=1
        )
    if answer.status_code >= 400:
        raise HarchError("E0201", f"the source refuses it: {answer.text[:500]}", hint="docs/pipelines/sense.md")
    return answer.content
