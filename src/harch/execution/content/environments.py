"""How does work get its Python and packages? From an environment that uv builds once per node for equal contents.

STATE/content/environments/TENANT/building/NAME/   being built, in the sandbox of the task that came first
                                 /packages/        uv's cache, of one tenant: who builds can write to it
                                 /ready/KEY/       read-only to the tasks that run in it

Tenants share nothing: what is installed may run code of its own, and could leave something else than it should to the
next build. An environment that is made of the code of a task, or that may not rest here, lies in the task's own folder.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from harch.base.errors import HarchError
from harch.execution.content.cache import BUILDING, CacheKind, CacheUse, NodeCache, Reserve
from harch.execution.content.cancellation import Cancellation
from harch.execution.content.environment_inputs import EnvironmentInputs, key_of, read_inputs
from harch.execution.content.pythons import Python, choose, versions
from harch.execution.guarded_process import GuardedCommand, ProcessResult, run_guarded
from harch.execution.isolation.sandbox import Sandbox, SandboxView, is_inside
from harch.execution.preparation import SYSTEM_PATH, identity
from harch.execution.protocol import TaskSpec
from harch.execution.trash import delete
from harch.workloads.spec import Environment

BUILD_S_MAX = 1800.0
SCRATCH = "scratch"
VERSION_TIMEOUT_S = 10.0
_numbers = itertools.count(1)
# What of the agent's own environment builds may see: how to reach an index, and nothing else.
_PASSED = re.compile(
    r"(?i:https?_proxy|all_proxy|no_proxy)|SSL_CERT_(FILE|DIR)|UV_(DEFAULT_INDEX|INDEX|INDEX_URL|EXTRA_INDEX_URL)"
    r"|UV_(FIND_LINKS|NO_INDEX|INDEX_STRATEGY|INSECURE_HOST|HTTP_TIMEOUT|HTTP_RETRIES|SYSTEM_CERTS|NATIVE_TLS|OFFLINE)"
    r"|UV_INDEX_[A-Z0-9_]+_(USERNAME|PASSWORD)"
)
_OF_INDEXES = re.compile(r"UV_(DEFAULT_INDEX|INDEX|INDEX_URL|EXTRA_INDEX_URL|FIND_LINKS|NO_INDEX|INDEX_[A-Z0-9_]+)")
_KILLED_EXIT_CODES = (137, -9)  # alone, or with its guard
_COMMON = ("--no-python-downloads", "--no-progress", "--color", "never")


@dataclass(frozen=True, slots=True)
class Uv:
    """`path` is empty where there is none, and `detail` says why, or which version it is."""

    path: str
    detail: str

    @property
    def major(self) -> str:
        return self.detail.split(".")[0]


@dataclass(frozen=True, slots=True)
class BuildSite:
    """Where and within which limits a task builds. `private`: a folder of its own for what others may not use."""

    work: Path
    is_shared: bool  # the working folder is one of the node's
    private: Path
    may_rest: bool  # what is built here may stay when the task has ended
    cgroups: Sequence[str]


@dataclass(frozen=True, slots=True)
class PreparedEnvironment:
    """`readable`: what a task in it must see beside its folders."""

    path: str
    readable: tuple[str, ...]
    uses: tuple[CacheUse, ...] = ()


@dataclass(frozen=True, slots=True)
class _Build:
    """One build: what, with what, on behalf of which task."""

    task: TaskSpec
    environment: Environment
    python: Python
    site: BuildSite
    inputs: EnvironmentInputs
    root: Path  # of the tenant, or of the task
    env: dict[str, str]
    config: tuple[str, ...]
    write: Callable[[bytes], None]
    cancellation: Cancellation


@dataclass(frozen=True, slots=True)
class EnvironmentBuilder:
    """From any thread. `environ` is that of the agent."""

    uv: Uv
    own: Python
    pythons: Sequence[Python]
    cache: NodeCache
    root: Path  # STATE/content/environments
    sandbox: Sandbox
    hidden: tuple[str, ...]
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))

    def features(self) -> dict[str, str]:
        feature = f"uv {self.uv.detail}" if self.uv.path else f"none: {self.uv.detail}"
        return {"environments": feature, "pythons": versions(self._usable())}

    def prepare(
        self, task: TaskSpec, site: BuildSite, write: Callable[[bytes], None], cancellation: Cancellation
    ) -> PreparedEnvironment:
        """Raises E1120, E1121, E1122, and Cancelled."""
        environment = task.environment or Environment()
        if not self.uv.path:
            hint = "install it where the agent runs: pip install 'harch[environments]'"
            raise HarchError("E1121", f"this node cannot build environments: {self.uv.detail}", hint=hint)
        python = choose(environment.python, self.own, self._usable())
        if python is None:
            sentence = f"this node has no Python {environment.python}; it has {versions(self._usable())}"
            raise HarchError("E1122", sentence, hint="ask for one of these, or install that version on the node")
        inputs = read_inputs(environment, site.work)
        env, config = self._settings(environment)
        is_own = inputs.is_local or not site.may_rest
        tenant = hashlib.sha256(task.tenant.encode()).hexdigest()[:16]
        root = self.root / tenant if site.may_rest else site.private
        build = _Build(task, environment, python, site, inputs, root, env, config, write, cancellation)
        readable = tuple(self._unseen(python.prefix))
        if is_own:
            path = site.private / "environment"
            why = "is made of files of the code" if site.may_rest else "may not rest here"
            write(f"this environment {why}, so it is built for this task only\n".encode())
            self._with_packages(build, path)
            return PreparedEnvironment(str(path), (str(path), *readable))
        use = CacheUse(CacheKind.ENVIRONMENT, f"{tenant}/{self._key(build)}")
        path = self.cache.borrow(use, lambda target, reserve: self._with_packages(build, target), cancellation)
        write(f"environment {use.name.rpartition('/')[2][:16]} with Python {python.version}\n".encode())
        return PreparedEnvironment(str(path), (str(path), *readable), (use,))

    def _usable(self) -> list[Python]:
        """Those that tasks may see: nothing that is hidden from them may lie below."""
        found = {one.executable: one for one in (self.own, *self.pythons)}
        shows = [(one, self._unseen(one.prefix)) for one in found.values()]
        return [one for one, new in shows if not any(is_inside(path, prefix) for prefix in new for path in self.hidden)]

    def _unseen(self, *paths: str) -> list[str]:
        """Those that the sandbox does not show already, by the names that they are called by and by their own."""
        visible = ("/usr", "/etc/ssl/certs", *self.sandbox.host.python)
        names = dict.fromkeys(find(path) for path in paths if path for find in (os.path.abspath, os.path.realpath))
        return [path for path in names if os.path.exists(path) and not any(is_inside(path, one) for one in visible)]

    def _key(self, build: _Build) -> str:
        python, environment = build.python, build.environment
        about = {
            "python": f"{python.implementation} {python.version} {python.executable}",
            "platform": " ".join(os.uname()[i] for i in (0, 4)),
            "uv": self.uv.major,
            "mode": "lock" if environment.lock else "requirements",
            "wheels": "only" if environment.wheels else "",
            **{f"env {name}": value for name, value in build.env.items() if _OF_INDEXES.fullmatch(name)},
            **{f"config {path}": _text_of(path) for path in build.config},
        }
        return key_of(about, build.inputs)

    def _settings(self, environment: Environment) -> tuple[dict[str, str], tuple[str, ...]]:
        """(variables of uv, its file of settings). What a specification says about indexes excludes what a node has."""
        env = {name: value for name, value in self.environ.items() if _PASSED.fullmatch(name)}
        if environment.index_url is None and environment.wheels is None:
            return env, self._config_files()
        env = {name: value for name, value in env.items() if not _OF_INDEXES.fullmatch(name)}
        if environment.index_url is not None:
            env["UV_DEFAULT_INDEX"] = environment.index_url
        return env, ()

    def _config_files(self) -> tuple[str, ...]:
        """The one that uv would find first for the user of the agent."""
        home = self.environ.get("HOME", "/nonexistent")
        places = (
            self.environ.get("UV_CONFIG_FILE", ""),
            f"{self.environ.get('XDG_CONFIG_HOME', f'{home}/.config')}/uv/uv.toml",
            "/etc/uv/uv.toml",
        )
        return tuple(os.path.realpath(path) for path in places if path and os.path.isfile(path))[:1]

    def _with_packages(self, build: _Build, target: Path) -> None:
        """Builds with the packages that the tenant has fetched before, unless nothing may be added to these."""
        if not build.site.may_rest:
            (build.root / "packages").mkdir(mode=0o700, parents=True)
            self._build(build, target)
            return
        use = CacheUse(CacheKind.PACKAGES, build.root.name)
        self.cache.borrow(use, _make_folder, build.cancellation)
        try:
            self._build(build, target)
        finally:
            self.cache.measure(use)
            self.cache.give_back(use)

    def _build(self, build: _Build, target: Path) -> None:
        place = build.root / BUILDING / f"{os.getpid()}-{next(_numbers)}"
        path = place / "environment"
        try:
            (place / SCRATCH).mkdir(mode=0o700, parents=True)
            (build.root / "ready").mkdir(mode=0o700, exist_ok=True)
            venv = (*_COMMON, "--no-project", "--relocatable", "--python", build.python.executable, str(path))
            self._uv(build, place, "venv", *venv)
            for arguments in self._installations(build, place, path):
                self._uv(build, place, *arguments)
            delete(place / SCRATCH)
            target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.rename(target)
            _close_folders(target)
        finally:
            delete(place)

    def _installations(self, build: _Build, place: Path, path: Path) -> list[tuple[str, ...]]:
        """The calls of uv that follow. A lock has the addresses of its files; for another index, or none, it becomes a
        list of requirements with hashes."""
        environment, into = build.environment, ("--python", f"{path}/bin/python", "--compile-bytecode")
        config = ("--config-file", build.config[0]) if build.config else ("--no-config",)
        if environment.wheels is not None:
            config = (*config, "--no-index", "--find-links", str(build.site.work / environment.wheels))
        if environment.lock is None:
            named = ["-r", environment.requirements] if environment.requirements is not None else []
            if not named and not environment.packages:
                return []
            return [("pip", "install", *_COMMON, *config, *into, *named, *environment.packages)]
        project = os.path.dirname(environment.lock) or "."
        locked = ("--frozen", "--directory", project)
        if environment.index_url is None and environment.wheels is None:
            return [("sync", *_COMMON, *locked, "--no-install-project", "--compile-bytecode")]
        listed = str(place / "locked.txt")
        export = ("export", *_COMMON, *locked, "--quiet", "--no-config", "--no-emit-project", "--output-file", listed)
        install = ("pip", "install", *_COMMON, "--directory", project, *config, *into, "--no-deps", "-r", listed)
        return [export, install]

    def _needed(self, build: _Build) -> list[str]:
        certificates = (build.env.get("SSL_CERT_FILE", ""), build.env.get("SSL_CERT_DIR", ""))
        wheels = re.split("[, ]", build.env.get("UV_FIND_LINKS", ""))
        return self._unseen(self.uv.path, build.python.prefix, *build.config, *certificates, *wheels)

    def _uv(self, build: _Build, place: Path, *arguments: str) -> None:
        work = str(build.site.work)
        scratch = str(place / SCRATCH)
        env = {
            "PATH": SYSTEM_PATH,
            "HOME": scratch,
            "TMPDIR": scratch,
            "LANG": "C.UTF-8",
            "UV_CACHE_DIR": str(build.root / "packages"),
            "UV_PROJECT_ENVIRONMENT": f"{place}/environment",
            "UV_PYTHON": build.python.executable,
            **build.env,
            **identity(build.task.key),
        }
        view = SandboxView(
            work_dir=work,
            work_dir_shared=build.site.is_shared,
            writable=(str(build.root),),
            readable=(str(build.root / "ready"), *self._needed(build)),
            hidden=self.hidden,
            gpu_indexes=(),
            env=env,
        )
        confinement = (self.sandbox.program, self.sandbox.arguments(view)) if self.sandbox.program else None
        command = GuardedCommand((self.uv.path, *arguments), env, work, confinement, build.site.cgroups)
        build.write(f"$ uv {' '.join(word for word in arguments if word not in _COMMON)}\n".encode())
        cancellation = build.cancellation
        try:
            result = run_guarded(command, write=build.write, calling_off=cancellation.calling, timeout_s=BUILD_S_MAX)
        except OSError as error:
            raise HarchError("E1121", f"uv cannot be started: {error}", hint="see the log of the agent") from error
        cancellation.check()
        if result.exit_code:
            raise _failure(build, result)


def find_uv(environ: Mapping[str, str]) -> Uv:
    """Beside this Python, as the package puts it there, or else on the PATH."""
    beside = Path(sys.prefix) / "bin" / "uv"
    path = str(beside) if os.access(beside, os.X_OK) else shutil.which("uv", path=environ.get("PATH", ""))
    if path is None:
        return Uv("", "uv is not installed (pip install 'harch[environments]')")
    try:
        command = [path, "--version", "--no-config"]
        answer = subprocess.run(command, env={}, capture_output=True, timeout=VERSION_TIMEOUT_S, check=True)
        return Uv(os.path.realpath(path), answer.stdout.decode().split()[1])
    except (OSError, IndexError, UnicodeDecodeError, subprocess.SubprocessError) as error:
        return Uv("", f"{path} does not work: {error}")


_OF_NO_USE = ("Using Python", "Resolved ")  # what uv says before it says what is wrong


def _failure(build: _Build, result: ProcessResult) -> HarchError:
    hint = "`harch logs ID --preparation` shows all that uv said"
    if result.timed_out:
        return HarchError("E1120", f"the environment was not built within {BUILD_S_MAX / 60:.0f} minutes", hint=hint)
    lines = [line.strip() for line in result.tail if not line.strip().startswith(_OF_NO_USE)]
    reason = "; ".join(lines) or f"uv ended with exit code {result.exit_code}"
    if result.exit_code in _KILLED_EXIT_CODES:
        reason = f"uv was killed; a build has the memory of its task, {build.task.memory_gb:g} GB. {reason}"
    return HarchError("E1120", f"the environment could not be built: {reason}", hint=hint)


def _make_folder(path: Path, reserve: Reserve) -> None:
    path.mkdir(mode=0o700)


def _close_folders(path: Path) -> None:
    """Nothing is added to an environment, not even by a task that runs without a sandbox. Files stay as they are: they
    are those of uv's cache."""
    for parent, _, _ in os.walk(path, topdown=False):
        os.chmod(parent, stat.S_IRUSR | stat.S_IXUSR)


def _text_of(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""
