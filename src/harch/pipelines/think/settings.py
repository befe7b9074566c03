"""What is THINK asked to do? The `think` part of a pipeline's specification, and everything that can be wrong with it.

Units end the names. Every limit has a default that suits a small model on one core.
"""

# harch: pure

from __future__ import annotations

import re
from collections.abc import Collection
from difflib import get_close_matches
from enum import StrEnum
from itertools import pairwise
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from harch.base.errors import HarchError
from harch.pipelines.wire.header import PRIORITY_MAX

MODELS_MAX = 32
VERSIONS_MAX = 8
COLUMNS_MAX = 512
PRIORITIES = PRIORITY_MAX + 1  # 0 is served first
PRIORITY_DEFAULT = 3
BATCH_ROWS_MAX = 65_536
QUEUE_ROWS_MAX = 4_194_304
_HINT = "docs/pipelines/think.md shows every field with its default"
_AT = re.compile(r" - at `\$(.*)`$")

Name = Annotated[
    str,
    Meta(
        pattern="^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$",
        description="1 to 63 lower-case letters, digits and dashes, no dash first or last",
    ),
]
Version = Annotated[
    str,
    Meta(pattern="^[A-Za-z0-9][A-Za-z0-9._-]{0,31}$", description="1 to 32 letters, digits, dots, dashes, underscores"),
]
Sha256 = Annotated[str, Meta(pattern="^[0-9a-f]{64}$", description="64 hexadecimal digits, as `sha256sum` prints them")]
Callable_ = Annotated[
    str,
    Meta(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$", description="`package.module:function`", max_length=256),
]
ColumnName = Annotated[str, Meta(min_length=1, max_length=128)]
Columns = Annotated[tuple[ColumnName, ...], Meta(min_length=1, max_length=COLUMNS_MAX)]
OutputColumn = Annotated[
    str,
    Meta(
        pattern="^[a-z][a-z0-9_]{0,62}$", description="lower-case letters, digits and underscores, as used in ACT rules"
    ),
]
OutputColumns = Annotated[tuple[OutputColumn, ...], Meta(min_length=1, max_length=COLUMNS_MAX)]
Percent = Annotated[float, Meta(ge=0, le=100)]


class RuntimeKind(StrEnum):
    ONNX = "onnx"
    PYTHON = "python"


class Device(StrEnum):
    """`auto` takes CUDA where ONNX Runtime offers it. `cuda` refuses to fall back to the CPU."""

    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"


class ModelRole(StrEnum):
    """What a version is for when the pipeline starts."""

    LOADED = "loaded"
    SHADOW = "shadow"
    CANARY = "canary"
    ACTIVE = "active"


class VersionSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One version of a model. `path` is relative to the pipeline's file; `sha256` is compared before it is loaded.

    A callable's hash is that of the file which holds its module; it may be left out while one is trying things.
    """

    version: Version
    runtime: RuntimeKind = RuntimeKind.ONNX
    path: Annotated[str, Meta(min_length=1, max_length=1024)] | None = None
    callable: Callable_ | None = None
    sha256: Sha256 | None = None
    role: ModelRole = ModelRole.ACTIVE
    tag: dict[str, Any] | None = None  # where this version may be loaded; without one, the model's


class BatchingSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When a batch runs: at a preferred size, after `delay_ms_max`, or when a deadline comes near."""

    preferred_rows: Annotated[tuple[Annotated[int, Meta(ge=1, le=BATCH_ROWS_MAX)], ...], Meta(max_length=8)] = (256,)
    rows_max: Annotated[int, Meta(ge=1, le=BATCH_ROWS_MAX)] = 4096
    delay_ms_max: Annotated[float, Meta(ge=0, le=10_000)] = 0.0  # 0: run what has come, wait for nothing
    queue_rows_max: Annotated[int, Meta(ge=1, le=QUEUE_ROWS_MAX)] = 65_536
    timeout_ms: Annotated[float, Meta(gt=0, le=600_000)] = 1000.0  # for requests without a deadline of their own


class RollbackRules(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When a version loses its role by itself. Judged each time that it has seen `rows` rows, and at once on a series
    of failures. A rule left out does not apply; disagreement is with the active version, on the same rows."""

    rows: Annotated[int, Meta(ge=1, le=10_000_000)] = 2000
    errors_percent_max: Percent | None = 1.0
    latency_p99_ms_max: Annotated[float, Meta(gt=0)] | None = None
    disagreement_percent_max: Percent | None = None
    tolerance: Annotated[float, Meta(ge=0)] = 1e-3  # outputs further apart than this, relative to their size, disagree
    failures_in_a_row_max: Annotated[int, Meta(ge=1, le=1000)] = 3


class PromoteRules(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When a canary becomes active without a person: after this time and these rows, of all workers together, if it did
    not do worse than this. If it did, or a rule of `rollback` took its role away, it is retired. Disagreement is with
    the active version, on the same rows."""

    after_s: Annotated[float, Meta(gt=0, le=30 * 86_400)] = 600.0
    rows_min: Annotated[int, Meta(ge=1, le=1_000_000_000)] = 1000
    errors_percent_max: Percent = 1.0
    disagreement_percent_max: Percent | None = None


class ModelSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model: the feature columns that it reads, in order, the columns that it gives, and its versions."""

    name: Name
    inputs: Columns
    outputs: OutputColumns
    versions: Annotated[tuple[VersionSettings, ...], Meta(min_length=1, max_length=VERSIONS_MAX)]
    tag: dict[str, Any] | None = None
    device: Device = Device.AUTO
    threads: Annotated[int, Meta(ge=1, le=64)] = 1
    batching: BatchingSettings = BatchingSettings()
    canary_percent: Annotated[float, Meta(ge=0, le=50)] = 5.0
    rollback: RollbackRules = RollbackRules()
    promote: PromoteRules | None = None  # without, going from canary to active is a person's step

    @property
    def compares_canary(self) -> bool:
        """Whether the active version scores the canary's rows as well."""
        promoted = self.promote.disagreement_percent_max if self.promote is not None else None
        return self.rollback.disagreement_percent_max is not None or promoted is not None


class ThinkSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All models of a pipeline. Each scores every feature batch that has its columns."""

    models: Annotated[tuple[ModelSettings, ...], Meta(min_length=1, max_length=MODELS_MAX)]


class SettingsProblem(Struct, frozen=True):
    """One mistake: where, in a sentence, and what to do."""

    path: str
    sentence: str
    hint: str


def parse_think(raw: object, *, where: str = "think") -> ThinkSettings:
    """Plain data as settings, or E0201 with every mistake that can be found."""
    try:
        settings = msgspec.convert(raw, ThinkSettings)
    except msgspec.ValidationError as error:
        text = str(error)
        at = _AT.search(text)
        path = f"{where}{at[1] if at else ''}"
        raise _refusal([SettingsProblem(path, _AT.sub("", text), _HINT)]) from error
    if found := think_problems(settings, where=where):
        raise _refusal(found)
    return settings


def think_problems(settings: ThinkSettings, *, where: str = "think") -> list[SettingsProblem]:
    """What single fields cannot show: names given twice, fields that do not go together, limits out of order."""
    found: list[SettingsProblem] = []
    _twice([model.name for model in settings.models], f"{where}.models", "name", found)
    givers: dict[str, str] = {}
    for index, model in enumerate(settings.models):
        for place, output in enumerate(model.outputs):
            if givers.setdefault(output, model.name) != model.name:
                sentence = f"`{output}` is also an output of `{givers[output]}`"
                hint = "output names must be unique across models"
                found.append(SettingsProblem(f"{where}.models[{index}].outputs[{place}]", sentence, hint))
        _check_model(model, f"{where}.models[{index}]", found)
    return found


def input_problems(
    settings: ThinkSettings, features: Collection[str], *, where: str = "think"
) -> list[SettingsProblem]:
    """Inputs that SENSE does not give; `features` are the names of its columns."""
    return [
        SettingsProblem(
            f"{where}.models[{index}].inputs[{place}]",
            f"`{name}` is not a SENSE feature",
            f"did you mean `{near[0]}`?" if (near := get_close_matches(name, features, n=1)) else _HINT,
        )
        for index, model in enumerate(settings.models)
        for place, name in enumerate(model.inputs)
        if name not in features
    ]


def _check_model(model: ModelSettings, path: str, found: list[SettingsProblem]) -> None:
    _twice(list(model.inputs), f"{path}.inputs", "", found)
    _twice(list(model.outputs), f"{path}.outputs", "", found)
    _twice([version.version for version in model.versions], f"{path}.versions", "version", found)
    for role, count_max in ((ModelRole.ACTIVE, 1), (ModelRole.CANARY, 1)):
        count = sum(version.role is role for version in model.versions)
        if count > count_max:
            found.append(
                SettingsProblem(
                    f"{path}.versions",
                    f"{count} versions are `{role}`",
                    f"change all but one, e.g. to `{ModelRole.LOADED}`",
                )
            )
    if not any(version.role is ModelRole.ACTIVE for version in model.versions):
        found.append(
            SettingsProblem(f"{path}.versions", "no version is `active`", "set `role: active` for one version")
        )
    for index, version in enumerate(model.versions):
        _check_version(version, f"{path}.versions[{index}]", found)
    _check_batching(model.batching, f"{path}.batching", found)


def _check_version(version: VersionSettings, path: str, found: list[SettingsProblem]) -> None:
    onnx = version.runtime is RuntimeKind.ONNX
    needed, other = ("path", "callable") if onnx else ("callable", "path")
    if getattr(version, needed) is None:
        found.append(
            SettingsProblem(f"{path}.{needed}", f"is missing, but runtime `{version.runtime}` needs it", _HINT)
        )
    if getattr(version, other) is not None:
        found.append(
            SettingsProblem(
                f"{path}.{other}", f"does not go with runtime `{version.runtime}`", f"remove it, or use `{needed}`"
            )
        )
    if onnx and version.sha256 is None:
        found.append(
            SettingsProblem(f"{path}.sha256", "is missing, but required for model files", "`sha256sum FILE` prints it")
        )


def _check_batching(batching: BatchingSettings, path: str, found: list[SettingsProblem]) -> None:
    sizes = batching.preferred_rows
    if any(later <= earlier for earlier, later in pairwise(sizes)):
        found.append(SettingsProblem(f"{path}.preferred_rows", "must increase", "write e.g. `[64, 256]`"))
    if sizes and max(sizes) > batching.rows_max:
        found.append(
            SettingsProblem(
                f"{path}.preferred_rows",
                f"{max(sizes)} is more than `rows_max`, {batching.rows_max}",
                "raise `rows_max`, or lower it",
            )
        )
    if batching.queue_rows_max < batching.rows_max:
        found.append(
            SettingsProblem(
                f"{path}.queue_rows_max",
                f"{batching.queue_rows_max} is less than one batch of {batching.rows_max} rows",
                f"use {batching.rows_max} or more",
            )
        )
    if batching.delay_ms_max >= batching.timeout_ms:
        found.append(
            SettingsProblem(
                f"{path}.delay_ms_max",
                f"{batching.delay_ms_max:g} ms of waiting is not below the timeout of {batching.timeout_ms:g} ms",
                "lower it: every single request would time out",
            )
        )


def _twice(words: list[str], path: str, field: str, found: list[SettingsProblem]) -> None:
    seen: set[str] = set()
    for index, word in enumerate(words):
        if word in seen:
            place = f"{path}[{index}]" + (f".{field}" if field else "")
            found.append(SettingsProblem(place, f"`{word}` is given twice", "names must be unique"))
        seen.add(word)


def _refusal(found: list[SettingsProblem]) -> HarchError:
    lines = [f"{problem.path}: {problem.sentence}" for problem in found]
    message = lines[0] if len(lines) == 1 else f"{len(lines)} problems\n" + "\n".join(f"  {line}" for line in lines)
    details = [{"field": item.path, "message": item.sentence, "hint": item.hint} for item in found]
    return HarchError("E0201", message, hint=found[0].hint, field=found[0].path, meta={"problems": details})
