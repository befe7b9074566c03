"""What does the API answer about silences? The shapes of Alertmanager's `/api/v2/silences` and `/silence/{id}`."""

# harch: pure

from __future__ import annotations

from collections.abc import Sequence

from harch.base.errors import HarchError
from harch.sentinel.alerts.api import Json, format_time, matches_filter, read_time_ms
from harch.sentinel.alerts.machine import AlertMachine
from harch.sentinel.alerts.matchers import matcher, parse_matcher
from harch.sentinel.alerts.shared_state import Match, Silence, SilenceState
from harch.sentinel.alerts.silences import expire_silence, not_known, of_tenant, set_silence
from harch.sentinel.model.labels import MatchKind


def get_silences(machine: AlertMachine, filters: Sequence[str] = (), *, now_ms: int, tenant: str | None = None) -> Json:
    """Active ones first, by their end; then pending ones, by their start; then expired ones. Raises E0644."""
    matchers = [parse_matcher(text) for text in filters]
    found = [
        silence
        for silence in machine.shared.silences()
        if is_visible(silence, tenant)
        and matches_filter(matchers, {match.name: match.value for match in silence.matches})
    ]
    return [silence_view(silence, now_ms) for silence in sorted(found, key=lambda one: _order(one, now_ms))]


def is_visible(silence: Silence, tenant: str | None) -> bool:
    return tenant is None or silence.tenant == tenant


def get_silence(machine: AlertMachine, silence_id: str, *, now_ms: int, tenant: str | None = None) -> Json:
    """Raises E0646."""
    return silence_view(_found(machine, silence_id, tenant), now_ms)


def _found(machine: AlertMachine, silence_id: str, tenant: str | None) -> Silence:
    """A silence of somebody else is as good as none. Raises E0646."""
    silence = machine.shared.silence(silence_id)
    if silence is None or not is_visible(silence, tenant):
        raise not_known(silence_id)
    return silence


def post_silence(
    machine: AlertMachine, body: Json, *, new_id: str, now_ms: int, tenant: str | None = None, author: str = ""
) -> Json:
    """Creates or changes one. Raises E0644, E0645, E0646 and E0649."""
    if not isinstance(body, dict):
        raise HarchError("E0645", "a silence must be an object", hint="see Alertmanager's API v2")
    matchers = body.get("matchers")
    if not isinstance(matchers, list):
        raise HarchError("E0645", "`matchers` is not a list", hint="a silence needs at least one matcher")
    wanted = Silence(
        id=str(body.get("id") or ""),
        matches=tuple(_match(item) for item in matchers),
        starts_at_ms=read_time_ms(body.get("startsAt"), "startsAt") or now_ms,
        ends_at_ms=read_time_ms(body.get("endsAt"), "endsAt"),
        updated_at_ms=now_ms,
        created_by=author or str(body.get("createdBy") or ""),
        comment=str(body.get("comment") or ""),
    )
    if wanted.id:
        _found(machine, wanted.id, tenant)
    if tenant is not None:
        wanted = of_tenant(wanted, tenant)
    return {"silenceID": set_silence(machine.shared, wanted, new_id=new_id, now_ms=now_ms).id}


def delete_silence(machine: AlertMachine, silence_id: str, *, now_ms: int, tenant: str | None = None) -> Json:
    """Ends it; it is still shown for five days. Raises E0645 and E0646."""
    _found(machine, silence_id, tenant)
    expire_silence(machine.shared, silence_id, now_ms=now_ms)
    return None


def _match(item: Json) -> Match:
    if not isinstance(item, dict) or not isinstance(item.get("name"), str) or not isinstance(item.get("value"), str):
        raise HarchError("E0644", "a matcher needs a name and a value", hint="both are strings")
    is_regex, is_equal = item.get("isRegex") is True, item.get("isEqual") is not False
    made = matcher(item["name"], item["value"], is_regex=is_regex, is_equal=is_equal)
    return Match(made.name, made.value, made.kind.value)


def silence_view(silence: Silence, now_ms: int) -> dict[str, Json]:
    return {
        "id": silence.id,
        "status": {"state": silence.state(now_ms)},
        "updatedAt": format_time(silence.updated_at_ms),
        "comment": silence.comment,
        "createdBy": silence.created_by,
        "endsAt": format_time(silence.ends_at_ms),
        "matchers": [
            {
                "isEqual": one.kind in (MatchKind.EQUAL, MatchKind.REGEX),
                "isRegex": one.kind in (MatchKind.REGEX, MatchKind.NOT_REGEX),
                "name": one.name,
                "value": one.value,
            }
            for one in silence.matchers
        ],
        "startsAt": format_time(silence.starts_at_ms),
    }


def _order(silence: Silence, now_ms: int) -> tuple[int, int]:
    match silence.state(now_ms):
        case SilenceState.ACTIVE:
            return 0, silence.ends_at_ms
        case SilenceState.PENDING:
            return 1, silence.starts_at_ms
        case SilenceState.EXPIRED:
            return 2, -silence.ends_at_ms
