"""Is every stream where it may be, and only there? What JetStream tells of its streams against policy. No I/O.

Permissions keep strangers away from streams; this looks for what they, a mistake or a fault let through. Whatever is
not wanted is a violation: unknown means no. Each has its actions (`pause`: deliver nothing more; `alert`: tell people).
"""

# harch: pure

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct

from harch.base.rejection import Rejection
from harch.pipelines.engine.layout import INBOX_ROOT, juris_root
from harch.pipelines.engine.streams import ConsumerSpec, DesiredStreams, StreamSpec, allowed_subject
from harch.sovereignty.gates import GateAction, Violation

_MUST_NOT_BE = {
    "mirror": "is a copy of another stream",
    "sources": "is fed by other streams",
    "republish": "republishes its messages elsewhere",
    "subject_transform": "renames its subjects",
    "placement": "requests placement by tag or cluster, and tags can change",
}
COPIES = "copies"  # fewer of them than wanted; may be so for a moment
UNANSWERED = "unanswered"  # marks a stream that is known by name only
_MUST_HOLD = ("storage", "num_replicas", "deny_delete", "retention", "max_bytes", "discard")
_PAUSE, _ALERT = (GateAction.PAUSE, GateAction.ALERT), (GateAction.ALERT,)


class DomainPolicy(Struct, frozen=True, kw_only=True):
    """What may be in a domain: its servers, all in one country, and its streams and consumers."""

    country: str
    domain: str
    account: str
    servers: frozenset[str]
    wanted: DesiredStreams


class ObservedConsumer(Struct, frozen=True, kw_only=True):
    name: str
    durable: bool
    deliver_subject: str = ""


class ObservedStream(Struct, frozen=True, kw_only=True):
    """A stream as the engine describes it. Without a cluster there is no leader to name: the one server has it."""

    name: str
    config: Mapping[str, Any]
    answered: bool = True
    leader: str = ""
    replicas: tuple[str, ...] = ()
    behind: tuple[str, ...] = ()  # those of them that do not have everything: on their way, or their server is away
    consumers: tuple[ObservedConsumer, ...] = ()


def observe(info: Mapping[str, Any], consumers: Iterable[Mapping[str, Any]] = ()) -> ObservedStream:
    """From the answers of JetStream's API. What has an odd form is kept odd, and then found."""
    config = info.get("config") or {}
    cluster = info.get("cluster") or {}
    return ObservedStream(
        name=str(config.get("name", "")),
        config=config,
        answered=UNANSWERED not in info,
        leader=str(cluster.get("leader") or ""),
        replicas=tuple(str(peer.get("name", "")) for peer in cluster.get("replicas") or ()),
        behind=tuple(str(peer.get("name", "")) for peer in cluster.get("replicas") or () if not peer.get("current")),
        consumers=tuple(
            ObservedConsumer(
                name=str(entry.get("name", "")),
                durable=bool((entry.get("config") or {}).get("durable_name")),
                deliver_subject=str((entry.get("config") or {}).get("deliver_subject") or ""),
            )
            for entry in consumers
        ),
    )


def audit_streams(policy: DomainPolicy, observed: Iterable[ObservedStream]) -> tuple[Violation, ...]:
    """Every stream with something that must not be, and every wanted one that is not there."""
    specs = {spec.name: spec for spec in policy.wanted.streams}
    violations = []
    seen = set()
    for stream in observed:
        seen.add(stream.name)
        if not stream.answered:
            silent = Rejection(stream.name, UNANSWERED, "does not report its location", "check its servers")
            violations.append(_violation(policy, stream.name, _ALERT, [silent]))
            continue
        reasons = [
            *_location(policy, stream),
            *_flows(policy, stream, specs.get(stream.name)),
            *_copies(stream, specs.get(stream.name)),
            *_consumers(policy, stream),
        ]
        if reasons:
            harmless = all(reason.rule in ("config", COPIES) for reason in reasons)  # of safety, not of place
            violations.append(_violation(policy, stream.name, _ALERT if harmless else _PAUSE, reasons))
    for name in specs:
        if name not in seen:
            missing = Rejection(name, "missing", "is missing", "apply the stream plan again")
            violations.append(_violation(policy, name, _ALERT, [missing]))
    return tuple(violations)


