"""Which labels does anybody want? What is not wanted need not be extracted or kept."""

from __future__ import annotations

from collections.abc import Iterable

ERROR, ERROR_DETAILS = "__error__", "__error_details__"
EXTRACTED = "_extracted"  # put behind a name that the stream has already


class LabelsRead:
    """The names of labels that a pipeline and its answer look at."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = frozenset({*names, ERROR, ERROR_DETAILS})
        self._known: dict[str, bool] = {}

    def __contains__(self, name: object, /) -> bool:
        return name in self.names

    def may_use(self, name: str) -> bool:
        """Whether a field of this name, or anything below it, may become a label that is wanted."""
        known = self._known.get(name)
        if known is None:
            below = f"{name}_"  # also where the name gets another ending
            known = not name or name in self.names or any(one.startswith(below) for one in self.names)
            if len(self._known) < _KNOWN_MAX:
                self._known[name] = known
        return known


_KNOWN_MAX = 10_000
