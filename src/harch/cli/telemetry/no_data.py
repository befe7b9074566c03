"""Why does a query yield nothing? What SENTINEL itself answers about the metrics in it, in one sentence."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import TYPE_CHECKING

from harch.base.errors import HarchError

if TYPE_CHECKING:
    from harch.sdk.sentinel import SentinelClient
    from harch.sentinel.promql.syntax.nodes import MatrixSelector, VectorSelector

QUERY_CHARS_MAX = 120
SIMILAR_MAX = 3
VALUES_MAX = 6
LOOKBACK_S = 300.0  # how far a query looks back for a sample
_OF_A_HUB = re.compile(r"hub (\S+) ((?:refused|withheld)\b.*)", re.DOTALL)
NO_SAMPLES = "SENTINEL has no samples yet; it has just started, or nothing writes to it"


def once_each(sentences: Iterable[str]) -> list[str]:
    """Every sentence once; what several hubs say alike becomes one."""
    hubs: dict[str, list[str]] = {}
    for sentence in dict.fromkeys(sentences):
        found = _OF_A_HUB.fullmatch(sentence)
        hubs.setdefault(found[2] if found else sentence, []).extend([found[1]] if found else [])
    return [f"{_hubs(names)} {rest}" if names else rest for rest, names in hubs.items()]


def _hubs(names: Sequence[str]) -> str:
    *others, last = names
    return f"hubs {', '.join(others)} and {last}" if others else f"hub {last}"


class EmptyAnswers:
    """Of one SENTINEL. Remembers which metrics there are, so that a dashboard asks once."""

    def __init__(self, client: SentinelClient, *, all_hubs: bool = False) -> None:
        self._client = client
        self._all_hubs = all_hubs
        self._names: frozenset[str] | None = None

    def why(self, promql: str, start_s: float, end_s: float, warnings: Sequence[str] = ()) -> str:
        """One reason, never empty. A reason that SENTINEL gave with the answer comes first."""
        if warnings:
            return "; ".join(once_each(warnings))
        short = " ".join(promql.split())
        short = short if len(short) <= QUERY_CHARS_MAX else f"{short[: QUERY_CHARS_MAX - 1]}…"
        if self._all_hubs:
            return f"all hubs answered, and none has samples for `{short}` that it may disclose"
        try:
            return self._local_reason(promql, start_s, end_s) or (
                f"the metrics have samples, but `{short}` yields nothing: no sample satisfies its comparisons and joins"
            )
        except HarchError:
            return f"nothing matches `{short}`"

    def _local_reason(self, promql: str, start_s: float, end_s: float) -> str:
        from harch.sentinel.promql.syntax.nodes import MatrixSelector, VectorSelector, walk
        from harch.sentinel.promql.syntax.parser import parse

        tree = list(walk(parse(promql)))
        selectors = {node.matchers: node for node in tree if isinstance(node, VectorSelector)}
        if not self._stored_names():
            return NO_SAMPLES
        for selector in selectors.values():
            if reason := self._missing(selector):
                return reason
        windows = {node.selector.matchers: node for node in tree if isinstance(node, MatrixSelector)}
        for selector in selectors.values():
            if selector.offset_ms or selector.at_ms is not None or selector.at_edge or selector.offset_expr:
                continue  # it looks at another time than the one that was asked for
            if reason := self._out_of_range(selector, windows.get(selector.matchers), start_s, end_s):
                return reason
        return ""

    def _missing(self, selector: VectorSelector) -> str:
        """The metric, or the series of it, that SENTINEL has never seen."""
        from harch.sentinel.promql.syntax.printer import to_text

        names = self._stored_names()
        if selector.name and selector.name not in names:
            similar = get_close_matches(selector.name, sorted(names), n=SIMILAR_MAX)
            hint = f"; similar: {', '.join(similar)}" if similar else ""
            return f"there is no metric `{selector.name}`{hint}"
        bare = to_text(selector)
        if self._series(bare):
            return ""
        others = [one for one in selector.matchers if one.name != "__name__"]
        if selector.name and len(others) == 1:
            found = self._client.get(f"/api/v1/label/{others[0].name}/values", {"match[]": [selector.name]})["data"]
            if found:
                more = ", …" if len(found) > VALUES_MAX else ""
                return f"no series matches `{bare}`; `{others[0].name}` is {', '.join(found[:VALUES_MAX])}{more}"
        return f"no series matches `{bare}`"

    def _out_of_range(
        self, selector: VectorSelector, window: MatrixSelector | None, start_s: float, end_s: float
    ) -> str:
        """Series exist, but not at the times that were asked for."""
        from harch.sentinel.promql.syntax.printer import to_text

        bare = to_text(selector)
        if window is None:
            if self._counted(f"count({bare})", start_s, end_s):
                return ""
        else:
            samples = f"count_over_time({to_text(window)})"
            if self._counted(f"count({samples} > 1)", start_s, end_s):
                return ""
            if self._counted(f"count({samples})", start_s, end_s):
                return f"`{to_text(window)}` holds one sample so far; rates need two"
            start_s -= window.range_ms / 1000
        when = f"at {_time(end_s)} UTC" if start_s == end_s else f"between {_time(start_s)} and {_time(end_s)} UTC"
        earlier = self._series(bare, end=start_s - LOOKBACK_S)
        side = "older ones" if earlier else "newer ones"
        return f"`{bare}` has no samples {when}; there are {side}"

    def _stored_names(self) -> frozenset[str]:
        if self._names is None:
            self._names = frozenset(self._client.get("/api/v1/label/__name__/values")["data"])
        return self._names

    def _series(self, selector: str, **times: float) -> bool:
        wanted = {name: str(value) for name, value in times.items()}
        return bool(self._client.get("/api/v1/series", {"match[]": [selector], "limit": "1", **wanted})["data"])

    def _counted(self, promql: str, start_s: float, end_s: float) -> bool:
        if start_s == end_s:
            return bool(self._client.query(promql, end_s).vector)
        step_s = max(1.0, (end_s - start_s) / 240)
        return bool(self._client.query_range(promql, start_s, end_s, step_s).matrix)


def _time(at_s: float) -> str:
    return f"{datetime.fromtimestamp(at_s, UTC):%Y-%m-%d %H:%M:%S}"
