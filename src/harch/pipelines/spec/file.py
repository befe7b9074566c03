"""Is this a pipeline file that can be deployed?

YAML in, specifications out, or every mistake with line, path, fix; and the JSON schema for editors.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any

import msgspec

from harch.base.errors import HarchError, Problems
from harch.base.yaml_text import Document, YamlRules, read_documents
from harch.pipelines.act.settings import ActSettings, check_act
from harch.pipelines.sense.features import feature_schema, rule_names
from harch.pipelines.sense.settings import HttpSource, NatsSource, SenseSettings, sense_problems
from harch.pipelines.spec.settings import Durability, PipelineSpec, PipelineStageName
from harch.pipelines.spec.shape import PROBLEMS_MAX, ShapeProblem, shape_problems
from harch.pipelines.think.settings import think_problems
from harch.sovereignty.jurisdictions import Jurisdictions
from harch.sovereignty.tags import Tag, parse_tag

KIND = "pipeline"
INPUT_WORD = "in"  # devices publish to juris.<country>.<pipeline>.in.…
_YAML = YamlRules(
    code="E0250",
    bytes_max=8 << 20,  # lists of devices are long
    documents_max=20,
    depth_max=24,
    nodes_max=400_000,
)
_HINT = "docs/pipelines/spec.md shows every field; nothing was deployed"


def parse_pipelines(text: bytes, source: str, jurisdictions: Jurisdictions) -> list[PipelineSpec]:
    """All pipelines of a file, at least one. Raises E0250 with every mistake of all of them."""
    specs: list[PipelineSpec] = []
    wrong: list[tuple[Document, ShapeProblem]] = []
    for document in read_documents(text, source, _YAML):
        found = [ShapeProblem(path, what) for path, what in document.problems]
        data = document.data
        if isinstance(data, dict):
            data = dict(data)
            kind = data.pop("kind", None)
            if kind != KIND:
                found.append(
                    ShapeProblem("kind", "is missing" if kind is None else f"is `{kind}`", f"write `kind: {KIND}`")
                )
        found += pipeline_problems(data, jurisdictions)
        wrong += [(document, problem) for problem in found]
        if not found:
            specs.append(msgspec.convert(data, PipelineSpec))
    names = [spec.name for spec in specs]
    for name in sorted({name for name in names if names.count(name) > 1}):
        wrong.append((Document(), ShapeProblem("name", f"two pipelines are named `{name}`", "names are unique")))
    if wrong:
        raise _refusal(wrong, source)
    if not specs:
        raise HarchError("E0250", f"{source} defines no pipeline", hint=_HINT)
    return specs


def pipeline_problems(data: object, jurisdictions: Jurisdictions) -> list[ShapeProblem]:
    """Every mistake of one pipeline as plain data. Checks between fields come last: they need fields that are right."""
    found = shape_problems(data, PipelineSpec)
    if isinstance(data, dict) and isinstance(data.get("jurisdiction"), dict):
        found += _tag_problems(data["jurisdiction"], jurisdictions, "jurisdiction")
    if not found:
        found = list(spec_problems(msgspec.convert(data, PipelineSpec), jurisdictions))
    return found[:PROBLEMS_MAX]


def spec_problems(spec: PipelineSpec, jurisdictions: Jurisdictions) -> list[ShapeProblem]:
    """What single fields cannot show: the stages' own checks, and what they must agree on."""
    found = _tag_problems(spec.jurisdiction, jurisdictions, "jurisdiction")
    found += [
        ShapeProblem(f"sense.{problem.path}", problem.message, problem.hint) for problem in sense_problems(spec.sense)
    ]
    if spec.think is not None:
        found += [ShapeProblem(each.path, each.sentence, each.hint) for each in think_problems(spec.think)]
        for index, model in enumerate(spec.think.models):
            for where, tag in (("", model.tag), *((f".versions[{n}]", v.tag) for n, v in enumerate(model.versions))):
                if tag is not None:
                    found += _tag_problems(tag, jurisdictions, f"think.models[{index}]{where}.tag")
    if spec.act is not None:
        outputs = _readable(spec)
        problems = Problems(limit=PROBLEMS_MAX)
        check_act(spec.act, problems, outputs=outputs)
        found += [ShapeProblem(where, what) for where, what in problems.found]
    found += _between_problems(spec)
    for index, export in enumerate(spec.exports):
        if export.tag is not None:
            found += _tag_problems(export.tag, jurisdictions, f"exports[{index}].tag")
        unknown = [code for code in export.to if code not in jurisdictions.countries]
        if unknown:
            found.append(ShapeProblem(f"exports[{index}].to", f"`{unknown[0]}` is not a country", "e.g. MA, SN, CI"))
    return found


