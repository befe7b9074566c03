"""What does the person at `harch top` want to see? Order, filter, sections and pace, changed by single keys."""

from __future__ import annotations

from dataclasses import dataclass, replace

from harch.cli.live_screen.snapshot import FederationSnapshot, HubLine

SECTIONS = ("hubs", "workloads", "pipelines", "alerts", "events")
HUB_ORDERS = ("name", "used", "free", "waiting", "power", "carbon")
INTERVAL_S_MIN, INTERVAL_S_MAX = 0.5, 60.0
FILTER_MAX = 40
ENTER, ESCAPE, BACKSPACE = ("\r", "\n"), "\x1b", ("\x7f", "\b")


@dataclass(frozen=True, slots=True)
class ViewOptions:
    """How the screen is looked at. While `typing` is not None, keys go into the filter."""

    order: str = "name"
    reverse: bool = False
    needle: str = ""
    typing: str | None = None
    hidden: frozenset[str] = frozenset()
    paused: bool = False
    interval_s: float = 2.0
    leaving: bool = False


def pressed(view: ViewOptions, key: str) -> ViewOptions:
    """The view after a key. Keys without a meaning change nothing."""
    if view.typing is not None:
        return _typed(view, view.typing, key)
    match key:
        case "q" | "Q" | "\x03":
            return replace(view, leaving=True)
        case "s":
            following = HUB_ORDERS[(HUB_ORDERS.index(view.order) + 1) % len(HUB_ORDERS)]
            return replace(view, order=following)
        case "r":
            return replace(view, reverse=not view.reverse)
        case "/":
            return replace(view, typing="")
        case "p" | " ":
            return replace(view, paused=not view.paused)
        case "+":
            return replace(view, interval_s=max(INTERVAL_S_MIN, view.interval_s / 2))
        case "-":
            return replace(view, interval_s=min(INTERVAL_S_MAX, view.interval_s * 2))
        case "1" | "2" | "3" | "4" | "5":
            return replace(view, hidden=view.hidden ^ {SECTIONS[int(key) - 1]})
        case _:
            return replace(view, needle="") if key == ESCAPE else view


def _typed(view: ViewOptions, text: str, key: str) -> ViewOptions:
    if key in ENTER:
        return replace(view, typing=None, needle=text)
    if key == ESCAPE:
        return replace(view, typing=None)
    if key in BACKSPACE:
        return replace(view, typing=text[:-1])
    return replace(view, typing=(text + key)[:FILTER_MAX]) if key.isprintable() else view


def filtered(look: FederationSnapshot, view: ViewOptions) -> FederationSnapshot:
    """Only what contains the needle in a name, hub, tenant, country or state; the hubs in the wanted order."""
    from msgspec.structs import replace as changed

    needle = view.needle.casefold()

    def has(*words: str) -> bool:
        return not needle or any(needle in word.casefold() for word in words)

    hubs = [hub for hub in look.hubs if has(hub.id, hub.name, hub.country, hub.state)]
    hubs.sort(key=lambda hub: _rank(hub, view.order), reverse=view.reverse)
    workloads = [one for one in look.workloads if has(one.name, one.id, one.tenant, one.owner, one.runner, one.status)]
    workloads.sort(key=lambda one: (one.status != "running", -one.gpus, one.name))
    return changed(
        look,
        hubs=tuple(hubs),
        workloads=tuple(workloads),
        pipelines=tuple(one for one in look.pipelines if has(one.name, one.hub, one.state)),
        alerts=tuple(one for one in look.alerts if has(one.name, one.hub, one.severity, one.summary)),
        events=tuple(one for one in look.events if has(one.hub, one.kind, one.subject, one.message)),
    )


def _rank(hub: HubLine, order: str) -> tuple[float, str]:
    """Large figures first, except for carbon; what is not known comes last."""
    unknown = float("inf")
    figure = {
        "name": 0.0,
        "used": -float(hub.gpus_used),
        "free": -float(hub.gpus_free),
        "waiting": -float(hub.waiting),
        "power": unknown if hub.power_kw is None else -hub.power_kw,
        "carbon": unknown if hub.g_per_kwh is None else hub.g_per_kwh,
    }[order]
    return figure, hub.name
