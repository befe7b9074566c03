"""Which image does `image:` name? An image of a registry, by tag or digest, or a data object that holds one.

The grammar is that of `docker run` and of Kubernetes. What a name leaves out is filled in here and nowhere else, so
that one image has one name: the default registry, its namespace for names without one, and the tag `latest`.
"""

# harch: pure

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, replace

from harch.base.errors import HarchError

DATA_PREFIX = "data:"
DEFAULT_REGISTRY = "docker.io"  # what every tool of the trade reads where no registry is named
_DEFAULT_REGISTRY_ALIASES = frozenset({"index.docker.io", "registry-1.docker.io"})
DEFAULT_NAMESPACE = "library"
DEFAULT_TAG = "latest"
NAME_CHARS_MAX = 255  # registry and repository together, as registries have it
_HOST = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?|\[[0-9A-Fa-f:.]{2,45}\])(?::[0-9]{1,5})?")
_REPOSITORY = re.compile(r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*)*")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_DATA_NAME = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9._ -]{0,126}[a-zA-Z0-9])?")
_SCHEMES = ("docker://", "https://", "http://", "oci://", "registry://")
_HINT = "write `registry/name:tag`, `registry/name@sha256:…`, or `data:NAME` for a data object that holds an image"


@dataclass(frozen=True, slots=True)
class RegistryImage:
    """An image of a registry. With a digest, the tag is for people only."""

    registry: str  # host, or host:port
    repository: str
    tag: str = ""
    digest: str = ""  # sha256:…

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        return f"{self.name}{tag}{f'@{self.digest}' if self.digest else ''}"

    @property
    def name(self) -> str:
        return f"{self.registry}/{self.repository}"

    def at(self, digest: str) -> RegistryImage:
        """The same image, pinned. Without its tag, which may name another one tomorrow."""
        return replace(self, tag="", digest=digest)


@dataclass(frozen=True, slots=True)
class DataImage:
    """An image that a data object holds, as an OCI layout or an archive."""

    name: str

    def __str__(self) -> str:
        return f"{DATA_PREFIX}{self.name}"


ImageReference = RegistryImage | DataImage


def parse_image(text: str) -> ImageReference:
    """Normalised. Raises E1130 for anything that names no image."""
    if text.startswith(DATA_PREFIX):
        name = text.removeprefix(DATA_PREFIX)
        if not _DATA_NAME.fullmatch(name):
            raise _invalid(text, "names no data object")
        return DataImage(name)
    for scheme in _SCHEMES:
        if text.lower().startswith(scheme):
            raise _invalid(text, "is an address", f"leave out `{scheme}`")
    rest, at, digest = text.partition("@")
    if at and not _DIGEST.fullmatch(digest):
        raise _invalid(text, "has a digest that is not `sha256:` and 64 hexadecimal digits")
    registry, repository = _split_registry(rest)
    repository, colon, tag = repository.partition(":")
    if colon and not _TAG.fullmatch(tag):
        raise _invalid(text, "has a tag with characters that no tag may have")
    if registry == DEFAULT_REGISTRY and repository and "/" not in repository:
        repository = f"{DEFAULT_NAMESPACE}/{repository}"
    if not _HOST.fullmatch(registry) or not _port_is_valid(registry):
        raise _invalid(text, f"names a registry, `{registry[:100]}`, that is no host")
    if not _REPOSITORY.fullmatch(repository):
        lower = " in lower case" if _REPOSITORY.fullmatch(repository.lower()) else ""
        raise _invalid(text, f"has no repository{lower}", f"write it as `{text.lower()}`" if lower else _HINT)
    image = RegistryImage(registry, repository, tag or ("" if digest else DEFAULT_TAG), digest)
    if len(image.name) > NAME_CHARS_MAX:
        raise _invalid(text, f"has a name of more than {NAME_CHARS_MAX} characters")
    return image


def _split_registry(rest: str) -> tuple[str, str]:
    """The first part is a registry if it has a dot, a port, or is `localhost`: so every tool of the trade decides."""
    first, slash, others = rest.partition("/")
    if not slash or not ("." in first or ":" in first or first == "localhost" or first != first.lower()):
        return DEFAULT_REGISTRY, rest
    host = first.lower()
    return (DEFAULT_REGISTRY if host in _DEFAULT_REGISTRY_ALIASES else host), others


def _port_is_valid(registry: str) -> bool:
    _, _, port = registry.rpartition(":") if not registry.endswith("]") else ("", "", "")
    return not port.isdecimal() or 0 < int(port) < 65536


def is_loopback(registry: str) -> bool:
    """Whether it is on this machine, whatever a name server says; only there a registry may do without TLS."""
    host = registry if registry.endswith("]") else registry.rpartition(":")[0] or registry
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _invalid(text: str, why: str, hint: str = _HINT) -> HarchError:
    return HarchError("E1130", f"`{text[:200]}` {why}", hint=hint)
