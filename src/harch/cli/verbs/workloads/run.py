"""`harch run`: run a command on the fleet and follow its output."""

from __future__ import annotations

import os
import re
import secrets
from typing import TYPE_CHECKING

import click

from harch.base.errors import HarchError
from harch.cli.failure import INTERRUPTED_EXIT_CODE
from harch.cli.inputs import DURATION, MEMORY, MOMENT_AHEAD, SIZE, duration_between, env_pairs
from harch.cli.remote import connect, remote_options

if TYPE_CHECKING:
    from datetime import datetime

LEVELS = ("island", "node", "rack", "row", "hub")  # written out: importing the types would cost `--help` its speed
CLASSES = ("inference", "interactive", "training")
_FLAGS = {
    "name": "--name",
    "query": "--query",
    "tasks": "--tasks",
    "resources.gpus": "--gpus",
    "resources.gpu_model": "--gpu-model",
    "resources.gpu_models": "--gpu-models",
    "resources.gpu_fraction": "--gpu-fraction",
    "resources.gpu_memory_gb": "--gpu-memory-gb",
    "resources.cpus": "--cpus",
    "resources.memory_gb": "--memory",
    "topology.required": "--topology",
    "env": "--env",
    "secrets": "--secret",
    "countries_allowed": "--country",
    "data": "--data",
    "outputs": "--output",
    "working_dir": "--workdir",
    "environment": "--python, --requirements, --lock, --package, --index-url or --wheels",
    "environment.python": "--python",
    "environment.requirements": "--requirements",
    "environment.lock": "--lock",
    "environment.packages": "--package",
    "environment.index_url": "--index-url",
    "environment.wheels": "--wheels",
    "image": "--image",
    "artifacts": "--artifact",
    "scheduling_class": "--class",
    "priority": "--priority",
    "carbon.slack_s": "--slack",
    "carbon.finish_by": "--finish-by",
    "carbon.duration_s": "--expect",
    "carbon.g_max": "--carbon-max",
    "carbon.g_per_kwh_max": "--carbon-ceiling",
    "max_duration_s": "--max-duration",
    "modelled_duration_s": "--modelled-duration",
}
_CODE_TO_COME = "code"  # stands for it until it is sent: mistakes are found before
_BOUND = re.compile(r"expected `\w+` ([<>]=?) (-?[0-9.]+)")
_COMPARED = {"<=": "at most", ">=": "at least", "<": "less than", ">": "more than"}
_FIELD = re.compile(r"`([a-z_.]+)`")


