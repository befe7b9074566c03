"""Is this data a workload, and if not, what are all its mistakes?

For files, options and any other plain data; and the JSON schema for editors.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, get_args

import msgspec
from msgspec import Meta
from msgspec.inspect import DictType, EnumType, Metadata, StrType, StructType, Type, UnionType, VarTupleType

from harch.base.errors import HarchError
from harch.workloads.spec import WorkloadSpec

PROBLEMS_MAX = 20

_REGEX_MESSAGE = re.compile(r"matching regex '(.*)'$")
_WHERE_SUFFIX = re.compile(r" - at `.*`$")


@dataclass(frozen=True, slots=True)
class SpecProblem:
    """One mistake; `path` is e.g. `resources.gpus` or `command[2]`, empty for the whole."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


def checked(data: Mapping[str, object]) -> WorkloadSpec:
    """The specification, or E0201 with every mistake."""
    if found := problems_of(data):
        lines = [str(problem) for problem in found]
        message = lines[0] if len(lines) == 1 else f"{len(lines)} problems\n" + "\n".join(f"  {line}" for line in lines)
        raise HarchError(
            "E0201",
            message,
            hint="`harch schema` and docs/reference/workload.md show every field",
            field=found[0].path or None,
            meta={"problems": [{"field": problem.path, "message": problem.message} for problem in found]},
        )
    return msgspec.convert(data, WorkloadSpec)


def problems_of(data: object) -> list[SpecProblem]:
    """Every mistake, at most `PROBLEMS_MAX`. Checks between fields come last: they need fields that are right."""
    found = list(_struct_problems(data, _SPEC, ""))[:PROBLEMS_MAX]
    if not found:
        try:
            msgspec.convert(data, WorkloadSpec)
        except msgspec.ValidationError as error:
            found = [SpecProblem("", _WHERE_SUFFIX.sub("", str(error)))]
    return found


def is_text(type_: Type) -> bool:
    """True for fields that hold text, also in lists, mappings and where they may be absent."""
    match type_:
        case StrType() | EnumType():
            return True
        case Metadata(type=inner) | VarTupleType(item_type=inner) | DictType(value_type=inner):
            return is_text(inner)
        case UnionType(types=types):
            return any(is_text(inner) for inner in types)
        case _:
            return False


def field_types(struct: StructType) -> dict[str, Type]:
    """Field name to type, with the descriptions taken off."""
    return {field.encode_name: _bare(field.type) for field in struct.fields}


def _struct_problems(data: object, struct: StructType, path: str) -> Iterator[SpecProblem]:
    if not isinstance(data, Mapping):
        yield SpecProblem(path, f"must be a mapping of fields, not {_kind(data)}")
        return
    known = field_types(struct)
    for key in data:
        if key not in known:
            yield SpecProblem(_join(path, str(key)), f"unknown field{_did_you_mean(str(key), known)}")
    annotations = {field.encode_name: field.type for field in msgspec.structs.fields(struct.cls)}
    for field in struct.fields:
        name = field.encode_name
        here = _join(path, name)
        if name not in data:
            if field.required:
                yield SpecProblem(here, "is missing")
            continue
        type_ = known[name]
        inner = _struct_in(type_)
        if inner is not None and (isinstance(type_, StructType) or isinstance(data[name], Mapping)):
            yield from _struct_problems(data[name], inner, here)
        else:
            yield from _value_problems(data[name], annotations[name], type_, here)


def _value_problems(value: object, annotation: object, type_: Type, path: str) -> Iterator[SpecProblem]:
    """Entry by entry for lists and mappings, so that each mistake is named; then the whole, for its size."""
    found = False
    entries: list[tuple[str, object, object]] = []
    if isinstance(value, Mapping) and isinstance(type_, DictType):
        entries = [(f"{path}.{key}", item, {key: item}) for key, item in value.items()]
    elif isinstance(value, Sequence) and not isinstance(value, str) and isinstance(type_, VarTupleType):
        entries = [(f"{path}[{index}]", item, [item]) for index, item in enumerate(value)]
    inner = _struct_in(_bare(type_.item_type)) if isinstance(type_, VarTupleType) else None
    for here, item, alone in entries:
        if inner is not None:
            for problem in _struct_problems(item, inner, here):
                found = True
                yield problem
        elif message := _message_of(alone, item, annotation, type_):
            found = True
            yield SpecProblem(here, message)
    if not found and (message := _message_of(value, value, annotation, type_)):
        yield SpecProblem(path, message)


