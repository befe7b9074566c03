"""What do the labels and annotations of an alert say? `$labels`, `$value` and their friends, filled in."""

# harch: pure

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from msgspec import Struct as Record

from harch.base.errors import HarchError
from harch.sentinel.rules.definitions import Evaluate
from harch.sentinel.rules.templates import syntax
from harch.sentinel.rules.templates.alert_functions import RULE_FUNCTION_NAMES, rule_functions
from harch.sentinel.rules.templates.interpreter import run_template
from harch.sentinel.rules.templates.parser import parse_template
from harch.sentinel.rules.templates.values import Struct

VARIABLES = ("$labels", "$value", "$externalLabels", "$externalURL")


class TemplateContext(Record, frozen=True, kw_only=True):
    """What texts may mention beside the alert itself."""

    evaluate: Evaluate | None = None
    external_labels: dict[str, str] = {}
    external_url: str = ""


@lru_cache(maxsize=2048)  # the same texts are filled in every evaluation
def parsed_text(text: str) -> syntax.ParsedTemplate:
    return parse_template(text, functions=RULE_FUNCTION_NAMES, variables=VARIABLES)


def check_alert_text(text: str) -> None:
    """Raises E0641 for what is wrong before any alert is known."""
    parsed_text(text)


def alert_text(text: str, labels: Mapping[str, str], value: float, *, at_ms: int, world: TemplateContext) -> str:
    """A text that fails becomes its own error message: an alert is worth more than its wording."""
    if "{{" not in text:
        return text
    data = {
        "Labels": dict(labels),
        "ExternalLabels": dict(world.external_labels),
        "ExternalURL": world.external_url,
        "Value": value,
    }
    variables = {
        "$labels": data["Labels"],
        "$externalLabels": data["ExternalLabels"],
        "$externalURL": world.external_url,
        "$value": value,
    }
    functions = rule_functions(world.evaluate, at_ms=at_ms, external_url=world.external_url)
    try:
        struct = Struct("template.AlertData", data)
        return run_template(parsed_text(text), struct, functions=functions, variables=variables)
    except HarchError as error:
        return f"<error expanding template: {error.message}>"
