"""What does an expression give? The four types of PromQL, with the words its messages use."""

from __future__ import annotations

from enum import Enum


class ValueType(Enum):
    SCALAR = "scalar"
    VECTOR = "vector"
    MATRIX = "matrix"
    STRING = "string"

    @property
    def words(self) -> str:
        """The name in messages: what the HTTP API calls a vector is an instant vector to people."""
        return {"vector": "instant vector", "matrix": "range vector"}.get(self.value, self.value)
