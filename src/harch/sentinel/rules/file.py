"""Which rules does a file hold? Prometheus rule files, with every mistake and its place."""

# harch: pure

from __future__ import annotations

from collections.abc import Callable

from harch.base.errors import HarchError, Problems
from harch.sentinel.model.labels import METRIC_NAME, is_plain_label_name, is_plain_metric_name
from harch.sentinel.rules.definitions import CheckExpression, Rule, RuleFile, RuleGroup, RuleKind
from harch.sentinel.rules.templates.expansion import check_alert_text
from harch.sentinel.rules.yaml_positions import YamlValue, read_yaml

GROUPS_MAX = 2_000
RULES_PER_GROUP_MAX = 1_000
INTERVAL_MS_DEFAULT = 60_000
NAME_CHARS_MAX = 1_024

_GROUP_FIELDS = ("name", "interval", "limit", "query_offset", "labels", "rules")
_RULE_FIELDS = ("record", "alert", "expr", "for", "keep_firing_for", "labels", "annotations")
_ALERT_ONLY = ("for", "keep_firing_for", "annotations")


def parse_rules(
    text: str,
    *,
    name: str,
    check_expression: CheckExpression | None = None,
    interval_ms_default: int = INTERVAL_MS_DEFAULT,
) -> RuleFile:
    """Raises E0640 with all mistakes. Without `check_expression` expressions are not looked into."""
    try:
        root = read_yaml(text)
    except HarchError as error:
        raise HarchError("E0640", f"{name}: {error.message}", hint=error.hint) from error
    if root is None:
        return RuleFile(name=name, groups=())
    reader = _Reader(name, check_expression, interval_ms_default, root.reading.problems)
    groups = reader.groups(root)
    if reader.problems:
        raise HarchError("E0640", f"{name}: {reader.problems}", hint="fix these places; nothing of the file was loaded")
    return RuleFile(name=name, groups=groups, remarks=tuple(reader.remarks))


class _Reader:
    def __init__(self, name: str, check: CheckExpression | None, interval_ms: int, problems: Problems) -> None:
        self.name, self.check, self.interval_ms, self.problems = name, check, interval_ms, problems
        self.remarks: list[str] = []

    def groups(self, root: YamlValue) -> tuple[RuleGroup, ...]:
        fields = root.mapping(("groups",))
        found: dict[str, RuleGroup] = {}
        for value in fields["groups"].sequence() if "groups" in fields else ():
            group = self.group(value)
            if group.name in found:
                value.wrong(f"group `{group.name}` occurs twice")
            if len(found) >= GROUPS_MAX:
                value.wrong(f"more than {GROUPS_MAX} groups")
                break
            found[group.name] = group
        return tuple(found.values())

    def group(self, value: YamlValue) -> RuleGroup:
        fields = value.mapping(_GROUP_FIELDS)
        name = _text(fields, "name")
        if not name:
            value.wrong("the group has no name")
        interval_ms = fields["interval"].duration_ms() if "interval" in fields else 0
        shared = self.labels(fields, is_template=False)
        rules: list[Rule] = []
        for rule_value in fields["rules"].sequence() if "rules" in fields else ():
            if len(rules) >= RULES_PER_GROUP_MAX:
                rule_value.wrong(f"more than {RULES_PER_GROUP_MAX} rules in one group")
                break
            rules.append(self.rule(rule_value, shared))
        self.remark_repeats(rules)
        return RuleGroup(
            file=self.name,
            name=name,
            interval_ms=interval_ms or self.interval_ms,
            rules=tuple(rules),
            limit=fields["limit"].whole_number() if "limit" in fields else 0,
            query_offset_ms=fields["query_offset"].duration_ms() if "query_offset" in fields else 0,
        )

    def rule(self, value: YamlValue, shared: dict[str, str]) -> Rule:
        fields = value.mapping(_RULE_FIELDS)
        record, alert, expression = _text(fields, "record"), _text(fields, "alert"), _text(fields, "expr")
        if record and alert:
            value.wrong("only one of `record` and `alert` may be set")
        if not record and not alert:
            value.wrong("one of `record` and `alert` must be set")
        self.expression(value, fields, expression)
        if record:
            for alert_field in _ALERT_ONLY:
                if alert_field in fields and _is_set(fields[alert_field]):
                    fields[alert_field].wrong(f"`{alert_field}` belongs to alerts, but `{record}` is a recording rule")
            if not is_plain_metric_name(record):
                fields["record"].wrong(f"`{record}` is not the name of a metric")
        if len(record or alert) > NAME_CHARS_MAX:
            value.wrong(f"the name is longer than {NAME_CHARS_MAX} characters")
        labels = self.labels(fields, is_template=bool(alert))
        return Rule(
            kind=RuleKind.RECORDING if record else RuleKind.ALERTING,
            name=record or alert,
            expression=expression,
            labels={**shared, **labels},
            annotations=self.annotations(fields) if alert else {},
            for_ms=fields["for"].duration_ms() if alert and "for" in fields else 0,
            keep_firing_for_ms=fields["keep_firing_for"].duration_ms() if alert and "keep_firing_for" in fields else 0,
            line=value.line,
        )

    def expression(self, rule: YamlValue, fields: dict[str, YamlValue], expression: str) -> None:
        if not expression.strip():
            rule.wrong("`expr` must be set")
        elif self.check is not None:
            check = self.check
            fields["expr"].parsed(check, None)

    def labels(self, fields: dict[str, YamlValue], *, is_template: bool) -> dict[str, str]:
        found: dict[str, str] = {}
        for name, value in fields["labels"].text_map().items() if "labels" in fields else ():
            if not is_plain_label_name(name) or name == METRIC_NAME:
                value.wrong(f"`{name}` is not the name of a label")
            if is_template:
                _check(value, check_alert_text)
            found[name] = value.text()
        return found

    def annotations(self, fields: dict[str, YamlValue]) -> dict[str, str]:
        found: dict[str, str] = {}
        for name, value in fields["annotations"].text_map().items() if "annotations" in fields else ():
            if not is_plain_label_name(name):
                value.wrong(f"`{name}` is not the name of an annotation")
            _check(value, check_alert_text)
            found[name] = value.text()
        return found

    def remark_repeats(self, rules: list[Rule]) -> None:
        """Prometheus allows them: results may differ. Mostly it is a copy that somebody forgot to change."""
        seen: dict[tuple[object, ...], int] = {}
        for rule in rules:
            key = (rule.kind, rule.name, tuple(sorted(rule.labels.items())))
            if key in seen:
                self.remarks.append(
                    f"line {rule.line}: `{rule.name}` has the name and labels of the rule at line {seen[key]}"
                )
            seen.setdefault(key, rule.line)


def _text(fields: dict[str, YamlValue], name: str) -> str:
    return fields[name].text() if name in fields else ""


def _is_set(value: YamlValue) -> bool:
    return not value.is_null and getattr(value.node, "value", None) not in ("", "0", "0s", [])


def _check(value: YamlValue, check: Callable[[str], object]) -> None:
    value.parsed(check, None)
