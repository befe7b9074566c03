"""What an engine.toml says, every mistake of it with its place, and tokens that hold what a user may do."""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from harch.base.errors import HarchError
from harch.hub.pipelines.packages import engine_settings
from harch.pipelines.client.options import NkeyRole, is_public_key, new_seed, new_user_seed, public_key
from harch.pipelines.engine.external import EngineCluster, what_is_wrong
from harch.pipelines.engine.keys import LIFE, AccountKey, user_token
from harch.pipelines.engine.layout import EngineUser
from harch.pipelines.engine.settings import EngineSettings, parse_settings

SEED = new_seed(NkeyRole.ACCOUNT, bytes(range(32)))
ACCOUNT = public_key(SEED, NkeyRole.ACCOUNT)
EXTERNAL = f"""
replicas = 3
[external]
servers = ["tls://nats-1.example:4222", "tls://nats-2.example:4222"]
server_names = ["ma-1", "ma-2", "ma-3"]
account = "{ACCOUNT}"
account_key_file = "/etc/harch/account.nk"
ca = "/etc/harch/ca.pem"
"""


def test_without_a_file_a_hub_has_one_server_and_one_copy(tmp_path: Path) -> None:
    assert engine_settings(tmp_path) is None
    assert parse_settings(b"") == EngineSettings(replicas=1, servers=1)
    (tmp_path / "engine.toml").write_text("replicas = 3\nservers = 3\n")
    assert engine_settings(tmp_path) == EngineSettings(replicas=3, servers=3)


def test_an_external_cluster_is_named_with_its_account_and_a_second_one_that_syncs() -> None:
    settings = parse_settings(EXTERNAL.encode())
    assert settings.external is not None
    cluster = settings.external.cluster("MA", synced=False)
    assert cluster is not None
    assert (cluster.domain, cluster.server_names) == ("ma", ("ma-1", "ma-2", "ma-3"))
    assert cluster.tls is not None
    assert settings.external.cluster("MA", synced=True) is None
    more = '[external.synced]\nservers = ["tls://sync.example"]\nserver_names = ["a", "b", "c"]\n'
    both = parse_settings((EXTERNAL + more).encode()).external
    assert both is not None
    synced = both.cluster("MA", synced=True)
    assert synced is not None
    assert (synced.domain, synced.servers, synced.tls) == ("ma-act", ("tls://sync.example",), cluster.tls)


@pytest.mark.parametrize(
    ("changed", "rule"),
    [
        ({}, ""),
        ({"version": "2.14.3"}, "version"),
        ({"version": "odd"}, "version"),
        ({"jetstream": False}, "jetstream"),
        ({"domain": "sn"}, "domain"),
        ({"domain": None}, "domain"),
        ({"server_name": "sn-1"}, "servers"),
    ],
)
def test_what_a_server_says_of_itself_is_compared_with_what_it_has_to_be(changed: dict[str, Any], rule: str) -> None:
    cluster = EngineCluster(servers=("tls://a",), server_names=("ma-1",), domain="ma")
    said = {"version": "2.15.1-beta", "jetstream": True, "domain": "ma", "server_name": "ma-1"}
    assert [one.rule for one in what_is_wrong(cluster, said | changed)] == ([rule] if rule else [])


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("replicas = 2", "replicas"),
        ("replicas = 3", "write `servers = 3`"),
        ("servers = 3\nstores = ['/a', '/b']", "2 folders for 3"),
        ("servers = 3\nstores = ['/a', '/b', '/a']", "cannot share"),
        ("copies = 3", "copies"),
        ("replicas = [", "not valid TOML"),
        (EXTERNAL.replace("tls://nats-1.example", "nats://nats-1.example"), "is not local and has no TLS"),
        (EXTERNAL.replace("tls://nats-1.example", "tls://me:pass@nats-1.example"), "contains credentials"),
        (EXTERNAL.replace('ca = "/etc/harch/ca.pem"', ""), "name the authority"),
        (EXTERNAL.replace(ACCOUNT, ACCOUNT[:-1] + "A"), "public key of an account"),
        (EXTERNAL.replace('"ma-2", "ma-3"', '"ma-2"'), "3 copies need as many servers"),
        (EXTERNAL.replace("replicas = 3", "replicas = 3\nservers = 3"), "hub's own engine"),
    ],
)
def test_mistakes_are_refused_with_their_place(text: str, what: str) -> None:
    with pytest.raises(HarchError, match=what.replace("[", r"\[")) as found:
        parse_settings(text.encode())
    assert found.value.code == "E0745"
    assert "me:pass" not in str(found.value)


def test_the_account_s_key_is_read_from_a_file_of_its_owner_and_never_shown(tmp_path: Path) -> None:
    path = tmp_path / "account.nk"
    settings = parse_settings(EXTERNAL.replace("/etc/harch/account.nk", str(path)).encode()).external
    assert settings is not None
    for content, mode, what in (
        (None, 0, "cannot be read"),
        (SEED, 0o644, "by others"),
        (new_user_seed(bytes(32)), 0o600, "not an account key"),
    ):
        if content is not None:
            path.write_text(content)
            path.chmod(mode)
        with pytest.raises(HarchError, match=what) as refused:
            settings.account_key()
        assert content is None or content not in str(refused.value) + refused.value.hint
    path.write_text(SEED + "\n")
    path.chmod(0o600)
    key = settings.account_key()
    assert key.account == ACCOUNT
    assert SEED not in repr(key)


def test_a_token_is_signed_by_the_account_and_allows_exactly_what_the_user_may() -> None:
    signer = new_seed(NkeyRole.ACCOUNT, bytes(32))
    user = EngineUser(name="ma-soil-act", public_key=public_key(new_user_seed()), publish=("a.b",), subscribe=())
    now = datetime(2026, 11, 15, tzinfo=UTC)
    token = user_token(AccountKey(signer, ACCOUNT), user, now=now)
    head, body, signature = (_decoded(part) for part in token.split("."))
    raw = base64.b32decode(public_key(signer, NkeyRole.ACCOUNT) + "=" * (-56 % 8))
    Ed25519PublicKey.from_public_bytes(raw[1:33]).verify(signature, token.rpartition(".")[0].encode())
    assert msgspec.json.decode(head) == {"typ": "JWT", "alg": "ed25519-nkey"}
    claims: dict[str, Any] = msgspec.json.decode(body)
    assert claims["nats"]["pub"] == {"allow": ["a.b"]}
    assert claims["nats"]["sub"] == {"deny": [">"]}  # an empty list would allow everything
    assert claims["nats"]["issuer_account"] == ACCOUNT
    assert claims["exp"] - claims["iat"] == LIFE.total_seconds()
    assert is_public_key(claims["iss"], NkeyRole.ACCOUNT)
    assert not is_public_key(claims["iss"], NkeyRole.USER)


def _decoded(part: str) -> bytes:
    return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))
