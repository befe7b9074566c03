"""Is the generated configuration safe by construction, and is every unsafe layout refused?"""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harch.base.errors import HarchError
from harch.pipelines.client.options import new_user_seed, public_key
from harch.pipelines.engine.config import EngineSecrets, server_config
from harch.pipelines.engine.keys import KeyFolder, read_secret
from harch.pipelines.engine.layout import (
    BorderLink,
    Domain,
    EngineLayout,
    EngineUser,
    Server,
    ServerLimits,
    ServerTls,
    StageGrant,
    controller_user,
    stage_user,
)
from harch.pipelines.engine.log_lines import EngineEventKind, LineCutter, read_line
from harch.pipelines.engine.server import find_nats_server, version_of

LINK_SEED = new_user_seed(bytes(32))
LINK = public_key(LINK_SEED)
KEY = public_key(new_user_seed(bytes([1] * 32)))
OTHER = public_key(new_user_seed(bytes([2] * 32)))
TLS = ServerTls(certificate="/id/hub.pem", key="/id/hub.key", ca="/id/ca.pem")
WORKER = stage_user(StageGrant(country="MA", pipeline="soil", stage="sense", listens=("juris.ma.soil.sense.*",)), OTHER)


def server(name: str = "ma-1", **fields: Any) -> Server:
    ports = {"client_port": 4222, "monitor_port": 8222}
    return Server(name=name, hub=name, store=f"/s/{name}", log_file=f"/l/{name}.log", **{**ports, **fields})


def domain(*servers: Server, country: str = "MA", **fields: Any) -> Domain:
    users = (controller_user(country, KEY),) if country == "SN" else (controller_user(country, KEY), WORKER)
    return Domain(country=country, name=country.lower(), servers=servers or (server(),), **{"users": users, **fields})


def two(**fields: Any) -> EngineLayout:
    link = BorderLink(
        dialler="sn",
        acceptor="ma",
        acceptor_url="127.0.0.1:7422",
        public_key=LINK,
        dialler_sends=("export.agg.sn.fish",),
        acceptor_sends=("export.agg.ma.soil",),
    )
    domains = (domain(server(border_port=7422)), domain(server("sn-1"), country="SN"))
    return EngineLayout(domains=domains, links=(msgspec.structs.replace(link, **fields),))


def config(layout: EngineLayout, name: str = "ma-1") -> dict[str, Any]:
    text = server_config(layout, name, EngineSecrets(link_seeds={LINK: LINK_SEED}, cluster_word="word"))
    decoded: dict[str, Any] = json.loads(text)
    return decoded


def test_every_user_has_lists_of_what_is_allowed_and_no_account_but_its_own_countrys_keeps_anything() -> None:
    for name, own, other in (("ma-1", "JURIS_MA", "JURIS_SN"), ("sn-1", "JURIS_SN", "JURIS_MA")):
        made = config(two(), name)
        assert set(made["accounts"]) == {own, "BORDER", "SYS"}
        assert other not in json.dumps(made)
        assert [account for account, body in made["accounts"].items() if "jetstream" in body] == [own]
        for account in made["accounts"].values():
            for user in account["users"]:
                for direction in ("publish", "subscribe"):
                    allowed = user["permissions"][direction].get("allow")
                    assert allowed is None or not {">", "*", "_INBOX.>", "$JS.>"} & set(allowed)
                    assert allowed or user["permissions"][direction] == {"deny": [">"]}
        assert made["http"].startswith("127.0.0.1:")
        assert made["max_payload"] == 8 << 20
        assert made["jetstream"]["domain"] == name[:2]
    assert "sync_interval" not in config(two())["jetstream"]


def test_only_aggregates_of_its_own_country_leave_it_and_the_links_key_opens_only_the_link() -> None:
    made = config(two())
    assert [export["stream"] for export in made["accounts"]["JURIS_MA"]["exports"]] == ["export.agg.ma.soil"]
    (borrowed,) = made["accounts"]["BORDER"]["users"]
    assert borrowed["permissions"]["publish"]["allow"] == ["export.agg.sn.fish"]
    assert borrowed["permissions"]["subscribe"]["allow"] == ["export.agg.ma.soil"]
    assert borrowed["allowed_connection_types"] == ["LEAFNODE"]
    dialling = config(two(), "sn-1")
    (remote,) = dialling["leafnodes"]["remotes"]
    assert remote["account"] == "BORDER"
    assert LINK_SEED not in json.dumps(made)  # only who dials knows the seed


