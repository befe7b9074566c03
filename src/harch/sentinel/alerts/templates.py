"""What does a notification say? The texts of receivers, filled in with a whole group of alerts."""

# harch: pure

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import ClassVar

from msgspec import Struct as Record

from harch.sentinel.alerts.alert import Alert
from harch.sentinel.model.labels import Labels
from harch.sentinel.rules.templates import syntax
from harch.sentinel.rules.templates.alert_functions import TEXT_FUNCTIONS
from harch.sentinel.rules.templates.functions import ANY_NUMBER, GO_FUNCTIONS, Function
from harch.sentinel.rules.templates.interpreter import LAZY_FUNCTIONS, run_template
from harch.sentinel.rules.templates.parser import parse_template
from harch.sentinel.rules.templates.values import Items, Map, Struct, as_text, failed
from harch.sentinel.rules.views import rfc3339

DEFINITIONS = """
{{ define "subject" }}[{{ .Status | toUpper }}{{ if eq .Status "firing" }}:{{ .Alerts.Firing | len }}{{ end }}] \
{{ .GroupLabels.SortedPairs.Values | join " " }}\
{{ if gt (len .CommonLabels) (len .GroupLabels) }} \
({{ with .CommonLabels.Remove .GroupLabels.Names }}{{ .Values | join " " }}{{ end }}){{ end }}{{ end }}
{{ define "alerts" }}{{ range . }}
{{ range .Labels.SortedPairs }}  {{ .Name }} = {{ .Value }}
{{ end }}{{ range .Annotations.SortedPairs }}  {{ .Name }}: {{ .Value }}
{{ end }}{{ with .GeneratorURL }}  source: {{ . }}
{{ end }}  details: harch sentinel alerts show {{ .Fingerprint }}
{{ end }}{{ end }}
"""
EMAIL_SUBJECT = '{{ template "subject" . }}'
EMAIL_TEXT = """\
{{ if .Alerts.Firing }}{{ len .Alerts.Firing }} firing
{{ template "alerts" .Alerts.Firing }}{{ end }}{{ if .Alerts.Resolved }}{{ len .Alerts.Resolved }} resolved
{{ template "alerts" .Alerts.Resolved }}{{ end }}
Sent by SENTINEL of HarchOS, {{ .ExternalURL }}
"""
SLACK = {
    "color": '{{ if eq .Status "firing" }}danger{{ else }}good{{ end }}',
    "title": '{{ template "subject" . }}',
    "title_link": "{{ .ExternalURL }}",
    "fallback": '{{ template "subject" . }} | {{ .ExternalURL }}',
    "username": "HarchOS",
    "text": "{{ range .Alerts }}{{ with .Annotations.summary }}{{ . }}\n{{ end }}{{ end }}",
}


class Notice(Record, frozen=True, kw_only=True):
    """What one notification is about. Alerts that are not resolved have no end."""

    receiver: str
    group_key: str
    group_labels: Labels
    alerts: tuple[Alert, ...]
    now_ms: int
    external_url: str = ""
    definitions: str = ""  # templates that texts may use

    @property
    def firing(self) -> list[Alert]:
        return [alert for alert in self.alerts if not alert.is_resolved(self.now_ms)]

    @property
    def resolved(self) -> list[Alert]:
        return [alert for alert in self.alerts if alert.is_resolved(self.now_ms)]

    @property
    def status(self) -> str:
        return "firing" if self.firing else "resolved"

    @property
    def common_labels(self) -> dict[str, str]:
        return _common([dict(alert.labels) for alert in self.alerts])

    @property
    def common_annotations(self) -> dict[str, str]:
        return _common([alert.annotations for alert in self.alerts])


def _common(maps: Sequence[Mapping[str, str]]) -> dict[str, str]:
    if not maps:
        return {}
    return {name: text for name, text in maps[0].items() if all(one.get(name) == text for one in maps[1:])}


