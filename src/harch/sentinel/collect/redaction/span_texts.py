"""Where may a span hold a secret? In every text of it but its ids and its service."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from harch.sentinel.collect.redaction.looking import Hits, Looking
from harch.sentinel.model.spans import Attributes, AttributeValue, Span


def texts_of(span: Span) -> Iterator[str]:
    """All but those of its resource, which it shares with others."""
    yield span.name
    if span.status_message:
        yield span.status_message
    for _, value in span.attributes:
        if isinstance(value, str):
            yield value
    for event in span.events:
        yield event.name
        for _, value in event.attributes:
            if isinstance(value, str):
                yield value
    for link in span.links:
        for _, value in link.attributes:
            if isinstance(value, str):
                yield value


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
