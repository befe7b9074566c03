"""Is this data of that form, and if not, what are all its mistakes? For any tree of structs. No I/O.

msgspec stops at the first mistake; people want to mend a file once. So the tree is walked beside the types, each leaf
is asked by itself, and what needs several fields is asked only where the fields are right.
"""

# harch: pure

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.inspect import (
    DictType,
    EnumType,
    LiteralType,
    Metadata,
    StructType,
    Type,
    UnionType,
    VarTupleType,
    type_info,
)

PROBLEMS_MAX = 50
_AT = re.compile(r" - at `\$?(.*?)`$")
_PATTERN = re.compile(r"matching regex '(.*)'$")


class ShapeProblem(Struct, frozen=True):
    """One mistake: where, in a sentence, and what to write instead."""

    path: str
    sentence: str
    hint: str = ""

    def __str__(self) -> str:
        text = f"{self.path}: {self.sentence}" if self.path else self.sentence
        return f"{text}; {self.hint}" if self.hint else text


def shape_problems(data: object, cls: type[Struct], path: str = "") -> list[ShapeProblem]:
    """Every mistake, at most `PROBLEMS_MAX`; empty if `msgspec.convert(data, cls)` will do."""
    found = []
    for problem in _struct(data, _info(cls), path):
        found.append(problem)
        if len(found) >= PROBLEMS_MAX:
            break
    return found


@cache
def _info(cls: type[Struct]) -> StructType:
    info = type_info(cls)
    if not isinstance(info, StructType):
        raise TypeError(f"{cls} is not a struct")
    return info


@cache
def _annotations(cls: type[Struct]) -> dict[str, Any]:
    return {field.encode_name: field.type for field in msgspec.structs.fields(cls)}


def _struct(data: object, info: StructType, path: str) -> Iterator[ShapeProblem]:
    if not isinstance(data, Mapping):
        yield ShapeProblem(path, f"must be a table of fields, not {_kind(data)}", _fields_hint(info))
        return
    known = {field.encode_name: field for field in info.fields}
    clean = True
    for key in data:
        if key not in known and key != info.tag_field:
            clean = False
            yield ShapeProblem(_join(path, str(key)[:64]), "unknown field", _did_you_mean(str(key), known))
    for name, field in known.items():
        here = _join(path, name)
        if name in data:
            for problem in _typed(data[name], field.type, _annotations(info.cls)[name], here):
                clean = False
                yield problem
        elif field.required:
            clean = False
            yield ShapeProblem(here, "is missing", _description(field.type))
    if clean:  # what the struct itself checks between its fields
        try:
            msgspec.convert(data, info.cls)
        except msgspec.ValidationError as error:
            yield ShapeProblem(path, _lower(_AT.sub("", str(error))))


def _typed(value: object, type_: Type, annotation: Any, path: str) -> Iterator[ShapeProblem]:
    bare = _bare(type_)
    inner = _chosen(value, bare)
    if isinstance(inner, StructType):
        yield from _struct(value, inner, path)
        return
    if isinstance(bare, UnionType) and isinstance(value, Mapping) and _tagged(bare):
        yield _wrong_tag(value, bare, path)
        return
    items: list[tuple[str, object, Type]] = []
    if isinstance(bare, VarTupleType) and isinstance(value, Sequence) and not isinstance(value, str):
        items = [(f"{path}[{index}]", item, bare.item_type) for index, item in enumerate(value)]
    elif isinstance(bare, DictType) and isinstance(value, Mapping):
        items = [(f"{path}.{key}", item, bare.value_type) for key, item in value.items()]
    found = False
    for here, item, item_type in items:
        if _has_structs(item_type):
            for problem in _typed(item, item_type, Any, here):
                found = True
                yield problem
    if not found and annotation is not Any:
        yield from _value_problems(value, type_, annotation, path)


def _value_problems(value: object, type_: Type, annotation: Any, path: str) -> Iterator[ShapeProblem]:
    """msgspec's own verdict, in words that help; the path of the item inside lists comes from it."""
    try:
        msgspec.convert(value, annotation)
    except msgspec.ValidationError as error:
        text = str(error)
        at = _AT.search(text)
        place = path + (at[1] if at and not at[1].startswith("key") else "")
        bare = _bare(type_)
        words = _words(bare)
        if words and isinstance(value, str):
            yield ShapeProblem(place, f"`{value[:40]}` is not one of {', '.join(words)}", _did_you_mean(value, words))
            return
        sentence = _AT.sub("", text)
        if _PATTERN.search(sentence):
            sentence = "has the wrong form"
        yield ShapeProblem(place, _lower(sentence), _description(type_))


def _chosen(value: object, type_: Type) -> Type | None:
    """The struct that this value should be: the only one, or the one that its tag names."""
    if isinstance(type_, StructType):
        return type_
    if not isinstance(type_, UnionType) or not isinstance(value, Mapping):
        return None
    structs = [_bare(option) for option in type_.types if isinstance(_bare(option), StructType)]
    for option in structs:
        if isinstance(option, StructType) and option.tag_field and value.get(option.tag_field) == option.tag:
            return option
    only = structs[0] if len(structs) == 1 else None
    return only if isinstance(only, StructType) and not only.tag_field else None


def _tagged(type_: UnionType) -> list[StructType]:
    return [option for option in map(_bare, type_.types) if isinstance(option, StructType) and option.tag_field]


def _wrong_tag(value: Mapping[object, object], type_: UnionType, path: str) -> ShapeProblem:
    options = _tagged(type_)
    name = str(options[0].tag_field)
    words = [str(option.tag) for option in options]
    given = value.get(name)
    if given is None:
        return ShapeProblem(_join(path, name), "is missing", f"one of {', '.join(words)}")
    return ShapeProblem(
        _join(path, name), f"`{str(given)[:40]}` is not one of {', '.join(words)}", _did_you_mean(str(given), words)
    )


def _has_structs(type_: Type) -> bool:
    bare = _bare(type_)
    if isinstance(bare, UnionType):
        return any(_has_structs(option) for option in bare.types)
    if isinstance(bare, VarTupleType):
        return _has_structs(bare.item_type)
    if isinstance(bare, DictType):
        return _has_structs(bare.value_type)
    return isinstance(bare, StructType)


def _words(type_: Type) -> list[str]:
    if isinstance(type_, EnumType):
        return [str(member.value) for member in type_.cls]
    if isinstance(type_, LiteralType):
        return [str(value) for value in type_.values]
    if isinstance(type_, UnionType):
        return [word for option in type_.types for word in _words(_bare(option))]
    return []


def _bare(type_: Type) -> Type:
    while isinstance(type_, Metadata):
        type_ = type_.type
    return type_


def _description(type_: Type) -> str:
    while isinstance(type_, Metadata):
        described = (type_.extra_json_schema or {}).get("description")
        if described:
            return str(described).rstrip(".")
        type_ = type_.type
    return ""


def _fields_hint(info: StructType) -> str:
    names = [field.encode_name for field in info.fields]
    return f"fields: {', '.join(names[:12])}{' …' if len(names) > 12 else ''}"


def _did_you_mean(word: str, choices: Mapping[str, object] | Sequence[str]) -> str:
    near = get_close_matches(word, list(choices), n=1)
    return f"did you mean `{near[0]}`?" if near else ""


def _kind(value: object) -> str:
    words = {str: "text", list: "a list", type(None): "nothing", bool: "true or false"}
    return words.get(type(value), "a number")


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]
