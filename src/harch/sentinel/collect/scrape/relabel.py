"""Which labels does a target or a sample end up with? Prometheus' relabelling rules."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from harch.sentinel.model.labels import whole_text_pattern

Action = Literal[
    "replace", "keep", "drop", "keepequal", "dropequal", "hashmod", "labelmap", "labeldrop", "labelkeep", "lowercase",
    "uppercase",
]  # fmt: skip

_REFERENCE = re.compile(r"\$(?:\$|(\d+)|([A-Za-z_]\w*)|\{(\w+)\})")


class Relabel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One rule, with the fields and defaults of Prometheus."""

    source_labels: tuple[str, ...] = ()
    separator: str = ";"
    target_label: str = ""
    regex: str = "(.*)"
    modulus: int = 0
    replacement: str = "$1"
    action: Action = "replace"


def check_rule(rule: Relabel) -> str:
    """What is wrong with the rule; empty if nothing is. Raises E0602 for its regular expression."""
    whole_text_pattern(rule.regex)
    writes = rule.action in {"replace", "hashmod", "lowercase", "uppercase", "keepequal", "dropequal"}
    if writes and not rule.target_label:
        return f"action `{rule.action}` needs `target_label`"
    if rule.action == "hashmod" and rule.modulus <= 0:
        return "action `hashmod` needs a `modulus` above 0"
    return ""


def relabelled(labels: dict[str, str], rules: Sequence[Relabel]) -> dict[str, str] | None:
    """The labels after all rules; None if a rule drops them."""
    current = dict(labels)
    for rule in rules:
        changed = _apply(current, rule)
        if changed is None:
            return None
        current = {name: value for name, value in changed.items() if value}
    return current


def _apply(labels: dict[str, str], rule: Relabel) -> dict[str, str] | None:
    source = rule.separator.join(labels.get(name, "") for name in rule.source_labels)
    pattern = whole_text_pattern(rule.regex)
    match rule.action:
        case "keep":
            return labels if pattern.fullmatch(source) else None
        case "drop":
            return None if pattern.fullmatch(source) else labels
        case "keepequal":
            return labels if labels.get(rule.target_label, "") == source else None
        case "dropequal":
            return None if labels.get(rule.target_label, "") == source else labels
        case "replace":
            found = pattern.fullmatch(source)
            if found is None:
                return labels
            name = _expanded(rule.target_label, found)
            return {**labels, name: _expanded(rule.replacement, found)} if name else labels
        case "lowercase":
            return {**labels, rule.target_label: source.lower()}
        case "uppercase":
            return {**labels, rule.target_label: source.upper()}
        case "hashmod":
            digest = hashlib.md5(source.encode(), usedforsecurity=False).digest()
            return {**labels, rule.target_label: str(int.from_bytes(digest[8:], "big") % rule.modulus)}
        case "labelmap":
            mapped = ((pattern.fullmatch(name), value) for name, value in labels.items())
            return {**labels, **{_expanded(rule.replacement, found): value for found, value in mapped if found}}
        case "labeldrop":
            return {name: value for name, value in labels.items() if not pattern.fullmatch(name)}
        case "labelkeep":
            return {name: value for name, value in labels.items() if pattern.fullmatch(name)}


def _expanded(template: str, found: Any) -> str:
    """The template with `$1`, `${1}` and `${name}` filled in from the match; what was not matched is empty."""

    def fill(reference: re.Match[str]) -> str:
        key = next((part for part in reference.groups() if part), None)
        if key is None:
            return "$"
        try:
            return found.group(int(key) if key.isdigit() else key) or ""
        except (IndexError, KeyError):
            return ""

    return _REFERENCE.sub(fill, template)
