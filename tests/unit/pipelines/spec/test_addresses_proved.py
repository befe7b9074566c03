"""Every address of a pipeline is proved, as its client reads it; the file's own word for a country proves nothing."""

from __future__ import annotations

from typing import Any

import pytest

from harch.base.errors import HarchError
from harch.hub.pipelines.planning import hosts_of
from harch.pipelines.spec.residency import PipelineHosts, prove_residency
from unit.pipelines.spec.pipeline_files import JURISDICTIONS, changed, proved, rules

HOOK = {"kind": "http", "url": "http://127.0.0.1:8099/valves", "honours_key": True}
BOOK = {"kind": "sql", "statement": "insert into book values (:device)"}


def with_sink(sink: dict[str, Any]) -> Any:
    return changed(exports=[], hubs=["casablanca"], act__sinks__book=sink)


def refused_for(sink: dict[str, Any], **variables: str) -> set[str]:
    proof = proved(with_sink(sink), **variables)
    found = {one.rule for one in proof.rejections if "sink book" in one.subject}
    assert bool(found) == ("book" not in proof.sinks)
    return found


@pytest.mark.parametrize(
    "sink",
    [
        {**HOOK, "url": "http://evil.example:8099?@127.0.0.1/valves"},
        {**HOOK, "url": "http://evil.example:8099#@127.0.0.1/valves"},
        {**HOOK, "url": "http://127.0.0.1@evil.example/valves"},
        {**HOOK, "url": "http://localhost.evil.example/valves"},
        {**HOOK, "url": "http://127.0.0.1.evil.example/valves"},
        {**HOOK, "url": "http://0.0.0.0:8099/valves"},  # the kernel reads it as itself, an operator as everything
        {**HOOK, "url": "http://[::ffff:10.77.0.1]/valves"},
        {**HOOK, "undo_url": "http://evil.example/valves"},
        {**HOOK, "status_url": "http://evil.example/valves/{key}"},
        {**BOOK, "url": "postgresql://127.0.0.1/x?host=10.77.0.1"},
        {**BOOK, "url": "postgresql://127.0.0.1,10.77.0.1/x"},
        {**BOOK, "url": "postgresql://127.0.0.1%2c10.77.0.1/x"},
        {**BOOK, "url": "postgresql://127.0.0.1/x?hostaddr=10.77.0.1"},
        {**BOOK, "url": "postgresql:///x?host=/var/run/postgresql&hostaddr=10.77.0.1"},
        {"kind": "mqtt", "host": "evil.example", "topic": "valves", "honours_key": True},
        {"kind": "modbus", "host": "10.77.0.1", "register": 1},
        {"kind": "nats", "url": "nats://evil.example:4222", "subject": "valves"},
        {"kind": "nats", "url": "nats://127.0.0.1@evil.example:4222", "subject": "valves"},
    ],
)
@pytest.mark.parametrize("said", ["", "MA"])
def test_an_address_that_nobody_declared_is_refused_whatever_the_file_says(sink: dict[str, Any], said: str) -> None:
    assert refused_for({**sink, "country": said}) == {"place"}


@pytest.mark.parametrize(
    "sink",
    [
        {**HOOK, "url": "http://2130706433/valves"},
        {**HOOK, "url": "http://0177.0.0.1/valves"},
        {**HOOK, "url": "http://127.1/valves"},
        {**HOOK, "url": "http://evil.example\\@127.0.0.1/valves"},
        {**HOOK, "url": "http://127.0.0.1%2eevil.example/valves"},
        {**HOOK, "url": "http://[fe80::1%25eth0]/valves"},
        {**BOOK, "url": "postgresql://127.0.0.1/x?service=elsewhere"},
        {**BOOK, "url": "postgresql://127.0.0.1/x?oauth_issuer=https://evil.example"},
        {**BOOK, "url": "postgresql://127.0.0.1/x?hostaddr=evil.example"},
        {"kind": "nats", "url": "nats://127.0.0.1:4222,evil.example:4222", "subject": "valves"},
        {"kind": "modbus", "host": "127.0.0.1 ", "register": 1},
    ],
)
def test_an_address_that_could_be_read_in_two_ways_is_refused(sink: dict[str, Any]) -> None:
    assert refused_for(sink) == {"address"}


