"""How do senders reach the sources of a pipeline?

With the key of the source, over the API of the hub: handed to its HTTP source, whose answer is the answer.
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Mapping
from hashlib import sha256

import httpx

from harch.base.egress import EgressGuard, NotPermitted
from harch.base.errors import HarchError
from harch.base.guarded_http import GuardedTransport
from harch.hub.pipelines.values import PipelineRecord
from harch.pipelines.engine.keys import KeyFolder
from harch.pipelines.listener_keys import KEY_CHARS_MAX, KEY_CHARS_MIN, key_digest
from harch.pipelines.sense.settings import HttpSource, Listening, TcpSource
from harch.pipelines.spec.settings import PipelineSpec
from harch.sovereignty.jurisdictions import EgressRule

# Which key do the senders of a source show? The tenant's own secret, or one that the hub makes.
#
# A made key is derived from a root that lies beside the hub's other keys, so none is stored: the same pipeline, source
# and revision give the same key again, after a restart too. Workers get digests.


PREFIX = "hpk_"
ROOT = "source-keys"
_KEY_BYTES = 24


class SourceKeys:
    def __init__(self, keys: KeyFolder) -> None:
        self._keys = keys

    def of(self, record: PipelineRecord, spec: PipelineSpec, secrets: Mapping[str, str]) -> dict[str, str]:
        """The key of every source that listens. Raises E0306 and E0201 for a secret that is missing or too short."""
        return {
            source.name: _secret(source, secrets) if source.key_secret else self.made(record, source.name)
            for source in listening(spec)
        }

    def made(self, record: PipelineRecord, source: str) -> str:
        # `created_at` tells a pipeline from one that had its name before.
        revision = str(record.key_revisions.get(source, 0))
        words = (record.tenant, record.name, record.created_at, source, revision)
        made = hmac.new(self._keys.word(ROOT).encode(), "\0".join(words).encode(), sha256).digest()
        return PREFIX + base64.urlsafe_b64encode(made[:_KEY_BYTES]).decode()


def listening(spec: PipelineSpec) -> tuple[Listening, ...]:
    return tuple(source for source in spec.sense.sources if isinstance(source, HttpSource | TcpSource))


def made_for(spec: PipelineSpec, wanted: str) -> str:
    """The source whose key the hub makes: the wanted one, or the only one. Raises E0201 and E0711."""
    sources = {source.name: source for source in listening(spec)}
    names = ", ".join(sources) or "none of its sources listen"
    if wanted and wanted not in sources:
        raise HarchError(
            "E0201", f"`{spec.name}` has no source `{wanted[:64]}` with a listener", hint=f"sources: {names}"
        )
    if len(sources) != 1 and not wanted:
        raise HarchError(
            "E0201", f"`{spec.name}` has {len(sources)} sources with a listener", hint=f"name one: {names}"
        )
    found = sources[wanted] if wanted else next(iter(sources.values()))
    if found.key_secret:
        raise HarchError(
            "E0711",
            f"the key of `{found.name}` is your secret `{found.key_secret}`, which the hub does not reveal",
            hint=f"`harch secret set {found.key_secret}` stores a new one; then apply the file again",
        )
    return found.name


def check_secrets(spec: PipelineSpec, secrets: Mapping[str, str]) -> None:
    """Before a file is taken. Raises E0306 and E0201."""
    for source in listening(spec):
        if source.key_secret:
            _secret(source, secrets)


def digests(keys: Mapping[str, str]) -> dict[str, str]:
    return {name: key_digest(key) for name, key in keys.items()}


def _secret(source: Listening, secrets: Mapping[str, str]) -> str:
    name = source.key_secret
    found = secrets.get(name)
    if found is None:
        raise HarchError(
            "E0306",
            f"secret `{name}` is not stored, and source `{source.name}` requires it of every sender",
            hint=f"`harch secret set {name}` stores it; without `key_secret` the hub generates a key",
            field="key_secret",
        )
    if not KEY_CHARS_MIN <= len(found) <= KEY_CHARS_MAX:
        raise HarchError(
            "E0201",
            f"secret `{name}` has {len(found)} characters; a key has {KEY_CHARS_MIN} to {KEY_CHARS_MAX}",
            hint="use a long random one, or omit `key_secret` to let the hub generate a key",
            field="key_secret",
        )
    return found


# How do events reach a pipeline through the API of its hub? Handed to its HTTP source, whose answer is the answer.


TIMEOUT_S = 20.0


def served_source(sources: Mapping[str, str], wanted: str, pipeline: str) -> str:
    """The wanted HTTP source, or the only one. Raises E0751 while there is none, E0201."""
    served = {name: url for name, url in sources.items() if url.startswith("http")}
    if not served:
        raise HarchError(
            "E0751",
            f"no HTTP source of `{pipeline}` is served yet",
            hint="see `harch pipeline show`",
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
    transport = GuardedTransport(EgressGuard(EgressRule().refusal))
    try:
        async with httpx.AsyncClient(timeout=TIMEOUT_S, trust_env=False, transport=transport) as client:
            answer = await client.post(f"{url}/v1/events", content=body, headers=headers)
    except (httpx.HTTPError, NotPermitted) as error:
        raise HarchError(
            "E0751", f"the source does not answer ({type(error).__name__})", hint="try again", retry_after_s=1
        ) from error
    if answer.status_code == 429:
        raise HarchError("E0742", "the pipeline is behind and full", hint="try again", retry_after_s=1)
    if answer.status_code == 401:
        raise HarchError(
            "E0751", "the source has not loaded its new key yet", hint="try again in a moment", retry_after_s=1
        )
    if answer.status_code >= 400:
        raise HarchError("E0201", f"rejected by the source: {answer.text[:500]}", hint="docs/pipelines/sense.md")
    return answer.content
