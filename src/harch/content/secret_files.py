"""Which files of a folder look like secrets? Those with the names that tools give theirs, and private keys.

What is packed becomes readable wherever the work runs, so it is better to refuse once too often: who means it names the
file. Where a name alone says too little (`.pem` is mostly a public certificate), the beginning of the file decides.
Templates such as `.env.example` hold no secrets. It finds what lies about by accident, not what somebody hides.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import suppress

from harch.content.beneath import open_file
from harch.content.folder_scan import FolderScan
from harch.content.model import EntryKind

READ_BYTES_MAX = 64 * 1024

_TEMPLATES = (".default", ".defaults", ".dist", ".example", ".sample", ".schema", ".template", ".tmpl")
_NAMES = frozenset(
    {
        ".boto",
        ".databrickscfg",
        ".env",
        ".git-credentials",
        ".htpasswd",
        ".netrc",
        ".pgpass",
        ".s3cfg",
        ".vault-token",
        "_netrc",
        "application_default_credentials.json",
        "id_dsa",
        "id_ecdsa",
        "id_ecdsa_sk",
        "id_ed25519",
        "id_ed25519_sk",
        "id_rsa",
        "kaggle.json",
        "kubeconfig",
        "rclone.conf",
        "secrets.json",
        "secrets.toml",
        "secrets.yaml",
        "secrets.yml",
        "terraform.tfstate",
    }
)
_PLACES = (  # how a path ends
    ".aws/credentials",
    ".azure/accessTokens.json",
    ".azure/msal_token_cache.json",
    ".cargo/credentials",
    ".cargo/credentials.toml",
    ".config/gh/hosts.yml",
    ".gem/credentials",
    ".kube/config",
    ".terraform.d/credentials.tfrc.json",
    "huggingface/stored_tokens",
    "huggingface/token",
)
# Keys in these are mostly those of tests and examples.
_SOURCES = (".c", ".cpp", ".go", ".h", ".html", ".ipynb", ".java", ".js", ".md", ".py", ".rs", ".rst", ".ts")
_KEY_STORES = (".jks", ".kdbx", ".keystore", ".kubeconfig", ".p12", ".pfx", ".ppk")

_PRIVATE_KEY = re.compile(rb"-----BEGIN [A-Z0-9 ]*PRIVATE KEY( BLOCK)?-----")
_SECRET_VALUE = re.compile(
    rb"(?i)(secret|token|passw(or)?d|api_?key|access_?key|private_?key|_auth)[\w\"']*\s*[=:]\s*\S"
)
_KEY_NAME = re.compile(r"(?i)(key|secret|priv|cert|ssh|\.pem$|\.ovpn$|\.asc$|^[^.]+$)")
_JSON_NAME = re.compile(r"(?i)(account|auth|cred|firebase|gcp|google|key|secret|service|token).*\.json$")
_SETTINGS = frozenset({".dockercfg", ".envrc", ".my.cnf", ".npmrc", ".pypirc", ".yarnrc.yml", "pip.conf"})


def secrets_in(scan: FolderScan) -> list[str]:
    """Their paths, sorted. Files that cannot be read are left to those who pack them."""
    found = []
    with scan.base.opened() as base:
        for entry in scan.entries:
            if entry.kind is EntryKind.FILE and entry.stamp.size:

                def read(path: str = entry.path) -> bytes:
                    return _beginning(base, path)

                if looks_like_secret(entry.path, read):
                    found.append(entry.path)
    return found


def looks_like_secret(path: str, read: Callable[[], bytes]) -> bool:
    """`read` gives the beginning of the file; it is called where the path alone decides nothing."""
    name = path.rpartition("/")[2]
    if name.endswith((*_TEMPLATES, ".pub")):
        return False
    if name in _NAMES or name.startswith(".env.") or name.endswith(_KEY_STORES) or f"/{path}".endswith(_IN_PLACES):
        return True
    if name.endswith(".env") or name in _SETTINGS:
        return _SECRET_VALUE.search(read()) is not None
    if f"/{path}".endswith("/.docker/config.json"):
        return b'"auth"' in read()
    if name.endswith(_SOURCES):
        return False
    if _KEY_NAME.search(name) or _JSON_NAME.search(name) or "/.ssh/" in f"/{path}":
        return _PRIVATE_KEY.search(read()) is not None
    return False


_IN_PLACES = tuple(f"/{place}" for place in _PLACES)


def _beginning(base: int, path: str) -> bytes:
    with suppress(OSError):
        descriptor = open_file(base, path)
        try:
            return os.pread(descriptor, READ_BYTES_MAX, 0)
        finally:
            os.close(descriptor)
    return b""
