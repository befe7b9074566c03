"""What does a notification say? The texts of receivers, filled in with a whole group of alerts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import ClassVar

from msgspec import Struct as Record

from harch.sentinel.alerts.alert import Alert
from harch.sentinel.alerts.default_texts import DEFINITIONS
from harch.sentinel.model.labels import Labels
from harch.sentinel.rules.templates import nodes
from harch.sentinel.rules.templates.alert_functions import TEXT_FUNCTIONS
from harch.sentinel.rules.templates.functions import ANY_NUMBER, GO_FUNCTIONS, Function
from harch.sentinel.rules.templates.parser import parse_template
from harch.sentinel.rules.templates.running import LAZY_FUNCTIONS, run_template
from harch.sentinel.rules.templates.values import Items, Map, Struct, as_text, failed
from harch.sentinel.rules.views import rfc3339


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
def _parsed(text: str) -> nodes.Template:
    return parse_template(text, functions=frozenset((*_FUNCTIONS, *LAZY_FUNCTIONS)))


def _definitions(text: str) -> dict[str, nodes.Block]:
    return _parsed(text).defined


def _data(notice: Notice) -> Struct:
    alerts = [_alert(alert, notice.now_ms) for alert in notice.alerts]
    return Struct(
        "template.Data",
        {
            "Receiver": notice.receiver,
            "Status": notice.status,
            "Alerts": Alerts(alerts),
            "GroupLabels": NamedTexts(dict(notice.group_labels)),
            "CommonLabels": NamedTexts(notice.common_labels),
            "CommonAnnotations": NamedTexts(notice.common_annotations),
            "ExternalURL": notice.external_url,
            "GroupKey": notice.group_key,
        },
    )


class Alerts(Items):
    methods: ClassVar[Mapping[str, Callable[..., object]]] = {
        "Firing": lambda alerts: Alerts(one for one in alerts if one.fields["Status"] == "firing"),
        "Resolved": lambda alerts: Alerts(one for one in alerts if one.fields["Status"] == "resolved"),
    }


class NamedTexts(Map):
    """Labels or annotations."""

    methods: ClassVar[Mapping[str, Callable[..., object]]] = {
        "SortedPairs": lambda texts: Pairs(_pair(name, texts[name]) for name in _in_order(texts)),
        "Names": lambda texts: _in_order(texts),
        "Values": lambda texts: [texts[name] for name in _in_order(texts)],
        "Remove": lambda texts, names: NamedTexts({n: text for n, text in texts.items() if n not in names}),
    }


class Pairs(Items):
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
            "Labels": NamedTexts(dict(alert.labels)),
            "Annotations": NamedTexts(alert.annotations),
            "StartsAt": rfc3339(alert.starts_at_ms),
            "EndsAt": rfc3339(alert.ends_at_ms),
            "GeneratorURL": alert.generator_url,
            "Fingerprint": alert.fingerprint,
        },
    )


def _join(separator: object, texts: object) -> str:
    if not isinstance(texts, list | tuple):
        raise failed("join needs a list of texts")
    return as_text(separator, "join").join(as_text(text, "join") for text in texts)


def _strings(*texts: object) -> list[object]:
    return list(texts)


_FUNCTIONS: Mapping[str, Function] = {
    **GO_FUNCTIONS,
    **TEXT_FUNCTIONS,
    "join": Function.of(_join, 2),
    "trimSpace": Function.of(lambda text: as_text(text, "trimSpace").strip(), 1),
    "stringSlice": Function.of(_strings, 0, ANY_NUMBER),
}