@pytest.mark.parametrize(
    ("sink", "country"),
    [
        (HOOK, ""),
        ({**HOOK, "url": "http://LOCALHOST.:8099/"}, ""),
        ({**HOOK, "url": "http://[::1]/", "country": "MA"}, ""),
        ({**HOOK, "url": "http://[::ffff:127.0.0.1]/"}, ""),
        ({**HOOK, "url": "https://west.valves.souss.example/"}, "MA"),
        ({**BOOK, "url": "postgresql:///x"}, ""),
        ({**BOOK, "url": "postgresql:///x?host=/var/run/postgresql"}, ""),
        ({**BOOK, "url": "postgresql://10.1.0.9,10.1.0.10:5433/x", "country": "MA"}, "MA"),
        ({**BOOK, "url": "sqlite:///book.db"}, ""),
        ({"kind": "nats", "url": "tls://token@10.1.3.3", "subject": "valves"}, "MA"),
    ],
)
def test_a_declared_place_and_the_hubs_own_machine_are_proved(sink: dict[str, Any], country: str) -> None:
    proof = proved(with_sink(sink))
    assert proof.rejections == ()
    assert proof.sinks["book"] == country


def test_a_sink_whose_addresses_are_in_two_countries_is_none() -> None:
    assert refused_for({**HOOK, "url": "http://10.1.0.7/", "undo_url": "http://10.2.0.7/"}) == {"place"}


def test_a_country_that_the_file_claims_may_only_agree() -> None:
    assert refused_for({**HOOK, "country": "SN"}) == {"country"}
    assert refused_for({"kind": "modbus", "host": "10.1.0.7", "register": 1, "country": "SN"}) == {"country"}


def test_a_broker_at_an_unknown_host_is_not_at_home() -> None:
    broker = {"kind": "mqtt", "name": "fields", "host": "broker.elsewhere.example", "topics": ["a/{device}/{metric}"]}
    for origins in ({}, {"fields": "MA"}):
        proof = proved(changed(exports=[], hubs=["casablanca"], sense__sources=[broker], origins=origins))
        assert {one.rule for one in proof.rejections} == {"place"}
    abroad = proved(
        changed(exports=[], hubs=["casablanca"], sense__sources=[{**broker, "host": "10.2.0.1"}], origins={})
    )
    assert "may_cross_borders" in {one.rule for one in abroad.rejections}
    home = proved(
        changed(
            exports=[], hubs=["casablanca"], sense__sources=[{**broker, "host": "broker.souss.example"}], origins={}
        )
    )
    assert home.rejections == ()
    assert home.sources == {"fields": "MA"}


def test_an_address_in_a_secret_is_proved_too_and_never_shown() -> None:
    sink = {**BOOK, "url": "env:BOOK_URL", "country": "MA"}
    assert refused_for(sink) == {"address"}, "a secret that is not stored"
    assert refused_for(sink, BOOK_URL="postgresql://u:s3cret@10.1.0.4/x") == set()
    proof = proved(with_sink(sink), BOOK_URL="postgresql://u:s3cret@10.77.0.1/x")
    (told,) = {(one.detail, one.nearest_fix) for one in proof.rejections}
    assert "10.77.0.1" not in "".join(told)
    assert "s3cret" not in "".join(told)


def test_what_nobody_read_is_proved_nowhere() -> None:
    spec = changed(exports=[], hubs=["casablanca"])
    proof = prove_residency(spec, PipelineHosts(sinks={}, sources={}), rules(), JURISDICTIONS)
    assert {one.rule for one in proof.rejections} == {"address"}


def test_without_the_package_that_reads_it_a_database_is_refused_with_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr("harch.pipelines.act.sinks.addresses.import_module", missing)
    with pytest.raises(HarchError, match="psycopg") as refused:
        hosts_of(with_sink({**BOOK, "url": "postgresql://127.0.0.1/x"}))
    assert refused.value.code == "E0776"
    assert "harch[postgresql]" in refused.value.hint
