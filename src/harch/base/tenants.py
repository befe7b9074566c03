"""Whose is what nobody else asked for? The operator's: work under the first keys, and what HarchOS says of itself."""

from __future__ import annotations

DEFAULT_TENANT = "default"
