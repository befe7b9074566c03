"""Which configurations are read, and what is said of the others?"""

from __future__ import annotations

import pytest
from desk_world import CONFIG, T0

from harch.base.errors import HarchError
from harch.sentinel.alerts.config import (
    EmailTo,
    Secret,
    SlackTo,
    TimeSpec,
    WebhookTo,
    default_config,
    parse_days,
    parse_months,
    parse_weekdays,
    revealed,
)
from harch.sentinel.alerts.config_file import hidden, parse_config
from harch.sentinel.alerts.matchers import parse_matcher, parse_matchers

FULL = """
global:
  resolve_timeout: 10m
  smtp_smarthost: mail.example.org:587
  smtp_from: HarchOS <alerts@example.org>
  smtp_auth_username: harch
  smtp_auth_password: hunter2
  slack_api_url: https://hooks.example.org/T/secret
route:
  receiver: team
  routes:
  - receiver: night
    matchers: [a=b, 'c=~"d|e",f!=g']
receivers:
- name: team
  email_configs: [{to: a@example.org, send_resolved: true, headers: {Subject: 'x {{ .Status }}'}}]
  slack_configs: [{channel: '#ops', fields: [{title: t, value: '{{ .Receiver }}'}]}]
- name: night
  webhook_configs:
  - url_file: /run/secrets/hook
    http_config: {authorization: {credentials_env: HOOK_TOKEN}}
"""


def test_a_full_configuration_is_read_with_globals_and_references_to_secrets():
    config = parse_config(FULL)
    email, slack = config.receivers["team"].integrations
    assert isinstance(email, EmailTo)
    assert (email.smarthost, email.user, email.require_tls) == ("mail.example.org:587", "harch", True)
    assert isinstance(slack, SlackTo)
    assert slack.fields == (("t", "{{ .Receiver }}", False),)
    (webhook,) = config.receivers["night"].integrations
    assert isinstance(webhook, WebhookTo)
    assert (webhook.url.file, webhook.http.token.variable) == ("/run/secrets/hook", "HOOK_TOKEN")
    assert config.resolve_timeout_ms == 600_000
    assert config.route.routes[0].key == '{}/{a="b",c=~"d|e",f!="g"}'


def test_no_secret_is_shown():
    config = parse_config(FULL)
    for text in (config.original, repr(config), hidden(FULL)):
        assert "hunter2" not in text
        assert "/T/secret" not in text
    assert "<secret>" in config.original


def test_without_a_configuration_nobody_is_told():
    config = default_config()
    assert all(receiver.integrations == () for receiver in config.receivers.values())
    assert parse_config(config.original).route == config.route


@pytest.mark.parametrize(
    ("text", "place", "what"),
    [
        ("receivers: []", "line 1, column 1", "`route` is missing"),
        (CONFIG.replace("receiver: team\n", "receiver: nobody\n", 1), "line 3, column 13", "`nobody` is not defined"),
        (CONFIG.replace("group_wait: 30s", "group_wait: soon"), "line 5, column 15", "not a duration"),
        (CONFIG.replace("group_interval: 5m", "group_interval: 0s"), "line 6, column 19", "must not be zero"),
        (CONFIG.replace("[alertname]", "[a, a]"), "line 4, column 13", "twice"),
        (CONFIG.replace("[alertname]", "[a, '...']"), "line 4, column 13", "excludes other names"),
        (CONFIG.replace("group_wait: 30s", "matchers: [a=b]"), "line 3, column 3", "must match everything"),
        (CONFIG.replace("group_wait: 30s", "continue: true"), "line 3, column 3", "cannot have `continue`"),
        (CONFIG.replace("group_wait: 30s", "routes: [{matchers: ['a=~(']}]"), "line 5, column 24", "missing )"),
        (CONFIG.replace("group_wait: 30s", "routes: [{mute_time_intervals: [x]}]"), "line 5", "`x` is not defined"),
        (CONFIG.replace("url: http://127.0.0.1:1/", "url: ftp://x"), "line 11, column 10", "http://"),
        (CONFIG.replace("url: http://127.0.0.1:1/", "url_env: A\n    url_file: b"), "line 11", "only one of"),
        (CONFIG.replace("webhook_configs", "pagerduty_configs"), "line 11, column 3", "not supported"),
        (CONFIG + "- name: team\n", "line 12, column 3", "twice"),
        (CONFIG + "time_intervals: [{name: a, time_intervals: [{weekdays: [someday]}]}]", "line 12", "someday"),
        (CONFIG + "time_intervals: [{name: a, time_intervals: [{location: Mars}]}]", "line 12", "Mars"),
    ],
)
def test_a_mistake_is_told_with_its_place(text: str, place: str, what: str):
    with pytest.raises(HarchError) as refused:
        parse_config(text)
    assert refused.value.code == "E0643"
    assert place in refused.value.message
    assert what in refused.value.message


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ('a="b"', ['a="b"']),
        ("a=b", ['a="b"']),
        ("a = b c ", ['a="b c"']),
        ('{a="b", c=~"d,e"}', ['a="b"', 'c=~"d,e"']),
        ("{a!=b,c!~d}", ['a!="b"', 'c!~"d"']),
        ('a="x\\"y\\\\z\\nw"', ['a="x\\"y\\\\z\\nw"']),
        ('"a name"="b"', ['a name="b"']),
        ("a=", ['a=""']),
        ("{}", []),
        ('{a="b",}', ['a="b"']),
    ],
)
def test_matchers_are_read_in_both_syntaxes(text: str, shown: list[str]):
    assert [str(one) for one in parse_matchers(text)] == shown


@pytest.mark.parametrize("text", ["", "a", "=b", '{a="b"', 'a="b"}', 'a="b" c="d"', 'a=~"("', 'a="b'])
def test_what_is_no_matcher_is_refused(text: str):
    with pytest.raises(HarchError, match="E0644"):
        parse_matcher(text)


class NoSecrets:
    def file(self, path: str) -> str | None:
        return {"/there": " content \n", "/empty": "\n"}.get(path)

    def variable(self, name: str) -> str | None:
        return None


def test_a_secret_is_read_where_it_is_and_a_missing_one_names_only_the_place():
    assert revealed(Secret(file="/there"), NoSecrets()) == "content"
    assert revealed(Secret(literal="direct"), NoSecrets()) == "direct"
    for secret, where in ((Secret(file="/empty"), "file /empty"), (Secret(variable="TOKEN"), "variable TOKEN")):
        with pytest.raises(HarchError, match="E0651") as refused:
            revealed(secret, NoSecrets())
        assert where in refused.value.message


def test_time_intervals_know_weekdays_months_and_days_from_the_end():
    # T0 is Thursday, 1 January 2026, 10:00 UTC.
    day = 86_400_000
    assert TimeSpec(weekdays=(parse_weekdays("monday:thursday"),)).contains(T0)
    assert not TimeSpec(weekdays=(parse_weekdays("friday"),)).contains(T0)
    assert TimeSpec(months=(parse_months("january:march"), parse_months("12"))).contains(T0)
    last_days = TimeSpec(days=(parse_days("-2:-1"),))
    assert [last_days.contains(T0 + n * day) for n in (28, 29, 30, 31)] == [False, True, True, False]
    assert TimeSpec(minutes=((600, 601),)).contains(T0)
    assert not TimeSpec(minutes=((600, 601),)).contains(T0 + 60_000)
    assert TimeSpec(minutes=((660, 661),), zone="Africa/Casablanca").contains(T0)
