"""What may a stage worker see of the machine? Its own files, code that it cannot change, and the network.

The same sandbox as that of tasks, with what a worker needs: its configuration, the folder of its stage to write to,
files of models to read. So code of users, which THINK executes, finds no keys of other stages, no state of the hub, and
no other pipeline.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from harch.execution.sandbox import Sandbox, View, is_inside
from harch.pipelines.act.settings import SqlSink
from harch.pipelines.sense.source_settings import FileSource
from harch.pipelines.think.settings import Device
from harch.pipelines.workers.config import WorkerConfig

_PASSED = ("PATH", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH", "SSL_CERT_FILE", "CUDA_VISIBLE_DEVICES")
_KERNELS = Path(__file__).parent.parent / "sense" / "__pycache__"
_SQLITE = "sqlite:///"


def confined(
    sandbox: Sandbox, config: WorkerConfig, config_file: Path, environment: Mapping[str, str], host: Mapping[str, str]
) -> list[str]:
    """Arguments of bubblewrap. `environment` is the worker's own; of the host's only what is harmless is passed on."""
    view = View(
        work_dir=config.state_folder,
        work_dir_shared=False,
        writable=tuple(_existing(_written(config))),
        readable=tuple(_existing(_read(config, config_file, environment))),
        hidden=(),
        gpu_indexes=tuple(_gpus(config)),
        env={**{name: host[name] for name in _PASSED if name in host}, **environment, "HOME": config.state_folder},
    )
    args = sandbox.arguments(view)
    # Machine code of kernels is kept beside them; each stage has a copy of its own that it may add to.
    own = ["--bind", str(_own_kernels(config)), str(_KERNELS)] if _KERNELS.is_dir() else []
    last = args.index("--remount-ro")
    # As the first process of its own world it is the one that signals reach.
    return ["--as-pid-1", *args[:last], *own, *args[last:]]


def make_ready(config: WorkerConfig) -> None:
    """Folders that are bound must be there."""
    Path(config.state_folder).mkdir(mode=0o700, parents=True, exist_ok=True)
    if config.stage == "source" and config.kept_folder:
        Path(config.kept_folder).mkdir(mode=0o700, parents=True, exist_ok=True)
    own = _own_kernels(config)
    if _KERNELS.is_dir() and not own.exists():
        shutil.copytree(_KERNELS, own)


def _own_kernels(config: WorkerConfig) -> Path:
    return Path(config.state_folder) / "kernels"


def _written(config: WorkerConfig) -> Iterator[str]:
    if config.stage == "source" and config.kept_folder:
        yield config.kept_folder
    if config.replay is not None:
        yield str(Path(config.replay.result_file).parent)
    for sink in config.act.sinks.values() if config.act is not None and config.stage in ("act", "fused") else ():
        if isinstance(sink, SqlSink) and sink.url.startswith(f"{_SQLITE}/"):
            yield str(Path(sink.url.removeprefix(_SQLITE)).parent)


def _read(config: WorkerConfig, config_file: Path, environment: Mapping[str, str]) -> Iterator[str]:
    yield str(config_file)
    yield from (sys.prefix, sys.base_prefix)  # also by the name that they were called by, which may be a link
    yield from (path for path in sys.path if path.endswith("-packages"))  # not the folder that somebody started us in
    yield from environment.get("PYTHONPATH", "").split(os.pathsep)
    if config.think is not None:
        yield os.path.realpath(config.model_folder)
        paths = [version.path for model in config.think.models for version in model.versions]
        yield from (path for path in paths if path is not None and path.startswith("/"))
    if config.replay is not None:
        yield from (config.kept_folder, config.replay.file)
    if config.stage == "source":
        yield from (source.path for source in config.sense.sources if isinstance(source, FileSource))
    if config.act is not None:
        stops = [config.act.stop_file, *(action.interlocks.stop_file for action in config.act.actions)]
        yield from (str(Path(stop).parent) for stop in stops if stop)
    for access in (config.engine, config.act_engine):
        if access.tls is not None:
            yield from (access.tls.ca, access.tls.certificate, access.tls.key)


def _existing(paths: Iterator[str]) -> Iterator[str]:
    """Absolute ones that are there; of the system only what every sandbox shows anyway."""
    for path in dict.fromkeys(paths):
        if path.startswith("/") and os.path.exists(path) and not any(is_inside(path, own) for own in ("/usr", "/etc")):
            yield path


def _gpus(config: WorkerConfig) -> Iterator[int]:
    """All of the machine, if a model may use one."""
    wanted = config.think is not None and any(model.device is not Device.CPU for model in config.think.models)
    for path in sorted(Path("/dev").glob("nvidia[0-9]*")) if wanted else ():
        yield int(path.name.removeprefix("nvidia"))
