"""What does a policy get to see? One document per question, and one that describes the fleet and the law.

The same document is answered by the compiled rules and by Rego, which is what makes the two comparable. Ids, names and
times of workloads are left out: a policy is about what is asked, and equal questions can share an answer.
"""

# harch: pure

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import Struct

from harch.sovereignty.compiled import Rules
from harch.sovereignty.gates import AccessRequest, eligible_mask
from harch.sovereignty.geography import Terrain
from harch.sovereignty.jurisdictions import Jurisdictions
from harch.sovereignty.tags import DataObject, Tag
from harch.workloads.spec import WorkloadSpec

Document = dict[str, object]


class DataQuestion(Struct, frozen=True, kw_only=True):
    """May data with this tag be processed, kept, moved or seen there? `source` matters for the last two."""

    action: Literal["process", "rest", "move", "see"]
    hub: str
    source: str = ""
    tag: Tag | None


class WorkQuestion(Struct, frozen=True, kw_only=True):
    """May this work be admitted at that hub?"""

    action: Literal["workload"] = "workload"
    hub: str
    tenant: str = ""
    workload: Document
    data: tuple[DataObject, ...] = ()
    not_found: tuple[str, ...] = ()


class ChangeQuestion(Struct, frozen=True, kw_only=True):
    """May this planned change be applied? One resource of a plan: its type, what is done, and its values."""

    action: Literal["change"] = "change"
    resource_type: str
    address: str
    operation: Literal["create", "update", "delete", "replace", "read", "no-op"]
    before: Document | None
    after: Document | None
    unknown: tuple[str, ...] = ()  # paths whose values are known only after the change


Question = DataQuestion | WorkQuestion | ChangeQuestion


def document_of(question: Question) -> Document:
    found: Document = msgspec.to_builtins(question)
    return found


def work_question(spec: WorkloadSpec, access: AccessRequest, *, hub: str, tenant: str) -> WorkQuestion:
    """Commands and environments stay out: they may hold what nobody wants in a table of decisions."""
    resources = spec.resources
    return WorkQuestion(
        hub=hub,
        tenant=tenant,
        workload={
            "type": spec.type.value,
            "priority": spec.priority.value,
            "tasks": spec.tasks,
            "gpus": resources.gpus,
            "gpus_total": spec.gpus_total,
            "gpu_model": resources.gpu_model,
            "countries_allowed": list(access.countries_allowed),
            "image": spec.image,
            "labels": spec.labels,
            "secrets": list(spec.secrets),
            "max_duration_s": spec.max_duration_s,
        },
        data=access.reads,
        not_found=access.not_found,
    )


def change_question(change: Document) -> ChangeQuestion:
    """One entry of `resource_changes` of a Terraform plan in JSON."""
    body = change.get("change")
    actions = tuple(body.get("actions", ())) if isinstance(body, dict) else ()
    return msgspec.convert(
        {
            "resource_type": change.get("type", ""),
            "address": change.get("address", ""),
            "operation": "replace" if len(actions) == 2 else next(iter(actions), "no-op"),
            "before": body.get("before") if isinstance(body, dict) else None,
            "after": body.get("after") if isinstance(body, dict) else None,
            "unknown": tuple(sorted(_unknown_paths(body.get("after_unknown"), ""))) if isinstance(body, dict) else (),
        },
        ChangeQuestion,
    )


def compiled_answer(rules: Rules, question: DataQuestion | WorkQuestion) -> bool:
    """What the masks say to the same question."""
    if isinstance(question, WorkQuestion):
        countries = question.workload.get("countries_allowed")
        access = AccessRequest(
            id="",
            countries_allowed=tuple(countries) if isinstance(countries, list) else (),
            reads=question.data,
            not_found=question.not_found,
        )
        return bool(eligible_mask(rules, access) & rules.mask_of((question.hub,)))
    match question.action:
        case "process":
            return rules.may_process(question.tag, question.hub)
        case "rest":
            return rules.may_rest(question.tag, question.hub)
        case "move":
            return rules.may_move(question.tag, question.source, question.hub)
        case "see":
            return rules.may_see(question.tag, question.source, question.hub)


def world_document(terrain: Terrain, jurisdictions: Jurisdictions) -> Document:
    """What HarchOS tells every policy about the world, as `data.world`."""
    known = {site.hub for site in terrain.sites}
    return {
        "hubs": {
            site.hub: {
                "country": site.country,
                "frameworks": list(site.frameworks),
                "encrypts_at_rest": site.encrypts_at_rest,
                "keys_in": list(site.keys_in),
            }
            for site in terrain.sites
        },
        "links": [
            {
                "ends": list(passage.ends),
                "rtt_ms": passage.rtt_ms,
                "countries_crossed": sorted(set(passage.countries_crossed)),
                "international": passage.is_international,
                "encrypted": passage.encrypted,
            }
            for passage in terrain.passages
            if known.issuperset(passage.ends)
        ],
        "countries": dict(jurisdictions.countries),
        "frameworks": {
            law.id: {"name": law.name, "in_force": list(law.in_force)} for law in jurisdictions.frameworks.values()
        },
        "groups": {group.id: list(group.countries) for group in jurisdictions.groups.values()},
    }


def _unknown_paths(node: object, path: str) -> list[str]:
    if node is True:
        return [path]
    parts: list[tuple[str, object]] = []
    if isinstance(node, dict):
        parts = [(f"{path}.{key}" if path else str(key), value) for key, value in node.items()]
    elif isinstance(node, list):
        parts = [(f"{path}[{index}]", value) for index, value in enumerate(node)]
    return [found for where, value in parts for found in _unknown_paths(value, where)]
