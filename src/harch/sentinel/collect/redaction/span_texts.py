"""Where may a span hold a secret? In every text of it but its ids and its service."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from harch.sentinel.collect.redaction.looking import Hits, Looking
from harch.sentinel.model.spans import Attributes, AttributeValue, Span


def names_and_texts(spans: Sequence[Span]) -> tuple[set[str], set[str]]:
    """Names of all attributes, and every text that may hold a secret, once."""
    names: set[str] = set()
    texts: set[str] = set()
    resources: set[int] = set()  # seen already: many spans share one
    for span in spans:
        texts.add(span.name)
        for name, value in span.attributes:
            names.add(name)
            if value.__class__ is str:
                texts.add(value)
        if span.status_message:
            texts.add(span.status_message)
        for event in span.events:
            texts.add(event.name)
            _note(event.attributes, names, texts)
        for link in span.links:
            _note(link.attributes, names, texts)
        if id(span.resource) not in resources:
            resources.add(id(span.resource))
            _note(span.resource, names, texts)
    return names, texts


def _note(attributes: Attributes, names: set[str], texts: set[str]) -> None:
    for name, value in attributes:
        names.add(name)
        if isinstance(value, str):
            texts.add(value)


def clean_span(span: Span, resource: Attributes, clean: Mapping[str, str], looking: Looking, hits: Hits) -> Span:
    """The span as it may be kept: itself, if it holds nothing that a rule concerns. `resource` is clean already."""
    attributes = clean_attributes(span.attributes, clean, looking, hits)
    events = tuple(
        replace(
            event,
            name=clean.get(event.name, event.name),
            attributes=clean_attributes(event.attributes, clean, looking, hits),
        )
        for event in span.events
    )
    links = tuple(
        replace(link, attributes=clean_attributes(link.attributes, clean, looking, hits)) for link in span.links
    )
    name = clean.get(span.name, span.name)
    message = clean.get(span.status_message, span.status_message)
    if (
        attributes is span.attributes
        and resource is span.resource
        and (name, message, events, links) == (span.name, span.status_message, span.events, span.links)
    ):
        return span
    return replace(
        span,
        name=name,
        status_message=message,
        attributes=attributes,
        resource=resource,
        events=events,
        links=links,
    )


def clean_attributes(attributes: Attributes, clean: Mapping[str, str], looking: Looking, hits: Hits) -> Attributes:
    """The same tuple where nothing changes: resources are shared by many spans."""
    rule_of_name = looking.rule_of_name
    for name, value in attributes:
        if rule_of_name(name) is not None or value in clean:
            break
    else:
        return attributes
    told: list[tuple[str, AttributeValue]] = []
    for name, value in attributes:
        rule = rule_of_name(name)
        if rule is not None:
            hits[rule.name] += 1
            told.append((name, rule.whole()))
        else:
            told.append((name, clean.get(value, value) if isinstance(value, str) else value))
    return tuple(told)
