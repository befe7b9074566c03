"""What binds data, as formulas: its tag, known or not, narrowed by every policy that applies to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harch.sovereignty.proof.model import Dataset, Kind, Policy
from harch.sovereignty.tags import Classification, Tag

if TYPE_CHECKING:
    from harch.sovereignty.proof.formulas import Formulas

Formula = Any  # z3's types are not known without the package
Rule = dict[str, Any]  # a formula per word, and per country or framework


def read_rule(f: Formulas, data: str) -> Rule:
    """What gates read of the data now."""
    z3 = f.z3
    datasets = [(when, one) for when, one in f.variants(Kind.DATASET, data) if isinstance(one, Dataset)]
    rules = [
        (when, _unknown_tag(f, data) if "tag" in one.unknown else rule_of_tag(f, one.tag)) for when, one in datasets
    ]
    rule: Rule = {
        name: z3.Or([z3.And(when, one[name]) for when, one in rules])
        for name in ("tagged", "cross", "restricted", "lock", "wire")
    }
    for name in ("process", "rest", "transit", "keys"):
        rule[name] = {c: z3.Or([z3.And(when, one[name][c]) for when, one in rules]) for c in f.countries}
    rule["laws"] = {w: z3.Or([z3.And(when, one["laws"][w]) for when, one in rules]) for w in f.laws}
    for number, (there, policy) in enumerate(f.all(Kind.POLICY)):
        if isinstance(policy, Policy):
            active = z3.And(there, _applies(f, policy, number, data, datasets))
            _narrow(f, rule, policy, number, active)
    return rule


def _applies(f: Formulas, policy: Policy, number: int, data: str, datasets: list[tuple[Formula, Dataset]]) -> Formula:
    z3 = f.z3
    is_on = (
        f.value(f"enforced of {policy.id}:{number}", "true")
        if "enforced" in policy.unknown
        else z3.BoolVal(policy.enforced)
    )
    if "selector" in policy.unknown:
        return z3.And(is_on, f.value(f"selector of {policy.id}:{number}", data))
    wanted = policy.selector.items()
    return z3.And(is_on, f.any((when, wanted <= one.labels.items()) for when, one in datasets))


def _narrow(f: Formulas, rule: Rule, policy: Policy, number: int, active: Formula) -> None:
    z3 = f.z3
    crosses = (
        f.value(f"may_cross_borders of {policy.id}:{number}", "true")
        if "may_cross_borders" in policy.unknown
        else z3.BoolVal(policy.may_cross_borders)
    )
    for code in f.countries:
        if "countries" in policy.unknown:
            allowed = f.value(f"countries of {policy.id}:{number}", code)
        else:
            allowed = z3.BoolVal(policy.countries is None or code in policy.countries)
        for name in ("process", "rest"):
            rule[name][code] = z3.And(rule[name][code], z3.Implies(active, allowed))
        rule["transit"][code] = z3.And(rule["transit"][code], z3.Implies(z3.And(active, z3.Not(crosses)), allowed))
    rule["cross"] = z3.And(rule["cross"], z3.Implies(active, crosses))
    for law in f.laws:
        rule["laws"][law] = z3.Or(rule["laws"][law], z3.And(active, z3.BoolVal(law in policy.frameworks)))


def rule_of_tag(f: Formulas, tag: Tag | None) -> Rule:
    value = f.z3.BoolVal
    lists = {
        "process": tag.process_in if tag else (),
        "rest": tag.rest_in if tag else (),
        "transit": tag.transit_in if tag else (),
        "keys": tag.key_in if tag else (),
    }
    rule: Rule = {name: {code: value(code in codes) for code in f.countries} for name, codes in lists.items()}
    return rule | {
        "tagged": value(tag is not None),
        "cross": value(tag is not None and tag.may_cross_borders),
        "restricted": value(tag is None or tag.classification is Classification.RESTRICTED),
        "lock": value(tag is None or tag.encrypt_at_rest),
        "wire": value(tag is None or tag.encrypt_in_transit),
        "laws": {law: value(tag is not None and law in tag.frameworks) for law in f.laws},
    }


def _unknown_tag(f: Formulas, data: str) -> Rule:
    rule: Rule = {
        name: {code: f.value(f"{name} of {data}", code) for code in f.countries}
        for name in ("process", "rest", "transit", "keys")
    }
    for code in f.countries:
        inside = f.z3.Or(rule["process"][code], rule["rest"][code])
        f.constraints.append(f.z3.Implies(inside, rule["transit"][code]))
    for name in ("tagged", "cross", "restricted", "lock", "wire"):
        rule[name] = f.value(f"{name} of {data}", "true")
    rule["laws"] = {law: f.value(f"frameworks of {data}", law) for law in f.laws}
    return rule