def test_a_synced_domain_syncs_every_write_and_a_cluster_asks_for_its_word() -> None:
    assert config(EngineLayout(domains=(domain(synced=True),)))["jetstream"]["sync_interval"] == "always"
    servers = [server(f"ma-{n}", cluster_port=6220 + n, client_port=4220 + n) for n in (1, 2, 3)]
    made = config(EngineLayout(domains=(domain(*servers),)), "ma-2")
    assert made["cluster"]["authorization"]["password"] == "word"
    assert len(made["cluster"]["routes"]) == 2
    secure = [server(f"ma-{n}", cluster_port=6220 + n, host="10.0.0.1", tls=TLS) for n in (1, 2, 3)]
    clustered = config(EngineLayout(domains=(domain(*secure),)), "ma-1")
    for part in (clustered, clustered["cluster"]):
        assert part["tls"]["verify"] is True


@pytest.mark.parametrize(
    ("layout", "word"),
    [
        (EngineLayout(domains=(domain(server(host="10.0.0.1")),)), "TLS"),
        (EngineLayout(domains=(domain(server(), server("ma-2")),)), "cluster_port"),
        (EngineLayout(domains=(domain(server(cluster_port=1), server("ma-2", cluster_port=2)),)), "two servers"),
        (EngineLayout(domains=(domain(), domain())), "two domains"),
        (EngineLayout(domains=(Domain(country="Morocco", name="ma", servers=(server(),)),)), "country"),
        (EngineLayout(domains=(Domain(country="MA", name="ma", servers=()),)), "no server"),
        (EngineLayout(domains=(domain(),), limits=ServerLimits(pending_bytes_max=9 << 20)), "pending_bytes_max"),
        (two(acceptor_sends=("juris.ma.soil.sense.0",)), "may not leave MA"),
        (two(acceptor_sends=("export.agg.>",)), "may not leave MA"),
        (two(dialler_sends=("export.agg.ma.soil",)), "may not leave SN"),
        (two(dialler="ma"), "to itself"),
        (two(acceptor="fr"), "does not exist"),
        (two(acceptor_url="casablanca.example:7422"), "no TLS"),
        (
            EngineLayout(
                domains=(
                    domain(users=(EngineUser(name="x", public_key=KEY, publish=(">",), subscribe=("_INBOX.>",)),)),
                )
            ),
            "everything",
        ),
        (EngineLayout(domains=(domain(users=(controller_user("MA", KEY), controller_user("MA", KEY))),)), "same key"),
    ],
)
def test_a_layout_that_would_leak_or_not_run_is_refused_with_its_place(layout: EngineLayout, word: str) -> None:
    with pytest.raises(HarchError) as caught:
        config(layout)
    assert caught.value.code == "E0704"
    assert word in str(caught.value)


names = st.from_regex(r"\A[a-z0-9-]{1,12}\Z")


@given(country=st.sampled_from(["MA", "SN", "CI"]), pipeline=names, stage=names, stream=names, bucket=names)
def test_no_worker_is_ever_allowed_to_administer_list_or_overhear(
    country: str, pipeline: str, stage: str, stream: str, bucket: str
) -> None:
    grant = StageGrant(
        country=country,
        pipeline=pipeline,
        stage=stage,
        listens=(f"juris.{country.lower()}.{pipeline}.{stage}.*",),
        reads=((stream, stage),),
        buckets=(bucket,),
        scans=(bucket,),
    )
    user = stage_user(grant, KEY)
    tried = [
        f"$JS.API.{what}"
        for what in (
            "INFO",
            "STREAM.NAMES",
            "STREAM.LIST",
            f"STREAM.CREATE.{stream}",
            f"STREAM.UPDATE.{stream}",
            f"STREAM.DELETE.{stream}",
            f"STREAM.PURGE.{stream}",
            f"STREAM.MSG.GET.{stream}",
            f"STREAM.SNAPSHOT.{stream}",
            f"DIRECT.GET.{stream}",
            f"CONSUMER.CREATE.{stream}.x",
            f"CONSUMER.DURABLE.CREATE.{stream}.x",
            f"CONSUMER.DELETE.{stream}.{stage}",
            f"CONSUMER.LIST.{stream}",
        )
        if not (what.endswith(f"KV_{bucket}") or stream == f"KV_{bucket}")
    ]
    assert not [subject for subject in tried if any(matches(pattern, subject) for pattern in user.publish)]
    foreign = ["_INBOX.harch.x", "_INBOX.x", "$JS.EVENT.ADVISORY.STREAM.CREATED.x", "juris.zz.other.sense.0", "$KV.b.x"]
    assert not [subject for subject in foreign if any(matches(pattern, subject) for pattern in user.subscribe)]


