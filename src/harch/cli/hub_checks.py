"""Do the hubs answer, do they know us, and do their clocks agree with ours?"""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import datetime

import httpx

from harch.base.clock import Clock
from harch.base.config import Home
from harch.base.errors import HarchError
from harch.cli.findings import Finding, Mark
from harch.cli.output import age_text
from harch.sdk import Client, Hub
from harch.sdk.exchange import RetryPolicy

CLOCK_SKEW_S_MAX = 5.0
PEER_AGE_S_MAX = 30.0
_TIMEOUT_S = 3.0


def hub_findings(home: Home, clock: Clock, transport: httpx.BaseTransport | None = None) -> Iterator[Finding]:
    with _client(None, transport) as client:
        try:
            health = client.health()
        except HarchError as error:
            yield _no_answer(error, home)
            return
        yield Finding(
            "hub", Mark.OK, f"{client.settings.url} answers: {health.status}, version {health.version or '?'}"
        )
        yield check_clock(client.settings.url, health.timestamp, clock.now())
        try:
            who = client.me()
            hubs = client.hubs.list()
        except HarchError as error:
            fix = error.hint or "set HARCH_API_KEY to a key of this hub"
            yield Finding("key", Mark.BROKEN, f"from {client.settings.key_source}: {error.message}", fix)
            return
        role = f", role {who.role}" if who.role else ""
        yield Finding("key", Mark.OK, f"from {client.settings.key_source}: tenant {who.tenant or who.name}{role}")
    for hub in hubs:
        if not hub.own:
            yield check_peer(hub)
            yield from _peer_clock(hub, clock, transport)


def check_clock(url: str, theirs: datetime | None, ours: datetime) -> Finding:
    """Leases and residency records carry times: hubs that disagree by seconds look dead or early to each other."""
    if theirs is None:
        return Finding("clock", Mark.WARNING, f"{url} does not tell its time", "upgrade that hub")
    skew_s = (theirs - ours).total_seconds()
    if abs(skew_s) > CLOCK_SKEW_S_MAX:
        detail = f"{url} is {age_text(abs(skew_s))} {'ahead' if skew_s > 0 else 'behind'}"
        return Finding("clock", Mark.BROKEN, detail, "on both machines: timedatectl set-ntp true")
    return Finding("clock", Mark.OK, f"{url} agrees within {abs(skew_s):.1f} s")


def check_peer(hub: Hub) -> Finding:
    name = f"hub {hub.id}"
    if not hub.reachable:
        detail = f"does not answer at {hub.endpoint or 'an unknown address'}; last heard: {age_text(hub.age_s)}"
        return Finding(name, Mark.BROKEN, detail, f"start it again (`harch up`, or `harch hub serve {hub.id}`)")
    if hub.status not in ("ready", ""):
        detail = hub.summary.status_detail if hub.summary else ""
        return Finding(name, Mark.WARNING, f"{hub.status}: {detail}".rstrip(": "), f"harch events --hub {hub.id}")
    if hub.age_s is not None and hub.age_s > PEER_AGE_S_MAX:
        return Finding(name, Mark.WARNING, f"its figures are {age_text(hub.age_s)} old", "check the link to it")
    return Finding(name, Mark.OK, f"{hub.status or 'ready'}, {age_text(hub.age_s)} ago, at {hub.endpoint}")


def _peer_clock(hub: Hub, clock: Clock, transport: httpx.BaseTransport | None) -> Iterator[Finding]:
    if not hub.reachable or not hub.endpoint:
        return
    with _client(hub.endpoint, transport) as client:
        try:
            yield check_clock(client.settings.url, client.health().timestamp, clock.now())
        except HarchError as error:
            # Its peers reach it and we do not: a matter of this machine's network, not of the hub.
            yield Finding(f"hub {hub.id}", Mark.WARNING, f"not reachable from here: {error.message}", "check the route")


def _client(url: str | None, transport: httpx.BaseTransport | None) -> Client:
    return Client(url, timeout_s=_TIMEOUT_S, retry=RetryPolicy(retries_max=1), transport=transport)


def _no_answer(error: HarchError, home: Home) -> Finding:
    """Nothing was ever started here: then there is nothing broken, only something to do."""
    never_started = not home.root.exists() and "HARCH_URL" not in os.environ
    return Finding("hub", Mark.WARNING if never_started else Mark.BROKEN, error.message, "harch up")
