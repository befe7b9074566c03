"""Whose trouble is it? The labels that name a hub, node, workload or pipeline, under the names that metrics, logs and
spans have for them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from harch.sentinel.model.labels import Labels
from harch.sentinel.model.matchers import Matcher, MatchKind
from harch.sentinel.model.spans import Comparison, Field, SpanCondition

# What each is called. The first name is ours; the others are those of Prometheus, Loki and OpenTelemetry.
NAMES: Mapping[str, Sequence[str]] = {
    "hub": ("hub", "hub_name", "hub_id", "hub.id"),
    "agent": ("agent", "agent_id"),
    "node": ("node", "node_name", "node_id", "host", "hostname", "host_name", "host.name"),
    "workload": ("workload", "workload_name"),
    "workload_id": ("workload_id", "workload.id"),
    "pipeline": ("pipeline", "pipeline_name"),
    "stage": ("stage",),
    "service": ("service", "service_name", "service.name"),
    "job": ("job",),
    "instance": ("instance",),
}
# The same name may mean something else in logs: if these differ, nothing is wrong.
WEAK = frozenset({"job", "instance"})
WIDE = frozenset({"hub", "pipeline", "service"})

Identity = Mapping[str, Collection[str]]  # what -> its values, folded; a hub may have an id and a name


@dataclass(frozen=True, slots=True)
class Shared:
    """The labels that a stream has in common with an alert."""

    labels: Labels
    strong: int  # how many of them say for sure that they belong together


def identity_of(labels: Mapping[str, str]) -> Identity:
    found: dict[str, set[str]] = {}
    for what, names in NAMES.items():
        values = {labels[name].casefold() for name in names if labels.get(name)}
        if values:
            found[what] = values
    return found


def shared_labels(identity: Identity, stream: Labels) -> Shared | None:
    """What the stream shares; None if it is about something else, or about nothing that the alert names."""
    own = dict(stream)
    found: list[tuple[str, str]] = []
    strong = 0
    for what, names in NAMES.items():
        name = next((name for name in names if own.get(name)), None)
        if name is None or what not in identity:
            continue
        if own[name].casefold() in identity[what]:
            found.append((name, own[name]))
            strong += what not in WEAK
        elif what not in WEAK:
            return None
    return Shared(tuple(sorted(found)), strong) if found else None


def log_selectors(identity: Identity, streams: Sequence[Labels], limit: int) -> list[tuple[Matcher, ...]]:
    """Selectors of the streams that share most with the alert."""
    found = [shared for stream in streams if (shared := shared_labels(identity, stream)) is not None]
    best = max((shared.strong for shared in found), default=0)
    chosen = sorted({shared.labels for shared in found if shared.strong == best})
    return [tuple(Matcher(MatchKind.EQUAL, name, value) for name, value in labels) for labels in chosen[:limit]]


def surroundings(identity: Identity) -> Identity:
    """The same place from farther off: a failure may be told by another node or stage than the one that suffers."""
    return {what: values for what, values in identity.items() if what in WIDE}


def span_conditions(identity: Identity, tags: Collection[str]) -> tuple[SpanCondition, ...]:
    """Conditions on the attributes that spans have for it. A folded value is compared without regard to case."""
    found: list[SpanCondition] = []
    for what, names in NAMES.items():
        if what in WEAK or what not in identity:
            continue
        if what == "service":
            found.append(_condition(Field.SERVICE, "", identity[what]))
            continue
        name = next((name for name in names if name in tags), None)
        if name is not None:
            found.append(_condition(Field.ATTRIBUTE, name, identity[what]))
    return tuple(found)


def _condition(field: Field, attribute: str, values: Collection[str]) -> SpanCondition:
    pattern = "(?i)" + "|".join(_escaped(value) for value in sorted(values))
    return SpanCondition(field, Comparison.REGEX, pattern, attribute)


def _escaped(text: str) -> str:
    return "".join(c if c.isalnum() or c in "_ " else f"\\x{{{ord(c):x}}}" for c in text)
