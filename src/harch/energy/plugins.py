"""Who carries bids to a real market? An adapter by its name among the installed ones, or by its place in a module."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import entry_points

from harch.base.errors import HarchError
from harch.energy.market.adapter import MarketAdapter

GROUP = "harch.energy.markets"


@dataclass(frozen=True, slots=True, kw_only=True)
class MarketContext:
    """What an adapter is made from: whose bids, in which zone and currency, and the options of the energy file."""

    hub: str
    zone: str
    currency: str
    options: Mapping[str, str]


Factory = Callable[[MarketContext], MarketAdapter]


def open_adapter(word: str, context: MarketContext) -> MarketAdapter:
    """`word` is the name of an entry point of the group `harch.energy.markets`, or `module:factory`. Raises E0243."""
    try:
        factory = _factory(word)
        adapter = factory(context)
        name = adapter.name
    except HarchError:
        raise
    except Exception as error:  # code of others: whatever it raises is reported
        raise _refusal(word, f"{type(error).__name__}: {str(error)[:200]}") from error
    if not name or not all(callable(getattr(adapter, call, None)) for call in ("submit", "fills")):
        raise _refusal(word, "it has no `name`, `submit` and `fills`")
    return adapter


def _factory(word: str) -> Factory:
    module, _, path = word.partition(":")
    if path:
        found: object = import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
    else:
        named = entry_points(group=GROUP, name=word)
        if not named:
            known = ", ".join(sorted({"paper", *(point.name for point in entry_points(group=GROUP))}))
            raise _refusal(word, f"no installed package provides it; available: {known}")
        found = next(iter(named)).load()
    if not callable(found):
        raise _refusal(word, "it cannot be called")
    factory: Factory = found
    return factory


def _refusal(word: str, why: str) -> HarchError:
    return HarchError(
        "E0243",
        f"the market adapter `{word[:100]}` cannot be used: {why}",
        hint='use `adapter = "paper"`, or install the adapter; docs/reference/energy.md describes its interface',
        field="market.adapter",
    )
