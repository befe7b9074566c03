"""Is this the model that was meant, and may it be here? Both are answered before anything of it is loaded."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

from msgspec import Struct

from harch.base.errors import HarchError
from harch.base.rejection import Rejection
from harch.pipelines.think.onnx_session import OnnxSession
from harch.pipelines.think.python_session import PythonSession, function_of, source_of
from harch.pipelines.think.sessions import Session
from harch.pipelines.think.settings import ModelSettings, RuntimeKind, VersionSettings
from harch.sovereignty.gates import WorkAsk, before_load
from harch.sovereignty.jurisdictions import Jurisdictions
from harch.sovereignty.tag_input import parse_tag
from harch.sovereignty.tags import DataKind, DataObject, Tag
from harch.sovereignty.terrain import Site

MODEL_BYTES_MAX = 2 * 1024**3


class LoadedModel(Struct, frozen=True, kw_only=True):
    """A session with the hash of the bytes that it was made of."""

    session: Session
    sha256: str


def load_rejections(reference: str, tag: Tag | None, site: Site) -> tuple[Rejection, ...]:
    """Why a model with this tag must not be loaded at this site; a model that nobody has tagged is at home nowhere."""
    data = DataObject(id=reference, kind=DataKind.MODEL, name=reference, tenant="", tag=tag, hubs=(site.hub,))
    return before_load(WorkAsk(id=reference, reads=(data,)), site).rejections


def load_version(
    model: ModelSettings, version: VersionSettings, *, tag: Tag | None, site: Site, folder: Path
) -> LoadedModel:
    """Jurisdiction, then hash, then the session. Raises E0907, E0502, E0503 or E0504; nothing is kept then."""
    reference = f"{model.name}@{version.version}"
    if reasons := load_rejections(reference, tag, site):
        raise HarchError(
            "E0907",
            f"{reference} may not be loaded at {site.hub}: {reasons[0].detail}",
            hint=reasons[0].nearest_fix,
            meta={"rejections": [reason.rule for reason in reasons]},
        )
    path = _path(version, folder)
    content = _read(path, reference)
    found = sha256(content).hexdigest()
    if version.sha256 is not None and found != version.sha256:
        raise HarchError(
            "E0502",
            f"{reference}: {path} has the hash {found}, and {version.sha256} was declared",
            hint="deploy the file that was meant, or declare the new one as a new version",
        )
    if version.runtime is RuntimeKind.ONNX:
        session: Session = OnnxSession(content, device=model.device, threads=model.threads)
    else:
        function = function_of(version.callable or "", content, path, found)
        session = PythonSession(function, columns=len(model.inputs))
    return LoadedModel(session=session, sha256=found)


def _path(version: VersionSettings, folder: Path) -> Path:
    if version.runtime is RuntimeKind.ONNX:
        return folder / (version.path or "")
    return source_of(version.callable or "")


def _read(path: Path, reference: str) -> bytes:
    try:
        if path.stat().st_size > MODEL_BYTES_MAX:
            raise HarchError(
                "E0503", f"{reference}: {path} is larger than 2 GiB", hint="ONNX files cannot be; split the model"
            )
        return path.read_bytes()
    except OSError as error:
        raise HarchError(
            "E0503", f"{reference}: {path} cannot be read: {error.strerror}", hint="check `path` and its permissions"
        ) from error


def declared_tags(
    data: Tag | None, jurisdictions: Jurisdictions
) -> Callable[[ModelSettings, VersionSettings], Tag | None]:
    """The tag that the settings give a version, else that of its model, else `data`: a model trained on data is bound
    like the data. A tag that cannot be read raises, as `parse_tag` does."""

    def tag_of(model: ModelSettings, version: VersionSettings) -> Tag | None:
        raw = version.tag if version.tag is not None else model.tag
        return data if raw is None else parse_tag(raw, jurisdictions, where=f"{model.name}@{version.version}")

    return tag_of
