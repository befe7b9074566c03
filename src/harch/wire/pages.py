"""How is a list cut into pages, and what heads an item? Some clients read `total`, some `pagination`."""

# harch: pure

from __future__ import annotations

from datetime import datetime
from typing import Generic, TypeVar

from msgspec import Struct

T = TypeVar("T")


class Pagination(Struct, frozen=True, kw_only=True):
    total: int = 0
    page: int = 1
    per_page: int = 0
    total_pages: int = 0
    has_next: bool = False
    has_prev: bool = False


class Page(Struct, Generic[T], frozen=True, kw_only=True):
    """A page of a list; `total` counts all pages."""

    items: list[T]
    total: int = 0
    pagination: Pagination = Pagination()


class Metadata(Struct, frozen=True, kw_only=True):
    id: str
    name: str
    created_at: datetime
    updated_at: datetime | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
