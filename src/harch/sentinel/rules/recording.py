"""Which samples does a recording rule write? The result under its new name, with the rule's labels."""

from __future__ import annotations

from harch.base.errors import HarchError
from harch.sentinel.model.labels import METRIC_NAME, Labels, labels
from harch.sentinel.rules.definitions import Rule
from harch.sentinel.rules.ports import Sample, Vector


def recorded(rule: Rule, vector: Vector, *, at_ms: int, limit: int) -> list[Sample]:
    """Raises E0642: two results with the same labels, or more than `limit`. Empty labels of the rule remove labels."""
    found: dict[Labels, Sample] = {}
    for metric, value in vector:
        key = labels({**metric, METRIC_NAME: rule.name, **rule.labels})
        if key in found:
            raise HarchError(
                "E0642",
                f"two results of `{rule.name}` have the same labels after the rule's labels were set",
                hint="keep a label in the expression that tells them apart",
            )
        found[key] = Sample(key, at_ms, value)
    if 0 < limit < len(found):
        raise HarchError(
            "E0642",
            f"`{rule.name}` gives {len(found)} series, and its group allows {limit}",
            hint="raise the group's `limit`, or aggregate labels away; nothing was recorded",
        )
    return list(found.values())
