"""What does a pipeline look like with another version of a model, or with a version in another role? Pure."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec import structs

from harch.base.errors import HarchError
from harch.pipelines.spec.settings import PipelineSpec
from harch.pipelines.think.settings import ModelSettings, Role, VersionSettings


def with_version(spec: PipelineSpec, model: str, wanted: Mapping[str, object]) -> PipelineSpec:
    """`wanted` holds `version`, `role`, and for a new version its file. Raises E0201.

    A version that becomes active makes the one before it `loaded`, so that going back is one step; a version with the
    role `retired` leaves the specification."""
    if spec.think is None:
        raise HarchError("E0201", f"`{spec.name}` has no models", hint="add `think` to its file")
    models = {one.name: one for one in spec.think.models}
    if model not in models:
        raise HarchError("E0201", f"`{spec.name}` has no model `{model}`", hint=f"it has {', '.join(models)}")
    models[model] = _changed(models[model], dict(wanted))
    return structs.replace(spec, think=structs.replace(spec.think, models=tuple(models.values())))


def _changed(model: ModelSettings, wanted: dict[str, object]) -> ModelSettings:
    name = str(wanted.get("version", ""))
    known = {one.version: one for one in model.versions}
    before = known.get(name)
    if wanted.get("role") == "retired":
        if before is None or before.role is Role.ACTIVE:
            words = "is the active one" if before else "is not there"
            raise HarchError("E0201", f"{model.name}@{name} {words}", hint="make another version active first")
        return structs.replace(model, versions=tuple(one for one in model.versions if one.version != name))
    merged = {**(msgspec.to_builtins(before) if before else {}), **wanted}
    try:
        after = msgspec.convert({key: value for key, value in merged.items() if value is not None}, VersionSettings)
    except msgspec.ValidationError as error:
        raise HarchError("E0201", f"{model.name}@{name}: {error}", hint="give version, role and a file") from error
    if before is not None and before.role is Role.ACTIVE and after.role is not Role.ACTIVE:
        raise HarchError("E0201", f"{model.name}@{name} is the active one", hint="make another version active first")
    if before is None and after.path is None and after.callable is None:
        raise HarchError("E0201", f"{model.name}@{name} is new and has no file", hint="add `--file model.onnx`")
    others = [
        structs.replace(one, role=Role.LOADED) if after.role is Role.ACTIVE and one.role is Role.ACTIVE else one
        for one in model.versions
        if one.version != name
    ]
    return structs.replace(model, versions=(*others, after))
