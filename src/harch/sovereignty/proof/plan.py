"""What would this Terraform plan change? The JSON of `terraform show -json` as a world and its pending changes.

Major version 1 is read and unknown keys are ignored, as Terraform asks of its readers. Types that have no say in where
data goes are passed over. What `after_unknown` marks stays unknown, unless the configuration refers to one resource.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from harch.base.errors import HarchError
from harch.sovereignty.jurisdictions import Jurisdictions
from harch.sovereignty.proof.model import CHANGES_MAX, Change, Hub, Kind, Resource, World, world_of
from harch.sovereignty.proof.plan_types import READERS, Reader, Values

FORMAT_MAJOR = "1"
PROVIDER_PREFIX = "harchos_"
_HINT = "write it with `terraform show -json plan.tfplan > plan.json`"


def read_plan(
    raw: object, jurisdictions: Jurisdictions, around: World | None = None
) -> tuple[World, tuple[Change, ...]]:
    """The plan's world, inside of the world `around` it if that is known, and the changes to it. Raises E0201."""
    if not isinstance(raw, Mapping):
        raise HarchError("E0201", "a plan is a JSON object", hint=_HINT)
    version = str(raw.get("format_version", ""))
    if version.split(".")[0] != FORMAT_MAJOR:
        raise HarchError("E0201", f"the plan has format `{version[:16]}`; major version 1 is understood", hint=_HINT)
    listed = raw.get("resource_changes", [])
    if not isinstance(listed, list) or len(listed) > CHANGES_MAX:
        raise HarchError("E0201", f"`resource_changes` must be a list of at most {CHANGES_MAX}", hint=_HINT)
    entries = [entry for entry in listed if _is_ours(entry)]
    reader = Reader(
        jurisdictions, _names(entries), _references(raw.get("configuration")), _hub_countries(entries, around)
    )
    before: list[Resource] = [one for found in around.resources.values() for one in found.values()] if around else []
    changes: list[Change] = []
    for entry in entries:
        change = entry.get("change") or {}
        actions = tuple(change.get("actions") or ())
        old = _read(reader, entry, change.get("before"), {})
        if old is not None:
            before.append(old[1])
        if not set(actions) & {"create", "update", "delete", "forget"}:
            continue
        new = _read(reader, entry, change.get("after"), change.get("after_unknown"))
        found = _change(entry["address"], actions, old, new)
        if found is not None:
            changes.append(found)
    return world_of(*before, declassified=around.declassified if around else None), tuple(changes)


def _is_ours(entry: object) -> bool:
    return (
        isinstance(entry, Mapping)
        and entry.get("mode", "managed") == "managed"
        and isinstance(entry.get("address"), str)
        and str(entry.get("type", "")).removeprefix(PROVIDER_PREFIX) in READERS
    )


def _change(
    address: str, actions: tuple[str, ...], old: tuple[Kind, Resource] | None, new: tuple[Kind, Resource] | None
) -> Change | None:
    kind, after = new or (None, None)
    if kind is None:
        if old is None:
            return None
        kind = old[0]
    key = after.id if after is not None else old[1].id if old is not None else address
    is_replaced = "delete" in actions and "create" in actions
    if old is not None and old[1] == after and not is_replaced:
        return None  # what changes has no say in where data goes
    # Which of the two comes first is Terraform's business; being gone in between is the case that must be looked at.
    passes: tuple[Resource | None, ...] = (None, after) if is_replaced else (after,)
    return Change(id=address, kind=kind, key=key, passes=passes, label=f"{' and '.join(actions)} {address}")


def _read(reader: Reader, entry: Any, values: object, unknown: object) -> tuple[Kind, Resource] | None:
    if not isinstance(values, Mapping):
        return None
    kind, read = READERS[str(entry["type"]).removeprefix(PROVIDER_PREFIX)]
    marked = {str(name) for name, mark in unknown.items() if _has_true(mark)} if isinstance(unknown, Mapping) else set()
    return kind, read(reader, Values(str(entry["address"]), _key(entry), dict(values), frozenset(marked)))


def _key(entry: Mapping[str, Any]) -> str:
    """The id that the provider gave it, so that it is the same resource as in a state document; else its address."""
    change = entry.get("change") or {}
    for values in (change.get("before"), change.get("after")):
        if isinstance(values, Mapping) and isinstance(values.get("id"), str):
            return str(values["id"])
    return str(entry["address"])


def _hub_countries(entries: Sequence[Mapping[str, Any]], around: World | None) -> dict[str, str]:
    """Hubs and the country words that they have or will have."""
    found = {
        key: hub.country
        for key, hub in (around.of(Kind.HUB).items() if around else ())
        if isinstance(hub, Hub) and hub.country is not None
    }
    for entry in entries:
        change = entry.get("change") or {}
        for values in (change.get("before"), change.get("after")):
            if entry["type"] == f"{PROVIDER_PREFIX}hub" and isinstance(values, Mapping):
                found[_key(entry)] = str(values.get("country"))
    return found


def _has_true(mark: object) -> bool:
    """Marks are nested like the value; one true inside makes the whole attribute unknown to us."""
    if isinstance(mark, Mapping):
        return any(_has_true(inner) for inner in mark.values())
    if isinstance(mark, list):
        return any(_has_true(inner) for inner in mark)
    return mark is True


def _names(entries: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Every word by which a resource may be referred to (id, name, address), to the key that it has here.

    A word that two resources of one type share names neither, because guessing would prove something else.
    """
    found: dict[str, str] = {}
    twice: set[str] = set()
    for entry in entries:
        change = entry.get("change") or {}
        address, key = str(entry["address"]), _key(entry)
        type_ = str(entry["type"]).removeprefix(PROVIDER_PREFIX)
        for values in (change.get("before"), change.get("after")):
            if isinstance(values, Mapping):
                words = {word for word in (values.get("id"), values.get("name"), address) if isinstance(word, str)}
                twice.update(f"{type_}:{word}" for word in words if found.setdefault(f"{type_}:{word}", key) != key)
    return {word: key for word, key in found.items() if word not in twice}


def _references(configuration: object) -> dict[tuple[str, str], str]:
    """(address, attribute) to the one resource that its expression refers to. Only the root module is read."""
    root = configuration.get("root_module") if isinstance(configuration, Mapping) else None
    listed = root.get("resources") if isinstance(root, Mapping) else None
    found: dict[tuple[str, str], str] = {}
    for resource in listed if isinstance(listed, list) else ():
        if isinstance(resource, Mapping) and isinstance(resource.get("expressions"), Mapping):
            for name, expression in resource["expressions"].items():
                targets = set(_resources_in(expression))
                if len(targets) == 1:
                    found[str(resource.get("address")), str(name)] = targets.pop()
    return found


def _resources_in(expression: object) -> Iterator[str]:
    """The shortest form of each reference: Terraform lists `type.name.id` and `type.name`."""
    references = expression.get("references") if isinstance(expression, Mapping) else None
    for word in references if isinstance(references, list) else ():
        parts = str(word).split(".")
        if parts[0].startswith(PROVIDER_PREFIX) and len(parts) >= 2:
            yield ".".join(parts[:2])
        elif parts[0] not in ("path", "terraform"):
            yield str(word)  # a variable or `each.key`: together with a resource it does not name one