def audit_disk(policy: DomainPolicy, kept: Iterable[tuple[str, str]]) -> tuple[Violation, ...]:
    """The folders of a server's store, as (account, stream): data at rest that nobody asked for is found here."""
    names = {spec.name for spec in policy.wanted.streams}
    found = []
    for account, stream in kept:
        if account != policy.account:
            detail, fix = f"is stored under the account {account}, which has no streams here", "scrub the folder"
        elif stream not in names:
            detail, fix = "is on disk but not planned", "delete the stream, or scrub its folder"
        else:
            continue
        found.append(
            _violation(policy, stream, (GateAction.SCRUB, GateAction.ALERT), [Rejection(stream, "disk", detail, fix)])
        )
    return tuple(found)


def _location(policy: DomainPolicy, stream: ObservedStream) -> list[Rejection]:
    found = []
    for rule, server in (("leader", stream.leader), *(("replica", name) for name in stream.replicas)):
        if server and server not in policy.servers:
            found.append(
                Rejection(
                    stream.name,
                    rule,
                    f"is kept by {server}, which is not a server of {policy.country}",
                    f"move it to {', '.join(sorted(policy.servers))}, then scrub {server}",
                )
            )
    return found


def _copies(stream: ObservedStream, spec: StreamSpec | None) -> list[Rejection]:
    """Fewer copies than were asked for: what the settings of a stream say, and where it is, are two things."""
    if spec is None or spec.replicas == 1:
        return []
    found = [
        Rejection(stream.name, COPIES, f"the copy at {name} is behind or offline", "check that server")
        for name in stream.behind
    ]
    kept = len({name for name in (stream.leader, *stream.replicas) if name})
    if kept < spec.replicas:
        what = f"{kept} servers have it instead of {spec.replicas}"
        found.append(Rejection(stream.name, COPIES, what, "check that all servers are up and have room"))
    return found


def _flows(policy: DomainPolicy, stream: ObservedStream, spec: StreamSpec | None) -> list[Rejection]:
    found = [
        Rejection(stream.name, rule, f"{what}: {_short(stream.config[rule])}", "remove the stream or the setting")
        for rule, what in _MUST_NOT_BE.items()
        if stream.config.get(rule)
    ]
    subjects = [str(subject) for subject in stream.config.get("subjects") or ()]
    found += [
        Rejection(stream.name, "subject", f"keeps `{subject}`, which is not of {policy.country}", "remove the subject")
        for subject in subjects
        if not allowed_subject(subject, policy.country)
    ]
    if spec is None:
        return [*found, Rejection(stream.name, "unknown", "not a planned stream", "delete it")]
    wider = sorted(set(subjects) - set(spec.subjects))
    if wider:
        found.append(Rejection(stream.name, "subject", f"also keeps {', '.join(wider)}", "apply the plan again"))
    wire = spec.wire()
    for name in _MUST_HOLD:
        value = stream.config.get(name) or type(wire[name])()
        if value != wire[name]:
            found.append(
                Rejection(stream.name, "config", f"`{name}` is {value}, not {wire[name]}", "apply the plan again")
            )
    return found


def _consumers(policy: DomainPolicy, stream: ObservedStream) -> list[Rejection]:
    """Consumers that HarchOS did not make. Short-lived ones of a bucket's owner answer to an inbox and are fine."""
    wanted = {spec.name: spec for spec in policy.wanted.consumers if spec.stream == stream.name}
    found = []
    for consumer in stream.consumers:
        spec: ConsumerSpec | None = wanted.get(consumer.name)
        is_scan = stream.name.startswith("KV_") and not consumer.durable
        if spec is None and not is_scan:
            found.append(
                Rejection(stream.name, "consumer", f"is read by `{consumer.name[:64]}`, which is not ours", "delete it")
            )
        inside = consumer.deliver_subject.startswith((f"{INBOX_ROOT}.", f"{juris_root(policy.country)}."))
        if consumer.deliver_subject and not (inside and spec is None and is_scan):
            found.append(
                Rejection(
                    stream.name, "delivery", f"is pushed to `{consumer.deliver_subject[:64]}`", "delete that consumer"
                )
            )
    return found


def may_pass(violation: Violation) -> bool:
    """True for what is usual for a moment, when servers come and go: worth telling if it stays."""
    return all(reason.rule in (COPIES, UNANSWERED) for reason in violation.rejections)


def _violation(
    policy: DomainPolicy, subject: str, actions: tuple[GateAction, ...], reasons: list[Rejection]
) -> Violation:
    return Violation(subject=subject, hub=policy.domain, actions=actions, rejections=tuple(dict.fromkeys(reasons)))


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 120 else f"{text[:117]}…"
