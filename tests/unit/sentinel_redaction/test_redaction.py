"""Secrets are taken out before anything is stored; a rule that cannot be read is told, and never just left out."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harch.base.errors import HarchError
from harch.sentinel.collect.redaction import scanner
from harch.sentinel.collect.redaction.redactor import Redactor
from harch.sentinel.collect.redaction.rules import RedactionPlace, RuleText, read_rules, with_shipped
from harch.sentinel.http.settings import read_settings
from harch.sentinel.model.labels import Labels
from harch.sentinel.model.logs import LogBatch
from harch.sentinel.model.spans import Span, SpanEvent, SpanLink

JOB: Labels = (("job", "api"),)


def redactor(*own: RuleText) -> Redactor:
    return Redactor(read_rules(with_shipped(own)))


def redacted(*lines: str, with_rules: Redactor | None = None) -> list[str]:
    (batch,) = (with_rules or redactor()).batches([LogBatch(JOB, list(range(1, len(lines) + 1)), lines)])
    return list(batch.bodies)


@pytest.mark.parametrize(
    ("line", "kept"),
    [
        ("key hsk_0123456789abcdef was used", "key hsk_[redacted] was used"),
        ("Authorization: Bearer abc.def-ghi_123==", "Authorization: Bearer [redacted]"),
        ('{"authorization":"Basic dXNlcjpwYXNz"}', '{"authorization":"Basic [redacted]"}'),
        ("open postgres://app:s3cr3t@db:5432/x now", "open postgres://app:[redacted]@db:5432/x now"),
        ("redis://:pw@cache/0", "redis://:[redacted]@cache/0"),
        ('{"user":"a","password":"p w, x","n":1}', '{"user":"a","password":"[redacted]","n":1}'),
        ('msg="{\\"db_password\\":\\"geheim\\"}"', 'msg="{\\"db_password\\":\\"[redacted]\\"}"'),
        ("DB_PASSWORD=geheim api_key: xyz&n=1", "DB_PASSWORD=[redacted] api_key: [redacted]&n=1"),
        ("aws AKIAIOSFODNN7EXAMPLE done", "aws AKIA[redacted] done"),
        ("token eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJl!", "token [redacted token]!"),
        ("push with ghp_abcdefghijklmnopqrstuvwxyz0123456789", "push with ghp_[redacted]"),
    ],
)
def test_credentials_of_known_shapes_are_taken_out(line: str, kept: str) -> None:
    assert redacted(line) == [kept]


@pytest.mark.parametrize(
    "line",
    [
        "GET https://example.test:8080/a/b?tokens=12 HTTP/1.1",
        "max_tokens=512 prompt_tokens: 77",
        "Basic authentication is off; the bearer is asleep",
        "http://host:80/path@version and a mail to a@b.test",
        "password must not be empty",
        "risk-0123456789abcdefghijklmno and disk-usage",
        "-----BEGIN CERTIFICATE----- MIIB",
    ],
)
def test_what_is_no_secret_stays(line: str) -> None:
    assert redacted(line) == [line]


def test_a_private_key_is_taken_out_also_when_each_of_its_lines_comes_alone() -> None:
    whole = "before -----BEGIN EC PRIVATE KEY-----\nMHcCAQEE\n-----END EC PRIVATE KEY----- after"
    assert redacted(whole) == ["before [redacted private key] after"]
    lines = ["reading", "-----BEGIN PRIVATE KEY-----", "MIIEvQIBADAN", "Bgkqhki", "-----END PRIVATE KEY-----", "done"]
    assert redacted(*lines) == ["reading", *["[redacted private key]"] * 4, "done"]


def test_rules_look_only_where_they_are_told_to_and_are_counted() -> None:
    rules = redactor(
        RuleText("patient", r"patient (\d+)-(?P<last>\d+)", r"patient \g<last> of \1\\", streams='{job=~"clinic-.*"}'),
        RuleText("site", "dakhla", "[site]", where=(RedactionPlace.LABELS,)),
        RuleText("harch-key", enabled=False),
    )
    text = "patient 12-34 hsk_0123456789abcdef dakhla"
    told = rules.batches(
        [LogBatch((("job", "clinic-1"), ("place", "dakhla")), [1], [text]), LogBatch(JOB, [1], [text])]
    )
    assert told[0].bodies == ["patient 34 of 12\\ hsk_0123456789abcdef dakhla"]
    assert told[0].labels == (("job", "clinic-1"), ("place", "[site]"))
    assert told[1].bodies == [text]
    assert rules.hits["patient"] == rules.hits["site"] == 1
    assert "harch-key" not in rules.hits


def test_metadata_is_cleaned_by_what_it_says_and_by_what_it_is_called() -> None:
    metadata: list[Labels] = [(("db_password", "x"), ("url", "redis://u:p@h")), (), (("user", "hsk_0123456789abcdef"),)]
    (batch,) = redactor().batches([LogBatch(JOB, [1, 2, 3], ["a", "b", "c"], metadata)])
    assert batch.metadata == [
        (("db_password", "[redacted]"), ("url", "redis://u:[redacted]@h")),
        (),
        (("user", "hsk_[redacted]"),),
    ]


def test_spans_are_cleaned_in_every_part_and_others_stay_the_same_object() -> None:
    key = "hsk_0123456789abcdef"
    secret = Span(
        trace_id="a" * 32, span_id="b" * 16, parent_id="", service="s", name=f"GET {key}", start_ns=1, duration_ns=1,
        status_message=f"no {key}", attributes=(("http.request.header.authorization", "x"), ("n", 1), ("url", key)),
        resource=(("env", key),), events=(SpanEvent(1, key, (("e", key),)),), links=(SpanLink("", "", (("l", key),)),),
    )  # fmt: skip
    plain = Span(
        trace_id="a" * 32, span_id="c" * 16, parent_id="", service="s", name="GET /", start_ns=1, duration_ns=1
    )
    rules = redactor()
    cleaned, same = rules.spans([secret, plain])
    assert same is plain
    assert key not in repr(cleaned)
    assert dict(cleaned.attributes) == {
        "http.request.header.authorization": "[redacted]",
        "n": 1,
        "url": "hsk_[redacted]",
    }
    assert rules.hits["harch-key"] > 0
    assert rules.hits["named-credential"] == 1


@pytest.mark.parametrize(
    ("rule", "complaint"),
    [
        (RuleText("a", "("), "missing"),
        (RuleText("a", "x(?=y)"), "invalid perl operator"),
        (RuleText("a", "x*"), "empty string"),
        (RuleText("a"), "matches nothing"),
        (RuleText("A b", "x"), "not a rule name"),
        (RuleText("a", "x", r"\1"), "group `1`"),
        (RuleText("a", "(x)", r"\g<who>"), "group `who`"),
        (RuleText("a", "x", "\\"), "single backslash"),
        (RuleText("a", "x", r"\n"), "write groups as"),
        (RuleText("a", "x", where=()), "applies nowhere"),
        (RuleText("a", names="x", where=(RedactionPlace.LINE,)), "metadata"),
        (RuleText("a", "x", streams="job"), "streams"),
        (RuleText("a", "x", where=(RedactionPlace.METADATA,), until="y"), "until"),
    ],
)
def test_a_rule_that_cannot_be_read_is_refused_with_the_reason(rule: RuleText, complaint: str) -> None:
    with pytest.raises(HarchError, match="(?i)" + complaint.replace("\\", "")) as refusal:
        read_rules([rule])
    assert refusal.value.code == "E0683"


def test_rules_stand_in_the_settings_and_a_bad_one_refuses_the_start(tmp_path: Path) -> None:
    file = tmp_path / "sentinel.toml"
    file.write_text("[[redaction]]\nname = 'iban'\npattern = '\\bMA\\d{26}\\b'\nwhere = ['line', 'metadata']\n")
    names = [rule.name for rule in read_settings(file).redaction]
    assert names[-1] == "iban"
    assert "bearer-token" in names
    assert [rule.name for rule in read_settings(None).redaction] == names[:-1]
    file.write_text("[[redaction]]\nname = 'iban'\npattern = '('\n")
    with pytest.raises(HarchError) as refusal:
        read_settings(file)
    assert refusal.value.code == "E0683"
    file.write_text("[[redaction]]\nname = 'iban'\npatern = 'x'\n")
    with pytest.raises(HarchError) as refusal:
        read_settings(file)
    assert refusal.value.code == "E0673"


def test_two_rules_may_name_their_groups_alike() -> None:
    twins = [RuleText(f"twin-{at}", f"(?P<who>{word})-secret", r"\g<who>-<>") for at, word in enumerate("abc")]
    rules = Redactor(read_rules(twins))
    kept = redacted("b-secret", "c-secret and a-secret", "-secret", with_rules=rules)
    assert kept == ["b-<>", "c-<> and a-<>", "-secret"]


def test_rules_that_are_too_large_together_are_applied_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def too_large(sources: object) -> None:
        raise scanner._NotJoined

    monkeypatch.setattr(scanner, "_joined", too_large)
    assert redacted("plain", "key hsk_0123456789abcdef") == ["plain", "key hsk_[redacted]"]


_PATTERNS = (
    "^ab",
    "b$",
    r"\bq\b",
    "a+b",
    "[^c]d",
    r"\Aa",
    r"b\z",
    "(?i)xy",
    "(?s)a.b",
    r"a\nb",
    "(?-s)c.d",
    r"\s\s",
    "é",
)
_LINES = st.lists(st.text("abcdqxyXYé \n", max_size=8), max_size=12)


@given(st.lists(st.sampled_from(_PATTERNS), min_size=1, max_size=4, unique=True), _LINES)
def test_many_lines_at_once_are_changed_exactly_as_each_alone(patterns: list[str], lines: list[str]) -> None:
    rules = read_rules([RuleText(f"r{place}", pattern, "<>") for place, pattern in enumerate(patterns)])
    alone = []
    for line in lines:
        for rule in rules:
            line = rule.applied(line)[0]
        alone.append(line)
    assert redacted(*lines, with_rules=Redactor(rules)) == alone
