"""Which key do the senders of a source show? The tenant's own secret, or one that the hub makes.

A made key is derived from a root that lies beside the hub's other keys, so none is stored: the same pipeline, source
and revision give the same key again, after a restart too. Workers are told digests.
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Mapping
from hashlib import sha256

from harch.base.errors import HarchError
from harch.hub.pipelines.values import PipelineRecord
from harch.pipelines.engine.keys import KeyFolder
from harch.pipelines.listener_keys import KEY_CHARS_MAX, KEY_CHARS_MIN, key_digest
from harch.pipelines.sense.source_settings import HttpSource, Listening, TcpSource
from harch.pipelines.spec.settings import PipelineSpec

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
    names = ", ".join(sources) or "none of its sources listens"
    if wanted and wanted not in sources:
        raise HarchError("E0201", f"`{spec.name}` has no source `{wanted[:64]}` that listens", hint=f"sources: {names}")
    if len(sources) != 1 and not wanted:
        raise HarchError("E0201", f"`{spec.name}` has {len(sources)} sources that listen", hint=f"name one: {names}")
    found = sources[wanted] if wanted else next(iter(sources.values()))
    if found.key_secret:
        raise HarchError(
            "E0711",
            f"the key of `{found.name}` is your secret `{found.key_secret}`, which the hub does not show",
            hint=f"`harch secret set {found.key_secret}` stores another; apply the file again",
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
            f"secret `{name}` is not stored, and source `{source.name}` takes events from whoever shows it",
            hint=f"`harch secret set {name}` stores it; without `key_secret` the hub makes a key",
            field="key_secret",
        )
    if not KEY_CHARS_MIN <= len(found) <= KEY_CHARS_MAX:
        raise HarchError(
            "E0201",
            f"secret `{name}` has {len(found)} characters; a key has {KEY_CHARS_MIN} to {KEY_CHARS_MAX}",
            hint="use a long random one, or leave `key_secret` out and the hub makes a key",
            field="key_secret",
        )
    return found
