"""Images made in Python, and a registry that hands them out: what tests of images need, without any outside host.

A small image holds the shell and a few programs of this machine, with the libraries that they load.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import os
import re
import shutil
import signal
import subprocess
import tarfile
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx
import msgspec

from harch.execution.images.manifest import OCI_CONFIG, OCI_INDEX, OCI_LAYER, OCI_MANIFEST, digest_of, platform_of
from harch.testing.ports import free_port

READY_WITHIN_S = 20.0
POLL_S = 0.02
_LIBRARY = re.compile(r"(/\S+) \(0x")


@dataclass(frozen=True)
class LayerFile:
    """One entry of a layer. `kind` as tar has it: a file unless said otherwise."""

    name: str
    data: bytes = b""
    kind: bytes = tarfile.REGTYPE
    mode: int = 0o644
    link: str = ""


def folder(name: str, mode: int = 0o755) -> LayerFile:
    return LayerFile(name, kind=tarfile.DIRTYPE, mode=mode)


def symlink(name: str, target: str) -> LayerFile:
    return LayerFile(name, kind=tarfile.SYMTYPE, link=target)


def layer(files: Iterable[LayerFile]) -> bytes:
    """The tar of one layer. Equal files make equal bytes."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for file in files:
            info = tarfile.TarInfo(file.name)
            info.type, info.mode, info.linkname, info.size = file.kind, file.mode, file.link, len(file.data)
            info.uid, info.gid = 1234, 55  # of nobody: owners must not matter
            archive.addfile(info, io.BytesIO(file.data))
    return out.getvalue()


def programs(*names: str) -> list[LayerFile]:
    """Programs of this machine, at /bin, with what they load."""
    files: dict[str, LayerFile] = {}
    for name in names:
        path = shutil.which(name) or ""
        files[f"bin/{name}"] = _copy(f"bin/{name}", path)
        listed = subprocess.run(["ldd", path], capture_output=True, text=True, check=True).stdout
        for library in _LIBRARY.findall(listed):
            files[library.lstrip("/")] = _copy(library.lstrip("/"), library)
    return [files[name] for name in sorted(files)]


def _copy(name: str, path: str) -> LayerFile:
    return LayerFile(name, Path(os.path.realpath(path)).read_bytes(), mode=0o755)


