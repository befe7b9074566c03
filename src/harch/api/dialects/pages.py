"""How is a list cut into pages? `items`, `total` and `pagination`: some clients read one of them, some the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from harch.wire.pages import Page, Pagination

T = TypeVar("T")


def page_of(items: list[T], *, total: int, page: int, per_page: int) -> Page[T]:
    """A page that somebody else has cut already."""
    pages = -(-total // per_page)
    return Page(
        items=items,
        total=total,
        pagination=Pagination(
            total=total, page=page, per_page=per_page, total_pages=pages, has_next=page < pages, has_prev=page > 1
        ),
    )


def cut(items: Sequence[T], *, page: int, per_page: int) -> Page[T]:
    first = (page - 1) * per_page
    return page_of(list(items[first : first + per_page]), total=len(items), page=page, per_page=per_page)