@click.command()
@click.argument("words", metavar="-- CMD...", nargs=-1, type=click.UNPROCESSED)
@click.option("--name", metavar="NAME", help="Name of the workload (default: made from the command).")
@click.option("--query", metavar="TEXT", help="GPUs in words, e.g. `8 GPUs, same NVLink island, >= 40 GB, in MA`.")
@click.option("--gpus", type=int, metavar="N", help="GPUs of each task, all on one node.")
@click.option("--gpu-model", metavar="MODEL", help="e.g. h100-80gb; `harch gpus --models` lists them.")
@click.option("--gpu-models", metavar="A|B", help="Any of these models, in order of preference.")
@click.option("--gpu-fraction", type=float, metavar="F", help="A share of one GPU, e.g. 0.25.")
@click.option("--gpu-memory-gb", type=float, metavar="G", help="GB of its GPU's memory that a share gets, e.g. 20.")
@click.option("--topology", type=click.Choice(LEVELS), help="Domain that must hold all its GPUs, or it waits.")
@click.option("--cpus", type=float, metavar="N", help="CPU cores of each task.")
@click.option("--memory", type=MEMORY, metavar="SIZE", help="Main memory of each task, e.g. 16GB.")
@click.option("--tasks", type=int, metavar="N", help="A gang of N tasks, started together or not at all.")
@click.option(
    "--env", "-e", multiple=True, metavar="A=B", help="Environment variable; `A` alone passes its value. Repeatable."
)
@click.option(
    "--secret", multiple=True, metavar="NAME", help="A stored secret, as a file in $HARCH_SECRETS. Repeatable."
)
@click.option("--country", multiple=True, metavar="CC", help="Where it may run, e.g. MA: a hard rule. Repeatable.")
@click.option("--stay-home", is_flag=True, help="Never lend it to another hub, even if it waits here.")
@click.option(
    "--data", multiple=True, metavar="NAME", help="Data it reads; its tag limits where it may run. Repeatable."
)
@click.option(
    "--output", multiple=True, metavar="NAME", help="Data it produces, with the tags of what it read. Repeatable."
)
@click.option("--workdir", metavar="DIR", help="Folder shared by the node (default: a fresh one).")
@click.option(
    "--code",
    type=click.Path(),
    metavar="DIR",
    help="Folder whose files travel with it (default: the current one, if a project file or the command says so).",
)
@click.option("--no-code", is_flag=True, help="Send no code.")
@click.option("--code-limit", type=SIZE, metavar="SIZE", help="Maximum size of the code (default: 500MB).")
@click.option(
    "--include-secret",
    multiple=True,
    metavar="FILE",
    help="Send this file although it looks like a secret. Repeatable.",
)
@click.option("--python", metavar="VERSION", help="Version of Python, e.g. 3.12.")
@click.option(
    "--requirements", type=click.Path(), metavar="FILE", help="Install the packages of this file of the code."
)
@click.option("--lock", type=click.Path(), metavar="FILE", help="Install exactly the packages of this uv.lock.")
@click.option("--package", multiple=True, metavar="SPEC", help="Install this package, e.g. `numpy>=2`. Repeatable.")
@click.option("--index-url", metavar="URL", help="Package index (default: the node's own).")
@click.option("--wheels", type=click.Path(), metavar="DIR", help="Install from this folder of the code, from no index.")
@click.option("--image", metavar="REF", help="OCI image to run in: registry/name:tag, …@sha256:…, or data:NAME.")
@click.option(
    "--artifact",
    multiple=True,
    metavar="NAME=FILE",
    help="Keep this file or folder when it has ended well. Repeatable.",
)
@click.option(
    "--keep",
    type=duration_between(1.0),
    metavar="DURATION",
    help="How long artifacts are kept (default: 30d).",
)
@click.option("--class", "turn_class", type=click.Choice(CLASSES), help="Scheduling class (default: training).")
@click.option("--priority", type=click.Choice(["low", "normal", "high", "critical"]), help="Default: normal.")
@click.option("--slack", type=DURATION, metavar="DURATION", help="Maximum delay of its start, for cleaner power.")
@click.option(
    "--finish-by",
    type=MOMENT_AHEAD,
    metavar="TIME",
    help="Delay its start as far as it can end by then: 2026-12-24T06:00:00Z, or 6h from now.",
)
@click.option("--carbon-aware", is_flag=True, help="Let the plan choose where it runs, for cleaner power.")
@click.option("--no-carbon", is_flag=True, help="Start at once where there is room, whatever the hub's setting.")
@click.option("--carbon-max", type=float, metavar="G", help="Hard limit on its emissions, in grams.")
@click.option("--carbon-ceiling", type=float, metavar="G", help="Hard limit on the forecast intensity, in g/kWh.")
@click.option("--expect", type=DURATION, metavar="DURATION", help="Expected run time (default: --max-duration).")
@click.option("--max-duration", type=DURATION, metavar="DURATION", help="Time limit; it fails when it runs longer.")
@click.option(
    "--modelled-duration",
    type=DURATION,
    metavar="DURATION",
    help="Run no process; hold the GPUs for this time. Always labelled `modelled`.",
)
@click.option("-d", "--detach", is_flag=True, help="Do not follow: print the id and return.")
@remote_options
def command(
    words: tuple[str, ...],
    name: str | None,
    query: str | None,
    gpus: int | None,
    gpu_model: str | None,
    gpu_models: str | None,
    gpu_fraction: float | None,
    gpu_memory_gb: float | None,
    topology: str | None,
    cpus: float | None,
    memory: float | None,
    tasks: int | None,
    env: tuple[str, ...],
    secret: tuple[str, ...],
    country: tuple[str, ...],
    stay_home: bool,
    data: tuple[str, ...],
    output: tuple[str, ...],
    workdir: str | None,
    code: str | None,
    no_code: bool,
    code_limit: float | None,
    include_secret: tuple[str, ...],
    python: str | None,
    requirements: str | None,
    lock: str | None,
    package: tuple[str, ...],
    index_url: str | None,
    wheels: str | None,
    image: str | None,
    artifact: tuple[str, ...],
    keep: float | None,
    turn_class: str | None,
    priority: str | None,
    slack: float | None,
    finish_by: datetime | None,
    carbon_aware: bool,
    no_carbon: bool,
    carbon_max: float | None,
    carbon_ceiling: float | None,
    expect: float | None,
    max_duration: float | None,
    modelled_duration: float | None,
    detach: bool,
    hub: str | None,
    as_json: bool,
) -> int:
    """Run a command on the fleet and follow its output.

    Exits with the exit code of the command; 1 if it was cancelled or lost. Ctrl-C stops following, not the work.
    The code of a project travels with it; a harch.toml in its folder sets defaults.
    """
    from msgspec.structs import replace

    from harch.base.clock import iso
    from harch.cli import follow
    from harch.cli.content.launch import CodeOptions, Launch, artifacts, merged, prepare, send_code
    from harch.cli.output import emit_json, note
    from harch.workloads.check import checked

    if not words and modelled_duration is None:
        raise HarchError(
            "E0201",
            "no command to run",
            hint="e.g. `harch run -- echo hello`; for a reservation without a command, apply a workload file",
        )
    names_one_gpu = gpu_model is not None or gpu_models is not None or gpu_fraction is not None
    resources = {
        "gpus": gpus,
        "gpu_model": gpu_model,
        "gpu_models": gpu_models and [model.strip() for model in gpu_models.split("|")],
        "gpu_fraction": gpu_fraction,
        "gpu_memory_gb": gpu_memory_gb,
        "cpus": cpus,
        "memory_gb": memory,
    }
    carbon = {
        "aware": False if no_carbon else carbon_aware or None,
        "slack_s": slack,
        "finish_by": finish_by and iso(finish_by),
        "duration_s": expect,
        "g_max": carbon_max,
        "g_per_kwh_max": carbon_ceiling,
    }
    typed: dict[str, object] = {
        "name": name or _name_for(words),
        "command": list(words),
        "query": query,
        "tasks": tasks,
        "resources": {key: value for key, value in resources.items() if value is not None},
        "env": env_pairs(env),
        "secrets": list(secret) or None,
        "countries_allowed": [one.upper() for one in country] or None,
        "stay_home": stay_home or None,
        "data": list(data) or None,
        "outputs": list(output) or None,
        "working_dir": workdir,
        "image": image,
        "topology": {"required": topology} if topology else None,
        "scheduling_class": turn_class,
        "priority": priority,
        "carbon": {key: value for key, value in carbon.items() if value is not None} or None,
        "max_duration_s": max_duration,
        "modelled_duration_s": modelled_duration,
    }
    if workdir is not None and code is not None:
        raise HarchError(
            "E0201", "--workdir and --code exclude each other", hint="code is unpacked in a folder of its own"
        )
    options = CodeOptions(
        code, no_code, code_limit, include_secret, python, requirements, lock, package, index_url, wheels
    )
    if not words and options != CodeOptions(no_code=no_code):
        hint = "leave out what it would bring: code, packages"
        raise HarchError("E0201", "modelled work runs no process, so it brings nothing", hint=hint)
    launch = prepare(words, options, wants_code=workdir is None) if words else Launch()
    if image is not None and not options.names_packages:
        launch = launch.without_environment()  # that is the project's, and what was typed comes first
    fields = merged(launch.project, {key: value for key, value in typed.items() if value is not None})
    if image is None and options.names_packages:
        fields.pop("image", None)
    fields["artifacts"] = artifacts(artifact, keep, launch.project)
    fields["environment"] = launch.environment or None
    fields["code"] = None if launch.folder is None else _CODE_TO_COME
    if names_one_gpu and query is None and isinstance(fields["resources"], dict):
        fields["resources"].setdefault("gpus", 1)
    try:
        spec = checked({key: value for key, value in fields.items() if value is not None})
    except HarchError as error:
        raise in_flags(error) from error
    found = launch.scan()
    if not as_json:
        for remark in launch.remarks(found, has_image=spec.image is not None):
            note(remark)

    with connect(hub) as client:
        if found is None:
            spec = replace(spec, code=None)
        else:
            try:
                spec = replace(spec, code=send_code(client, launch, found, spec.countries_allowed, as_json=as_json))
            except KeyboardInterrupt:
                note("\nstopped: nothing was submitted. Run it again, and only what has not been sent is sent")
                return INTERRUPTED_EXIT_CODE
        workload = client.workloads.submit(spec)
        if detach:
            if as_json:
                emit_json(workload)
            else:
                click.echo(workload.id)
                note(follow.how_to_go_on(workload, hub))
            return 0
        try:
            if as_json:
                workload = client.workloads.wait(workload.id)
                emit_json(workload)
            else:
                note(f"{workload.name} is {workload.id}")
                workload = follow.follow(client, workload)
                note(follow.how_it_ended(workload))
        except KeyboardInterrupt:
            note(f"\nstopped following; {workload.name} keeps running\n{follow.how_to_go_on(workload, hub)}")
            return INTERRUPTED_EXIT_CODE
    return workload.exit_code or 0