def notification_text(text: str, notice: Notice) -> str:
    """Raises E0641 when the text fails."""
    if "{{" not in text:
        return text
    defined = {**_definitions(DEFINITIONS), **_definitions(notice.definitions)}
    return run_template(_parsed(text), _data(notice), functions=_FUNCTIONS, defined=defined)


def check_notification_text(text: str) -> None:
    """Raises E0641."""
    _parsed(text)


@lru_cache(maxsize=512)
def _parsed(text: str) -> syntax.ParsedTemplate:
    return parse_template(text, functions=frozenset((*_FUNCTIONS, *LAZY_FUNCTIONS)))


def _definitions(text: str) -> dict[str, syntax.Block]:
    return _parsed(text).defined


def _data(notice: Notice) -> Struct:
    alerts = [_alert(alert, notice.now_ms) for alert in notice.alerts]
    return Struct(
        "template.Data",
        {
            "Receiver": notice.receiver,
            "Status": notice.status,
            "Alerts": TemplateAlerts(alerts),
            "GroupLabels": KeyValues(dict(notice.group_labels)),
            "CommonLabels": KeyValues(notice.common_labels),
            "CommonAnnotations": KeyValues(notice.common_annotations),
            "ExternalURL": notice.external_url,
            "GroupKey": notice.group_key,
        },
    )


class TemplateAlerts(Items):
    methods: ClassVar[Mapping[str, Callable[..., object]]] = {
        "Firing": lambda alerts: TemplateAlerts(one for one in alerts if one.fields["Status"] == "firing"),
        "Resolved": lambda alerts: TemplateAlerts(one for one in alerts if one.fields["Status"] == "resolved"),
    }


class KeyValues(Map):
    """Labels or annotations."""

    methods: ClassVar[Mapping[str, Callable[..., object]]] = {
        "SortedPairs": lambda strings: TemplatePairs(_pair(name, strings[name]) for name in _in_order(strings)),
        "Names": lambda strings: _in_order(strings),
        "Values": lambda strings: [strings[name] for name in _in_order(strings)],
        "Remove": lambda strings, names: KeyValues({n: text for n, text in strings.items() if n not in names}),
    }


class TemplatePairs(Items):
    methods: ClassVar[Mapping[str, Callable[..., object]]] = {
        "Names": lambda pairs: [pair.fields["Name"] for pair in pairs],
        "Values": lambda pairs: [pair.fields["Value"] for pair in pairs],
    }


def _pair(name: str, value: object) -> Struct:
    return Struct("template.Pair", {"Name": name, "Value": value})


def _in_order(names: Iterable[str]) -> list[str]:
    """The name of the alert first, the others by the alphabet."""
    return sorted(names, key=lambda name: (name != "alertname", name))


def _alert(alert: Alert, now_ms: int) -> Struct:
    status = "resolved" if alert.is_resolved(now_ms) else "firing"
    return Struct(
        "template.Alert",
        {
            "Status": status,
            "Labels": KeyValues(dict(alert.labels)),
            "Annotations": KeyValues(alert.annotations),
            "StartsAt": rfc3339(alert.starts_at_ms),
            "EndsAt": rfc3339(alert.ends_at_ms),
            "GeneratorURL": alert.generator_url,
            "Fingerprint": alert.fingerprint,
        },
    )


def _join(separator: object, strings: object) -> str:
    if not isinstance(strings, list | tuple):
        raise failed("join needs a list of strings")
    return as_text(separator, "join").join(as_text(text, "join") for text in strings)


def _strings(*strings: object) -> list[object]:
    return list(strings)


_FUNCTIONS: Mapping[str, Function] = {
    **GO_FUNCTIONS,
    **TEXT_FUNCTIONS,
    "join": Function.of(_join, 2),
    "trimSpace": Function.of(lambda text: as_text(text, "trimSpace").strip(), 1),
    "stringSlice": Function.of(_strings, 0, ANY_NUMBER),
}
