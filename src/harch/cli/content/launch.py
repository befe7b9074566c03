"""What does a command bring along? The folder of its code, its environment, and what the project says by default."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from posixpath import normpath
from typing import TYPE_CHECKING

from harch.base.errors import HarchError
from harch.cli.content.project import Project, read_project
from harch.cli.content.selection import choose_code, in_code, unused_environment
from harch.cli.output import clean, note

if TYPE_CHECKING:
    from harch.content.packing import FolderScan
    from harch.sdk import Client

_PACKAGES = frozenset(
    {"requirements", "lock", "packages"}
)  # who names one of them on the command line means only these
_SOURCES = frozenset({"index_url", "wheels"})
_PATHS = (("requirements", "--requirements"), ("lock", "--lock"), ("wheels", "--wheels"))
_MODELS = frozenset({"gpu_model", "gpu_models"})
_BY_KEY = ("resources", "env")  # what is given is added to what the project has; anything else takes its place
_LINKS_LISTED = 3
_S_PER_DAY = 86_400
CODE_NAME_DIGITS = 12  # of its digest
_NO_PROJECT = Project()


@dataclass(frozen=True, slots=True)
class CodeOptions:
    """What was typed about code and environment."""

    code: str | None = None
    no_code: bool = False
    limit_bytes: float | None = None
    secrets_allowed: tuple[str, ...] = ()
    python: str | None = None
    requirements: str | None = None
    lock: str | None = None
    packages: tuple[str, ...] = ()
    index_url: str | None = None
    wheels: str | None = None

    @property
    def names_packages(self) -> bool:
        """Something of an environment was typed."""
        return bool(self.python or self.requirements or self.lock or self.packages or self.index_url or self.wheels)


@dataclass(frozen=True, slots=True)
class Launch:
    """`folder` None: no code travels; `remark` says why, if somebody may wonder."""

    folder: Path | None = None
    project: Project = _NO_PROJECT
    environment: Mapping[str, object] = field(default_factory=dict)
    limit_bytes: int | None = None
    secrets_allowed: frozenset[str] = frozenset()
    remark: str = ""

    def without_environment(self) -> Launch:
        return replace(self, environment={})

    def scan(self) -> FolderScan | None:
        """What travels, if anything does. Raises E1106, E1107, E1108, and E0201 for a file of packages left out."""
        if self.folder is None:
            return None
        from harch.cli.content.sending import scan_code

        found = scan_code(self.folder, limit_bytes=self.limit_bytes, secrets_allowed=self.secrets_allowed)
        for key, option in _PATHS:
            path = self.environment.get(key)
            if path is not None and not any(entry.path == normpath(str(path)) for entry in found.entries):
                hint = "correct it, or bring back in .harchignore what .gitignore leaves out: `!NAME`"
                raise HarchError("E0201", f"{path} is not among the files of the code", hint=hint, field=option)
        wheels = self.environment.get("wheels")
        inside = f"{normpath(str(wheels))}/"
        if wheels is not None and not any(
            entry.path.startswith(inside) and entry.path.endswith(".whl") for entry in found.entries
        ):
            hint = f"where a build tool wrote {wheels}/.gitignore, `!{inside}**` in .harchignore brings them back"
            raise HarchError(
                "E0201", f"no wheel of {wheels} is among the files of the code", hint=hint, field="--wheels"
            )
        return found if found.entries else None  # everything is ignored

    def remarks(self, found: FolderScan | None, *, has_image: bool) -> Iterator[str]:
        """What people may not expect."""
        if self.remark:
            yield self.remark
        if self.folder is None or found is None:
            return
        if not self.environment and not has_image and (unused := unused_environment(self.folder)):
            yield unused
        for path, target in found.outside_links[:_LINKS_LISTED]:
            yield f"{clean(path)} is a link to {clean(target)}, which does not travel"
        if len(found.outside_links) > _LINKS_LISTED:
            yield f"and {len(found.outside_links) - _LINKS_LISTED} more links that lead out of the code"


def prepare(words: Sequence[str], options: CodeOptions, *, wants_code: bool = True) -> Launch:
    """`wants_code` false: none travels unless `--code` says so. Raises E0201 and E0202."""
    named = [path for key, _ in _PATHS if (path := getattr(options, key)) is not None]
    quiet = options.no_code or (not wants_code and options.code is None)
    choice = choose_code(words, code=options.code, no_code=quiet, named=named)
    project = read_project(choice.folder or Path())
    environment = _environment(project, options, choice.folder)
    return Launch(
        choice.folder,
        project,
        environment,
        int(options.limit_bytes) if options.limit_bytes is not None else project.limit_bytes,
        frozenset((*options.secrets_allowed, *project.include)),
        choice.remark,
    )


def _environment(project: Project, options: CodeOptions, folder: Path | None) -> Mapping[str, object]:
    typed: dict[str, object] = {
        "python": options.python,
        "packages": list(options.packages) or None,
        "index_url": options.index_url,
    }
    for key, option in _PATHS:
        path = getattr(options, key)
        typed[key] = None if path is None else in_code(path, _needs(folder, option), option)
    given = {key: value for key, value in typed.items() if value is not None}
    dropped = {key for group in (_PACKAGES, _SOURCES) if group & given.keys() for key in group}
    kept = {key: value for key, value in project.environment.items() if key not in dropped}
    for key, _ in _PATHS:
        if key in kept:
            _needs(folder, f"{key} of [environment] in {project.source}")
    return kept | given


def _needs(folder: Path | None, what: str) -> Path:
    if folder is None:
        raise HarchError("E0201", f"{what} is a file of the code, and no code is sent", hint="send it with `--code .`")
    return folder


def merged(project: Project, typed: Mapping[str, object]) -> dict[str, object]:
    """The fields of the work: what was typed, and for the rest what the project says."""
    fields = {key: value for key, value in project.run.items() if key not in typed or key in _BY_KEY}
    for key in _BY_KEY:
        ours, theirs = typed.get(key), project.run.get(key)
        if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
            dropped = _MODELS if key == "resources" and _MODELS & ours.keys() else frozenset()
            dropped |= {"gpus", *_MODELS} if key == "resources" and "query" in typed else frozenset()
            fields[key] = {name: value for name, value in theirs.items() if name not in dropped} | dict(ours)
    return fields | {key: value for key, value in typed.items() if key not in fields or key not in _BY_KEY}


def artifacts(words: Sequence[str], keep_s: float | None, project: Project) -> list[dict[str, object]]:
    """Those that were typed as `NAME=FILE`, else those of the project. Raises E0201."""
    found: list[dict[str, object]] = []
    for word in words:
        name, _, path = word.partition("=")
        if not name or not path:
            raise HarchError(
                "E0201", f"--artifact `{word}` is not NAME=FILE", hint="e.g. `--artifact model=out/model.pt`"
            )
        found.append({"name": name, "path": path})
    theirs = project.run.get("artifacts")
    if not found and isinstance(theirs, list):
        found = [dict(one) for one in theirs]
    if keep_s is not None and not found:
        raise HarchError("E0201", "--keep is for artifacts, and there are none", hint="name one: --artifact NAME=FILE")
    days = {} if keep_s is None else {"keep_days": keep_s / _S_PER_DAY}
    return [days | one for one in found] if not words else [one | days for one in found]


def send_code(client: Client, launch: Launch, found: FolderScan, countries: Sequence[str], *, as_json: bool) -> str:
    """Sends what the hub lacks and registers it; answers the data object. Nothing is sent to where it may not be."""
    from harch.cli.content.sending import PackedFolder, send
    from harch.sdk.data import DataObject

    hub = client.health()  # also tells whether there is one, before anything is packed
    tag = code_tag(launch.project, hub.country, hub.hub_id)

    def register(packed: PackedFolder) -> DataObject:
        places = "".join(f"-{country.lower()}" for country in launch.project.countries) if tag else ""
        name = f"code-{packed.digest[:CODE_NAME_DIGITS]}{places}"
        return client.data.add(
            name,
            kind="code",
            tag=tag,
            content=packed.digest,
            size_bytes=packed.size_bytes,
            countries=() if tag else countries,
        )

    data, sent = send(client, found, register, what="code", as_json=as_json)
    if not as_json:
        note(f"code: {sent}")
    return data.id


def code_tag(project: Project, hub_country: str, hub: str) -> dict[str, object] | None:
    """Where the code may be, by `code.countries` of the project; None: wherever the work may, which the hub knows.

    It is not sent to a hub of another country (E0907).
    """
    allowed = list(project.countries)
    if allowed and hub_country and hub_country not in allowed:
        raise HarchError(
            "E0907",
            f"the code may be in {', '.join(allowed)} only (code.countries in {project.source}), and hub {hub} is in "
            f"{hub_country}",
            hint="`harch hubs` shows where the others are; --hub NAME sends it there",
        )
    if not allowed:
        return None
    return {
        "process_in": allowed,
        "rest_in": allowed,
        "may_cross_borders": len(allowed) > 1,
        "classification": "internal",
        "encrypt_at_rest": False,
        "encrypt_in_transit": False,
    }