def data_tag(spec: PipelineSpec, jurisdictions: Jurisdictions) -> Tag:
    """The tag of the pipeline's data. Raises what `parse_tag` raises; a parsed file does not."""
    return parse_tag(spec.jurisdiction, jurisdictions, where="jurisdiction")


def _between_problems(spec: PipelineSpec) -> list[ShapeProblem]:
    found = []
    sources = {source.name for source in spec.sense.sources}
    for name in spec.origins:
        if name not in sources:
            known = ", ".join(sorted(sources)) or "there are none"
            found.append(ShapeProblem(f"origins.{name}", "is not a source of `sense.sources`", f"sources: {known}"))
    for stage in PipelineStageName:
        scaling, path = spec.scaling.of(stage), f"scaling.{stage}"
        if stage not in spec.stages and scaling != type(scaling)():
            found.append(ShapeProblem(path, f"the pipeline has no {stage} stage", f"remove it, or add `{stage}`"))
        if scaling.workers_min > scaling.workers_max:
            fix = f"raise `workers_max` to {scaling.workers_min}"
            found.append(ShapeProblem(f"{path}.workers_min", f"is more than `workers_max`, {scaling.workers_max}", fix))
        if scaling.workers_max > spec.sense.partitions:
            fix = f"at most {spec.sense.partitions}, or more `sense.partitions` (64 is a good number)"
            found.append(ShapeProblem(f"{path}.workers_max", "is more than the number of partitions", fix))
        outside = sorted(set(scaling.hubs) - set(spec.hubs)) if spec.hubs else []
        if outside:
            found.append(
                ShapeProblem(f"{path}.hubs", f"`{outside[0]}` is not in the pipeline's `hubs`", "add it there")
            )
    if spec.durability.think is Durability.SYNCED:
        found.append(ShapeProblem("durability.think", "features cannot be synced", "use `hot` or `stored`"))
    if spec.durability.act is Durability.HOT:
        found.append(ShapeProblem("durability.act", "commands must be stored", "use `stored` or `synced`"))
    if spec.act is not None and spec.durability.events_kept_s > spec.act.retention_s:
        sentence = (
            f"is longer than the retention of the action ledger, {spec.act.retention_s:g} s: a replay could repeat them"
        )
        found.append(
            ShapeProblem("durability.events_kept_s", sentence, "raise `act.retention_s`, or keep events shorter")
        )
    found += _source_problems(spec)
    found += _feature_problems(spec)
    if spec.act is not None and spec.think is None:
        found += _rule_problems(spec.sense, spec.act)
    return [*found, *_border_problems(spec)]


def _border_problems(spec: PipelineSpec) -> list[ShapeProblem]:
    """Exports are made of features that exist; imports come in through HTTP sources that exist."""
    found = []
    names = [export.name for export in spec.exports]
    if len(set(names)) < len(names):
        found.append(ShapeProblem("exports", "two exports have the same name", "names are unique"))
    made = [] if sense_problems(spec.sense) else [column.name for column in feature_schema(spec.sense).values]
    for index, export in enumerate(spec.exports):
        found += [
            ShapeProblem(f"exports[{index}].columns[{place}]", f"no SENSE feature `{name}`", _near(name, made))
            for place, name in enumerate(export.columns)
            if made and name not in made
        ]
    sources = {source.name: source for source in spec.sense.sources}
    for index, taken in enumerate(spec.imports):
        if not isinstance(sources.get(taken.source), HttpSource):
            fix = f"HTTP sources: {', '.join(name for name, one in sources.items() if isinstance(one, HttpSource))}"
            found.append(ShapeProblem(f"imports[{index}].source", "is not an HTTP source of `sense.sources`", fix))
    if len({(taken.hub, taken.pipeline, taken.export) for taken in spec.imports}) < len(spec.imports):
        found.append(ShapeProblem("imports", "duplicate import", "import it once"))
    return found


def _near(name: str, made: list[str]) -> str:
    near = get_close_matches(name, made, n=1)
    return f"did you mean `{near[0]}`?" if near else f"SENSE features: {', '.join(made[:8])}"