def in_flags(error: HarchError) -> HarchError:
    """The same mistakes, named as they were typed: whoever typed a flag has never seen the field of a file."""
    found = error.meta["problems"]  # as `checked` gives them
    problems = [(str(one["field"]), str(one["message"])) for one in found] if isinstance(found, list) else []
    lines = [f"{_flag(field)} {_requirement(text)}".strip() for field, text in problems]
    message = lines[0] if len(lines) == 1 else f"{len(lines)} problems\n" + "\n".join(f"  {line}" for line in lines)
    meta: dict[str, object] = {"problems": [{"field": _flag(field), "message": text} for field, text in problems]}
    flag = _flag(error.field or "") or None
    return HarchError(error.code, message, hint="`harch run --help` shows what it takes", field=flag, meta=meta)


def _flag(path: str) -> str:
    """`countries_allowed[0]` and `env.A` are values of their flags."""
    name = re.split(r"\[", path, maxsplit=1)[0]
    return _FLAGS.get(name) or _FLAGS.get(name.partition(".")[0], path)


def _requirement(text: str) -> str:
    """`expected `int` <= 72` says a type to whom a number is enough."""
    bound = _BOUND.fullmatch(text)
    if bound:
        return f"must be {_COMPARED[bound[1]]} {float(bound[2]):g}"
    return _FIELD.sub(lambda name: _FLAGS.get(name[1], _FLAGS.get(f"resources.{name[1]}", name[0])), text)


def _name_for(words: tuple[str, ...]) -> str:
    base = os.path.basename(words[0]) if words else "modelled"
    kept = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in base).strip("._-")[:64]
    return f"{kept or 'run'}-{secrets.token_hex(3)}"