def _message_of(value: object, culprit: object, annotation: object, type_: Type) -> str:
    """Empty if the value is right; else what is wrong with it, in words that help to mend it."""
    try:
        msgspec.convert(value, annotation)
    except msgspec.ValidationError as error:
        text = _WHERE_SUFFIX.sub("", str(error))
    else:
        return ""
    if (enum := _enum(type_)) is not None and isinstance(culprit, str):
        words = [str(member.value) for member in enum.cls]
        return f"`{culprit}` is not one of {', '.join(words)}{_did_you_mean(culprit, words)}"
    if match := _REGEX_MESSAGE.search(text):
        pattern = match.group(1).replace("\\\\", "\\")  # the message quotes it
        described = next(_descriptions(annotation, pattern), f"must match {pattern}")
        return f"`{culprit}` is not valid: {described}"
    return text[0].lower() + text[1:]


def _descriptions(annotation: object, pattern: str) -> Iterator[str]:
    """What the author of a pattern wrote about it."""
    for part in get_args(annotation):
        if isinstance(part, Meta):
            if part.pattern == pattern and part.description:
                yield part.description
        else:
            yield from _descriptions(part, pattern)


def _bare(type_: Type) -> Type:
    while isinstance(type_, Metadata):
        type_ = type_.type
    return type_


def _struct_in(type_: Type) -> StructType | None:
    """The fields of a mapping, also where it may be absent."""
    if isinstance(type_, UnionType):
        return next((inner for inner in map(_bare, type_.types) if isinstance(inner, StructType)), None)
    return type_ if isinstance(type_, StructType) else None


def _enum(type_: Type) -> EnumType | None:
    """The words to choose from, also where the field may be absent."""
    if isinstance(type_, UnionType):
        return next((inner for inner in type_.types if isinstance(inner, EnumType)), None)
    return type_ if isinstance(type_, EnumType) else None


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _kind(value: object) -> str:
    words = {str: "text", list: "a list", type(None): "nothing", bool: "true or false"}
    return words.get(type(value), "a number")


def _did_you_mean(word: str, choices: Mapping[str, object] | Sequence[str]) -> str:
    near = get_close_matches(word, list(choices), n=1)
    return f"; did you mean `{near[0]}`?" if near else ""


def _struct_type() -> StructType:
    info = msgspec.inspect.type_info(WorkloadSpec)
    if not isinstance(info, StructType):
        raise TypeError("WorkloadSpec is not a struct")
    return info


_SPEC = _struct_type()
TEXT_FIELDS = frozenset(
    {name for name, type_ in field_types(_SPEC).items() if is_text(type_)}
    | {
        f"{name}.{inner}"
        for name, type_ in field_types(_SPEC).items()
        if isinstance(type_, StructType)
        for inner, inner_type in field_types(type_).items()
        if is_text(inner_type)
    }
)


# How do editors know what a workload file may say? The JSON schema, made from the types.


# Where a field holds text, a workload file takes numbers and booleans as they are written: `command: [sleep, 60]`.
_TEXT: dict[str, Any] = {"type": ["string", "number", "boolean"]}


def workload_schema() -> dict[str, Any]:
    """A self-contained JSON schema (draft 2020-12) of one document of a workload file."""
    (top,), components = msgspec.json.schema_components([WorkloadSpec], ref_template="#/$defs/{name}")
    definitions: dict[str, Any] = dict(components)
    spec = definitions.pop(top["$ref"].removeprefix("#/$defs/"))
    properties: dict[str, Any] = {
        "kind": {"const": "workload", "description": "What this document is; may be left out."}
    }
    properties |= spec["properties"]
    properties["command"] |= {"items": _TEXT}
    for name in ("env", "labels"):
        properties[name] |= {"additionalProperties": _TEXT}
    return {
        **spec,
        "title": "HarchOS workload",
        "properties": properties,
        "$defs": definitions,
    }


def workload_schema_text() -> str:
    """As it is printed and as it is kept in the documentation."""
    return msgspec.json.format(msgspec.json.encode(workload_schema()), indent=2).decode() + "\n"