def _readable(spec: PipelineSpec) -> list[str] | None:
    """What rules may be about: outputs of models, or the features themselves; None if those are not known."""
    if spec.think is not None:
        return [name for model in spec.think.models for name in model.outputs]
    return None if sense_problems(spec.sense) else list(rule_names(spec.sense))


def _rule_problems(sense: SenseSettings, act: ActSettings) -> list[ShapeProblem]:
    """Where rules read features, one row is one device, and no model is asked."""
    found = []
    if sense.rows_per != "device":
        sentence = "without models, rules apply to devices, but rows are per metric"
        found.append(ShapeProblem("sense.rows_per", sentence, "use `device`"))
    for index, action in enumerate(act.actions):
        if action.model:
            found.append(ShapeProblem(f"act.actions[{index}].model", "the pipeline has no models", "remove it"))
    return found


def _source_problems(spec: PipelineSpec) -> list[ShapeProblem]:
    """A subject outside of the pipeline's own would let it read what is not its."""
    found = []
    for index, source in enumerate(spec.sense.sources):
        if isinstance(source, NatsSource):
            words = source.subject.split(".")
            own = len(words) > 4 and words[0] == "juris" and words[2] == spec.name and words[3] == INPUT_WORD
            if not own or "*" in words[1] or any(not word for word in words):
                fix = f"use e.g. `juris.ma.{spec.name}.{INPUT_WORD}.>`"
                sentence = f"`{source.subject[:64]}` is not a subject of this pipeline's input"
                found.append(ShapeProblem(f"sense.sources[{index}].subject", sentence, fix))
    return found


def _feature_problems(spec: PipelineSpec) -> list[ShapeProblem]:
    """Models read columns that SENSE makes; a misspelt one would only show when the first window closes."""
    if spec.think is None or sense_problems(spec.sense):
        return []
    made = [column.name for column in feature_schema(spec.sense).values]
    found = []
    for index, model in enumerate(spec.think.models):
        for place, name in enumerate(model.inputs):
            if name not in made:
                path = f"think.models[{index}].inputs[{place}]"
                found.append(ShapeProblem(path, f"no SENSE feature `{name}`", _near(name, made)))
    return found


def _tag_problems(raw: object, jurisdictions: Jurisdictions, where: str) -> list[ShapeProblem]:
    try:
        parse_tag(raw, jurisdictions, where=where)
    except HarchError as error:
        listed = error.meta.get("problems")
        if isinstance(listed, list):
            return [ShapeProblem(entry["where"], entry["what"]) for entry in listed]
        return [ShapeProblem(where, error.message, error.hint)]
    return []


def _refusal(wrong: list[tuple[Document, ShapeProblem]], source: str) -> HarchError:
    placed = [(*document.position(problem.path), problem) for document, problem in wrong[:PROBLEMS_MAX]]
    lines = [f"{source}:{line}:{column}: {problem}" for line, column, problem in placed]
    message = lines[0] if len(lines) == 1 else f"{len(lines)} problems\n" + "\n".join(f"  {line}" for line in lines)
    details = [
        {"file": source, "line": line, "column": column, "field": p.path, "message": p.sentence, "hint": p.hint}
        for line, column, p in placed
    ]
    return HarchError("E0250", message, hint=_HINT, field=placed[0][2].path or None, meta={"problems": details})


# How do editors know what a pipeline file may say? The JSON schema, made from the types.


def pipeline_schema() -> dict[str, Any]:
    """A self-contained JSON schema (draft 2020-12) of one document of a pipeline file."""
    (top,), components = msgspec.json.schema_components([PipelineSpec], ref_template="#/$defs/{name}")
    definitions: dict[str, Any] = dict(components)
    spec = definitions.pop(top["$ref"].removeprefix("#/$defs/"))
    properties = {"kind": {"const": "pipeline", "description": "What this document is."}, **spec["properties"]}
    return {
        **spec,
        "title": "HarchOS pipeline",
        "properties": properties,
        "required": ["kind", *spec["required"]],
        "$defs": definitions,
    }


def pipeline_schema_text() -> str:
    """As it is printed and as it is kept in the documentation."""
    return msgspec.json.format(msgspec.json.encode(pipeline_schema()), indent=2).decode() + "\n"


if __name__ == "__main__":
    print(pipeline_schema_text(), end="")
