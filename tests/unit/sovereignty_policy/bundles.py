"""Small bundles for the tests."""

from __future__ import annotations

import json

MANIFEST = """
name = "acme"
version = "1.0.0"
[entrypoints]
workload = "acme/allow"
"""
REGO = """package acme

import rego.v1

default allow := false

allow if input.workload.labels.project
"""


def files(rego: str = REGO, *, manifest: str = MANIFEST, **more: str) -> dict[str, bytes]:
    """`more`: file names with `__` for the dot."""
    named = {name.replace("__", "."): text.encode() for name, text in more.items()}
    return {"policy.toml": manifest.encode(), "acme.rego": rego.encode(), **named}


def cases(*rows: tuple[str, dict[str, object], bool]) -> str:
    return json.dumps([{"name": name, "input": value, "allow": allow} for name, value, allow in rows])
