"""Do all hubs of one machine get identities, and keep them?"""

from __future__ import annotations

import shutil
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from harch.base.config import Home
from harch.base.errors import HarchError
from harch.federation.identity.authority import FederationAuthority, found, make_federation
from harch.federation.identity.folder import authority_holders, identity_folder
from harch.federation.identity.hub_identity import HubIdentity
from harch.federation.identity.members import Address, HubName

NOW = datetime(2026, 11, 1, 12, tzinfo=UTC)
HUBS = {"dakhla": ("127.0.0.1", 7721), "tangier": ("127.0.0.1", 7722), "dakar": ("127.0.0.1", 7723)}


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


def keys(identities: dict[str, HubIdentity]) -> dict[str, bytes]:
    return {hub_id: identity.state_key.private_bytes_raw() for hub_id, identity in identities.items()}


def test_every_hub_knows_every_other_by_a_signed_record(home: Home) -> None:
    identities = make_federation(home, HUBS, now=NOW)
    for hub_id, identity in identities.items():
        assert identity.hub_id == hub_id
        assert {member.hub_id: tuple(member.address) for member in identity.roster} == HUBS
        for other in identities.values():
            known = identity.roster.get(other.hub_id)
            assert known is not None
            known.public_key.verify(other.state_key.sign(b"state"), b"state")
    assert authority_holders(home) == ["dakhla"]


def test_a_second_start_keeps_everything(home: Home) -> None:
    first = make_federation(home, HUBS, now=NOW)
    files = {path: path.read_bytes() for path in home.root.rglob("*") if path.is_file()}
    second = make_federation(home, HUBS, now=NOW + timedelta(hours=1))
    assert keys(second) == keys(first)
    assert {path: path.read_bytes() for path in home.root.rglob("*") if path.is_file()} == files


def test_a_start_after_a_long_time_renews_certificates_and_keeps_keys(home: Home) -> None:
    first = make_federation(home, HUBS, now=NOW)
    later = NOW + timedelta(days=60)
    second = make_federation(home, HUBS, now=later)
    assert keys(second) == keys(first)
    assert all(identity.certificate.is_valid(later) for identity in second.values())


def test_new_hubs_and_new_ports_become_known_to_all(home: Home) -> None:
    make_federation(home, {name: HUBS[name] for name in ("dakhla", "tangier")}, now=NOW)
    moved = {**HUBS, "tangier": ("127.0.0.1", 8722)}
    identities = make_federation(home, moved, now=NOW + timedelta(seconds=1))
    for identity in identities.values():
        assert {member.hub_id: tuple(member.address) for member in identity.roster} == moved