@dataclass
class LayoutWriter:
    """Writes an OCI layout. `digest` is that of the image, once `write` has returned."""

    folder: Path
    config: Mapping[str, Any] = field(default_factory=dict)
    architecture: str = field(default_factory=lambda: platform_of(os.uname().machine).architecture)
    digest: str = ""
    layer_digests: list[str] = field(default_factory=list)

    def write(self, *layers: bytes, compress: bool = True) -> LayoutWriter:
        entries = []
        for raw in layers:
            data = gzip.compress(raw, 1, mtime=0) if compress else raw
            entries.append({"mediaType": OCI_LAYER + ("+gzip" if compress else ""), **self.blob(data)})
            self.layer_digests.append(str(entries[-1]["digest"]))
        config = {
            "architecture": self.architecture,
            "os": "linux",
            "config": dict(self.config),
            "rootfs": {"type": "layers", "diff_ids": [digest_of(raw) for raw in layers]},
        }
        described = {"mediaType": OCI_CONFIG, **self.blob(_json(config))}
        manifest = {"schemaVersion": 2, "mediaType": OCI_MANIFEST, "config": described, "layers": entries}
        own = self.blob(_json(manifest))
        self.digest = str(own["digest"])
        self.write_index([{"mediaType": OCI_MANIFEST, **own}])
        return self

    def write_index(self, manifests: list[dict[str, Any]]) -> None:
        (self.folder / "oci-layout").write_bytes(_json({"imageLayoutVersion": "1.0.0"}))
        tagged = [{**one, "annotations": {"org.opencontainers.image.ref.name": "image"}} for one in manifests]
        (self.folder / "index.json").write_bytes(_json({"schemaVersion": 2, "manifests": tagged}))

    def write_platforms(self, others: Mapping[str, str]) -> str:
        """Puts an index above the image: for this platform it, for each other architecture some digest; returns the
        digest of the index."""
        named = {self.architecture: self.digest, **others}
        entries = [
            {
                "mediaType": OCI_MANIFEST,
                "digest": digest,
                "size": self._path(digest).stat().st_size if self._path(digest).exists() else 100,
                "platform": {"os": "linux", "architecture": architecture},
            }
            for architecture, digest in named.items()
        ]
        index = self.blob(_json({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": entries}))
        self.write_index([{"mediaType": OCI_INDEX, **index}])
        return str(index["digest"])

    def blob(self, data: bytes) -> dict[str, str | int]:
        digest = digest_of(data)
        self._path(digest).parent.mkdir(parents=True, exist_ok=True)
        self._path(digest).write_bytes(data)
        return {"digest": digest, "size": len(data)}

    def _path(self, digest: str) -> Path:
        return self.folder / "blobs" / "sha256" / digest.removeprefix("sha256:")


class RegistryProcess:
    """Debian's docker-registry on a port of this process's own, until the end of the `with`.

    `account`: of the only user that it serves, as a line of htpasswd with bcrypt; empty: it serves everybody.
    """

    def __init__(self, folder: Path, *, account: str = "") -> None:
        self._folder, self._account = folder, account
        self.address = f"127.0.0.1:{free_port()}"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> RegistryProcess:
        self._folder.mkdir(parents=True, exist_ok=True)
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        settings: dict[str, object] = {
            "version": 0.1,
            "log": {"level": "info"},
            "storage": {"filesystem": {"rootdirectory": str(self._folder / "data")}, "delete": {"enabled": True}},
            "http": {"addr": self.address},
        }
        if self._account:
            accounts = self._folder / "accounts"
            accounts.write_text(f"{self._account}\n")
            settings["auth"] = {"htpasswd": {"realm": "test", "path": str(accounts)}}
        (self._folder / "config.yml").write_bytes(_json(settings))  # JSON is YAML
        with (self._folder / "requests.log").open("ab") as log:
            self._process = subprocess.Popen(
                ["docker-registry", "serve", str(self._folder / "config.yml")], stdout=log, stderr=log, env={}
            )
        give_up_at = time.monotonic() + READY_WITHIN_S
        while not self._answers():
            if time.monotonic() > give_up_at or self._process.poll() is not None:
                raise TimeoutError((self._folder / "requests.log").read_text()[-2000:])
            time.sleep(POLL_S)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    @contextlib.contextmanager
    def standing_still(self) -> Iterator[None]:
        """It takes connections and answers nothing."""
        process = self._process
        if process is None:
            raise RuntimeError("the registry does not run")
        process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            process.send_signal(signal.SIGCONT)

    def push(self, layout: Path, name: str, *options: str) -> str:
        """Returns the digest that the registry has it by."""
        target = f"docker://{self.address}/{name}"
        subprocess.run(
            ["skopeo", "copy", "--quiet", "--dest-tls-verify=false", *options, f"oci:{layout}:image", target],
            check=True,
            capture_output=True,
        )
        answer = httpx.get(
            f"http://{self.address}/v2/{name.rpartition(':')[0]}/manifests/{name.rpartition(':')[2]}",
            headers={"Accept": f"{OCI_MANIFEST}, {OCI_INDEX}, application/vnd.docker.distribution.manifest.v2+json"},
        )
        return f"sha256:{hashlib.sha256(answer.content).hexdigest()}"

    def requests(self) -> list[str]:
        """Method and path of each request so far that is about an image."""
        text = (self._folder / "requests.log").read_text(errors="replace")
        return re.findall(r'"((?:GET|HEAD|PUT|POST|PATCH) /v2/\S+/(?:manifests|blobs)/\S*) HTTP', text)

    def blob_path(self, digest: str) -> Path:
        """Where the registry keeps a blob, for tests that damage it."""
        name = digest.removeprefix("sha256:")
        return self._folder / "data/docker/registry/v2/blobs/sha256" / name[:2] / name / "data"

    def _answers(self) -> bool:
        try:
            status = httpx.get(f"http://{self.address}/v2/", timeout=1.0).status_code
            return status in (httpx.codes.OK, httpx.codes.UNAUTHORIZED)
        except httpx.HTTPError:
            return False


def _json(value: object) -> bytes:
    return msgspec.json.encode(value)
