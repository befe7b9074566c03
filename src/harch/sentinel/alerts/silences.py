"""How is a silence made, changed and ended? As in Alertmanager; and how is an alert acknowledged?"""

# harch: pure

from __future__ import annotations

from msgspec.structs import replace

from harch.base.errors import HarchError
from harch.sentinel.alerts.alert import TENANT_LABEL, Alert
from harch.sentinel.alerts.matchers import MATCHERS_MAX, matcher
from harch.sentinel.alerts.shared_state import AlertAck, Match, SharedState, Silence, SilenceState

COMMENT_CHARS_MAX = 4_096
AUTHOR_CHARS_MAX = 256
SILENCES_PER_TENANT_MAX = 500  # so that no tenant takes the room of the others


def of_tenant(wanted: Silence, tenant: str) -> Silence:
    """The same silence for alerts of one tenant alone. Raises E0645 where it asks for those of others."""
    own = Match(TENANT_LABEL, tenant)
    if any(match.name == TENANT_LABEL and match != own for match in wanted.matches):
        raise _invalid(
            f"this key may only silence alerts of tenant `{tenant}`", f'write tenant="{tenant}", or remove it'
        )
    matches = wanted.matches if own in wanted.matches else (*wanted.matches, own)
    return replace(wanted, matches=matches, tenant=tenant)


def set_silence(state: SharedState, wanted: Silence, *, new_id: str, now_ms: int) -> Silence:
    """Creates a silence, or changes the one whose id is given. Raises E0645 and E0646.

    What cannot be changed in place, e.g. other matchers, ends the old silence and makes a new one with `new_id`.
    """
    _check(wanted, now_ms)
    if wanted.id:
        before = state.silence(wanted.id)
        if before is None:
            raise not_known(wanted.id)
        if _can_change(before, wanted, now_ms):
            starts_at_ms = _kept_start(before, wanted, now_ms)
            changed = replace(wanted, starts_at_ms=starts_at_ms, updated_at_ms=now_ms, tenant=before.tenant)
            state.put(changed, now_ms=now_ms)
            return changed
        if before.state(now_ms) is not SilenceState.EXPIRED:
            state.put(_ended(before, now_ms), now_ms=now_ms)
    if wanted.tenant and _count(state, wanted.tenant, now_ms) >= SILENCES_PER_TENANT_MAX:
        hint = "end some, or use wider matchers"
        raise HarchError("E0649", f"tenant `{wanted.tenant}` has {SILENCES_PER_TENANT_MAX} silences already", hint=hint)
    made = replace(wanted, id=new_id, starts_at_ms=max(wanted.starts_at_ms, now_ms), updated_at_ms=now_ms)
    state.put(made, now_ms=now_ms)
    return made


def expire_silence(state: SharedState, silence_id: str, *, now_ms: int) -> None:
    """Raises E0645 when it has expired already, E0646 when nobody knows it."""
    silence = state.silence(silence_id)
    if silence is None:
        raise not_known(silence_id)
    if silence.state(now_ms) is SilenceState.EXPIRED:
        raise HarchError("E0645", f"silence {silence_id} has already expired", hint="nothing to do")
    state.put(_ended(silence, now_ms), now_ms=now_ms)


def acknowledge(
    state: SharedState, alert: Alert, *, by: str, why: str, now_ms: int, until_ms: int = 0, withdraw: bool = False
) -> AlertAck:
    """Marks an alert as looked after, or takes that back. Raises E0645 without a name or with an end in the past."""
    _check_author(by, why)
    if until_ms and until_ms <= now_ms:
        raise HarchError("E0645", "the end of the acknowledgement is in the past", hint="give a later time, or none")
    ack = AlertAck(
        fingerprint=alert.fingerprint,
        labels=alert.labels,
        at_ms=now_ms,
        updated_at_ms=now_ms,
        by=by,
        why=why,
        until_ms=until_ms,
        is_withdrawn=withdraw,
    )
    state.put(ack, now_ms=now_ms)
    return ack


def _count(state: SharedState, tenant: str, now_ms: int) -> int:
    return sum(one.tenant == tenant and one.state(now_ms) is not SilenceState.EXPIRED for one in state.silences())


def not_known(silence_id: str) -> HarchError:
    return HarchError("E0646", f"silence `{silence_id[:64]}` not found", hint="list the silences for their ids")


def _check(wanted: Silence, now_ms: int) -> None:
    _check_author(wanted.created_by, wanted.comment)
    if not wanted.matches:
        raise _invalid("a silence needs at least one matcher", "match e.g. alertname")
    if len(wanted.matches) > MATCHERS_MAX:
        raise _invalid(f"a silence has at most {MATCHERS_MAX} matchers", "use fewer")
    if all(_checked(match) for match in wanted.matches):
        raise _invalid(
            "every matcher also matches alerts without the label, so the silence would match too much",
            "add a matcher with a value that is not empty",
        )
    if wanted.ends_at_ms <= wanted.starts_at_ms:
        raise _invalid("the silence ends before it starts", "`endsAt` must be after `startsAt`")
    if wanted.ends_at_ms <= now_ms:
        raise _invalid("the silence ends in the past", "set an end in the future")


def _checked(match: Match) -> bool:
    """Raises E0644; answers whether the matcher also takes alerts without the label."""
    kind = match.matcher.kind.value
    return matcher(match.name, match.value, is_regex="~" in kind, is_equal=not kind.startswith("!")).matches_empty()


def _check_author(by: str, why: str) -> None:
    if not by.strip():
        raise _invalid("no author given", "name the author")
    if len(by) > AUTHOR_CHARS_MAX or len(why) > COMMENT_CHARS_MAX:
        raise _invalid("the name or the comment is too long", f"at most {COMMENT_CHARS_MAX} characters")


def _can_change(before: Silence, wanted: Silence, now_ms: int) -> bool:
    if sorted(before.matches, key=repr) != sorted(wanted.matches, key=repr):
        return False
    match before.state(now_ms):
        case SilenceState.ACTIVE:
            return wanted.starts_at_ms // 1000 == before.starts_at_ms // 1000
        case SilenceState.PENDING:
            return wanted.starts_at_ms >= now_ms
        case SilenceState.EXPIRED:
            return False


def _kept_start(before: Silence, wanted: Silence, now_ms: int) -> int:
    return before.starts_at_ms if before.state(now_ms) is SilenceState.ACTIVE else wanted.starts_at_ms


def _ended(silence: Silence, now_ms: int) -> Silence:
    starts_at_ms = min(silence.starts_at_ms, now_ms)
    return replace(silence, starts_at_ms=starts_at_ms, ends_at_ms=now_ms, updated_at_ms=now_ms)


def _invalid(message: str, hint: str) -> HarchError:
    return HarchError("E0645", message, hint=hint)