def test_secrets_are_readable_by_their_owner_only(home: Home) -> None:
    make_federation(home, HUBS, now=NOW)
    for path in home.root.glob("*/federation/**/*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_a_retired_hub_stays_retired_over_restarts(home: Home) -> None:
    identities = make_federation(home, HUBS, now=NOW)
    FederationAuthority(identities["dakhla"]).retire("dakar", now=NOW)
    again = make_federation(home, HUBS, now=NOW + timedelta(days=2))
    assert all(identity.roster.refusal("dakar") == "dakar has been retired" for identity in again.values())
    assert again["dakar"].certificate == identities["dakar"].certificate


def test_a_start_that_was_cut_short_is_completed(home: Home) -> None:
    first = make_federation(home, HUBS, now=NOW)
    for name in ("hub.pem", "members.json"):
        (identity_folder(home, "dakar").path / name).unlink()
    second = make_federation(home, HUBS, now=NOW)
    assert keys(second) == keys(first)
    assert second["dakar"].roster.refusal("dakhla") == ""


def test_hubs_of_another_federation_are_not_touched(home: Home) -> None:
    elsewhere = Home(home.root / "elsewhere")
    make_federation(elsewhere, HUBS, now=NOW)
    (home.root / "dakar").mkdir()
    (elsewhere.root / "dakar").rename(home.root / "dakar")
    for hubs in ({"dakar": HUBS["dakar"]}, HUBS):
        with pytest.raises(HarchError) as caught:
            make_federation(home, hubs, now=NOW)
        assert caught.value.code == "E0114"


def test_a_federation_is_founded_once_per_hub(home: Home) -> None:
    folder = identity_folder(home, "dakar")
    found(folder, HubName("gpu.example.org", "dakar"), Address("10.0.0.1", 7721), now=NOW)
    with pytest.raises(HarchError) as caught:
        found(folder, HubName("gpu.example.org", "dakar"), Address("10.0.0.1", 7721), now=NOW)
    assert caught.value.code == "E0114"


def test_without_an_identity_the_error_says_what_to_do(home: Home) -> None:
    with pytest.raises(HarchError) as caught:
        HubIdentity(identity_folder(home, "dakar"))
    assert caught.value.code == "E0113"
    assert "harch hub init" in caught.value.hint


def test_a_broken_key_file_is_named_and_not_shown(home: Home) -> None:
    folder = make_federation(home, HUBS, now=NOW)["dakar"].folder
    (folder.path / "state.key").write_text("geheim")
    with pytest.raises(HarchError) as caught:
        HubIdentity(folder)
    assert caught.value.code == "E1005"
    assert "state.key" in caught.value.message
    assert "geheim" not in str(caught.value)


def test_a_key_that_the_record_does_not_name_is_noticed(home: Home) -> None:
    identities = make_federation(home, HUBS, now=NOW)
    taken = (identities["tangier"].folder.path / "state.key").read_bytes()
    (identities["dakar"].folder.path / "state.key").write_bytes(taken)
    with pytest.raises(HarchError) as caught:
        HubIdentity(identities["dakar"].folder)
    assert caught.value.code == "E0111"


def test_the_authority_certifies_members_only_and_does_not_retire_itself(home: Home) -> None:
    identities = make_federation(home, HUBS, now=NOW)
    authority = FederationAuthority(identities["dakhla"])
    request = identities["dakar"].request_certificate()
    for hub_id in ("abidjan", "dakar"):
        if hub_id == "dakar":
            authority.retire("dakar", now=NOW)
        with pytest.raises(HarchError) as caught:
            authority.certify(hub_id, request, now=NOW)
        assert caught.value.code == "E0111"
    for hub_id in ("dakhla", "abidjan"):
        with pytest.raises(HarchError):
            authority.retire(hub_id, now=NOW)
    with pytest.raises(HarchError) as caught:
        FederationAuthority(identities["tangier"])
    assert caught.value.code == "E0113"


def test_the_key_of_another_authority_is_noticed_before_it_signs_anything(home: Home) -> None:
    ours = make_federation(home, HUBS, now=NOW)["dakar"]
    theirs = make_federation(Home(home.root / "elsewhere"), HUBS, now=NOW)["dakhla"]
    (theirs.folder.path / "authority").rename(ours.folder.path / "authority")
    with pytest.raises(HarchError) as caught:
        FederationAuthority(ours)
    assert caught.value.code == "E1005"


def test_a_copy_of_the_authority_signs_at_another_hub_too(home: Home) -> None:
    identities = make_federation(home, HUBS, now=NOW)
    shutil.copytree(identities["dakhla"].folder.path / "authority", identities["dakar"].folder.path / "authority")
    second = FederationAuthority(identities["dakar"])
    identities["tangier"].install(second.certify("tangier", identities["tangier"].request_certificate(), now=NOW))
    assert identities["dakar"].features == ("authority",)


def test_only_the_certificate_that_was_asked_for_is_installed(home: Home) -> None:
    identities = make_federation(home, HUBS, now=NOW)
    authority, dakar = FederationAuthority(identities["dakhla"]), identities["dakar"]
    stale = authority.certify("dakar", dakar.request_certificate(), now=NOW)
    wanted = authority.certify("dakar", dakar.request_certificate(), now=NOW)
    before = dakar.certificate
    with pytest.raises(HarchError) as caught:
        dakar.install(stale)
    assert caught.value.code == "E0110"
    assert dakar.certificate == before
    dakar.install(wanted)
    assert dakar.generation == 1
    assert HubIdentity(dakar.folder).certificate == dakar.certificate
