"""What may a query use, and how large may it be?"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

QUERY_BYTES_MAX = 128 * 1024
NODES_MAX = 10_000
REPETITIONS_MAX = 10_000  # the sum of n in all `x{n}` of matchers: each is compiled n times, milliseconds a thousand
# Parser, checks, printer and evaluator recurse over the tree; none may come near Python's limit of 1,000 frames.
DEPTH_MAX = 100
DURATION_PARTS_MAX = 32  # operands of one computed duration


class Feature(Enum):
    """What Prometheus calls experimental; the value is the name of its feature flag."""

    EXPERIMENTAL_FUNCTIONS = "promql-experimental-functions"
    DURATION_EXPRESSIONS = "promql-duration-expr"
    EXTENDED_RANGE_SELECTORS = "promql-extended-range-selectors"
    BINARY_FILL_MODIFIERS = "promql-binop-fill-modifiers"


ALL_FEATURES = frozenset(Feature)


@dataclass(frozen=True, slots=True)
class ParserOptions:
    """Everything is on unless it is switched off: experimental parts may change when Prometheus changes them."""

    features: frozenset[Feature] = field(default=ALL_FEATURES)
    query_bytes_max: int = QUERY_BYTES_MAX
    nodes_max: int = NODES_MAX
    depth_max: int = DEPTH_MAX
    duration_parts_max: int = DURATION_PARTS_MAX
    repetitions_max: int = REPETITIONS_MAX


DEFAULT_OPTIONS = ParserOptions()