def matches(pattern: str, subject: str) -> bool:
    """NATS's own rule: `*` is one word, `>` is the rest."""
    words, given_words = pattern.split("."), subject.split(".")
    for index, word in enumerate(words):
        if word == ">":
            return len(given_words) > index
        if index >= len(given_words) or word not in ("*", given_words[index]):
            return False
    return len(words) == len(given_words)


def test_keys_are_made_once_kept_secret_and_refused_when_others_can_read_them(tmp_path: Path) -> None:
    keys = KeyFolder(tmp_path / "keys")
    seed = keys.seed("ma-soil-sense")
    assert keys.seed("ma-soil-sense") == seed
    assert keys.public_key("ma-soil-sense") == public_key(seed)
    assert keys.word("cluster") == keys.word("cluster") != keys.word("other")
    path = tmp_path / "keys" / "ma-soil-sense.key"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    path.chmod(0o644)
    with pytest.raises(HarchError) as caught:
        keys.seed("ma-soil-sense")
    assert seed not in str(caught.value)
    for name in ("../up", "", "A", "x" * 200):
        with pytest.raises(HarchError):
            keys.seed(name)
    keys.forget("ma-soil-sense")
    assert keys.seed("ma-soil-sense") != seed
    (tmp_path / "keys" / "broken.key").write_text("nonsense")
    (tmp_path / "keys" / "broken.key").chmod(0o600)
    with pytest.raises(HarchError):
        keys.seed("broken")
    assert read_secret(tmp_path / "keys" / "cluster.key")
    assert LINK_SEED not in repr(EngineSecrets(link_seeds={LINK: LINK_SEED}))


def test_the_program_is_found_and_one_that_is_none_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert version_of(find_nats_server()) >= (2, 15, 0)
    for said in ("nats-server: v2.9.1", "hello"):
        fake = tmp_path / "nats-server"
        fake.write_text(f"#!/bin/sh\necho '{said}'\n")
        fake.chmod(0o755)
        monkeypatch.setenv("HARCH_NATS_SERVER", str(fake))
        with pytest.raises(HarchError) as caught:
            version_of(find_nats_server())
        assert caught.value.code == "E0702"
    monkeypatch.setenv("HARCH_NATS_SERVER", str(tmp_path / "missing"))
    with pytest.raises(HarchError):
        find_nats_server()


HEAD = "[7] 2026/11/15 15:04:16.007022 [ERR] 127.0.0.1:43438 - cid:13"


@pytest.mark.parametrize(
    ("line", "what", "user", "subject"),
    [
        (f'{HEAD} - "v1" - "JURIS_MA/nkey:{KEY}" - Publish Violation - Subject "a.b"', "publish_refused", "w", "a.b"),
        (
            f'{HEAD} - "v1" - "JURIS_MA/nkey:{KEY}" - Subscription Violation - Subject "juris.ma.>", SID 2',
            "subscribe_refused",
            "w",
            "juris.ma.>",
        ),
        (f'{HEAD} - authentication error - Nkey "{OTHER}"', "key_refused", f"{OTHER[:8]}…", ""),
        (f"{HEAD} - Slow Consumer Detected: MaxPending of 256 Exceeded", "slow_consumer", "", ""),
    ],
)
def test_lines_of_the_log_become_events_that_name_people_and_subjects(
    line: str, what: str, user: str, subject: str
) -> None:
    event = read_line(line, "ma-1", {KEY: "w"})
    assert event is not None
    assert (event.what, event.user, event.subject) == (EngineEventKind(what), user, subject)
    assert read_line("[7] 2026/11/15 15:04:16.0 [INF] Server is ready", "ma-1", {}) is None


@given(st.text(max_size=300))
def test_any_line_is_an_event_or_none(line: str) -> None:
    read_line(line, "s", {})


@given(st.lists(st.binary(max_size=30), max_size=10))
def test_lines_come_out_whole_however_the_bytes_are_cut(pieces: list[bytes]) -> None:
    cutter = LineCutter()
    found = [line for piece in pieces for line in cutter.feed(piece)]
    assert found == [line.decode("utf-8", "replace") for line in b"".join(pieces).split(b"\n")[:-1]]
