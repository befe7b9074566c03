"""What proves that a hub is that hub? Certificates, names and member records."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from harch.base.errors import HarchError
from harch.federation.identity.certificates import (
    CERTIFICATE_LIFE,
    authority_key,
    is_signed_by,
    issue,
    make_authority,
    make_request,
    read_certificate,
)
from harch.federation.identity.members import (
    Address,
    HubName,
    Member,
    Roster,
    SignedMember,
    hub_name,
    parse_uri,
    sign_member,
)

NOW = datetime(2026, 11, 1, 12, tzinfo=UTC)
DAKAR = HubName("gpu.example.org", "dakar")
KEY = Ed25519PrivateKey.generate()
AUTHORITY = make_authority("gpu.example.org", KEY, now=NOW)


def certificate(name: HubName = DAKAR, *, key: Ed25519PrivateKey = KEY) -> bytes:
    return issue(name, make_request(name, Ed25519PrivateKey.generate()), authority=AUTHORITY, key=key, now=NOW)


def member(hub_id: str = "dakar", *, serial: int = 1, domain: str = "gpu.example.org", retired: bool = False) -> Member:
    key = Ed25519PrivateKey.from_private_bytes(hub_id.encode().ljust(32, b"-"))
    return Member(
        trust_domain=domain,
        hub_id=hub_id,
        serial=serial,
        state_key=key.public_key().public_bytes_raw(),
        address=Address("10.0.0.1", 7721),
        retired=retired,
    )


def roster(*records: SignedMember) -> Roster:
    return Roster("gpu.example.org", KEY.public_key(), records)


def test_a_name_survives_its_way_through_a_certificate() -> None:
    read = read_certificate(certificate())
    assert read.name == DAKAR
    assert read.name.uri == "spiffe://gpu.example.org/hub/dakar"
    assert read.not_after == NOW + CERTIFICATE_LIFE
    assert is_signed_by(read.der, AUTHORITY)


@pytest.mark.parametrize(
    "uri",
    [
        "https://gpu.example.org/hub/dakar",
        "spiffe://gpu.example.org/hub/",
        "spiffe://gpu.example.org/hub/dakar/x",
        "spiffe://gpu.example.org/hub/Dakar",
        "spiffe:///hub/dakar",
        "spiffe://gpu.example.org/agent/dakar",
        "spiffe://gpu.example.org/hub/dakar\n",
    ],
)
def test_what_is_no_name_of_a_hub_is_not_taken_for_one(uri: str) -> None:
    assert parse_uri(uri) is None


@pytest.mark.parametrize(("domain", "hub"), [("", "dakar"), ("a/b", "dakar"), ("ok", ""), ("ok", "../x"), ("ok", "A")])
def test_names_that_could_mislead_are_refused(domain: str, hub: str) -> None:
    with pytest.raises(HarchError) as caught:
        hub_name(domain, hub)
    assert caught.value.code == "E0201"


def test_a_certificate_is_due_after_a_day_and_good_for_seven() -> None:
    read = read_certificate(certificate())
    assert not read.is_due(NOW + timedelta(hours=23))
    assert read.is_due(NOW + timedelta(hours=25))
    assert read.is_valid(NOW + timedelta(days=6, hours=23))
    assert not read.is_valid(NOW + timedelta(days=7))
    assert read.is_due(NOW - timedelta(days=1))


def test_the_name_comes_from_the_authority_and_not_from_the_request() -> None:
    request = make_request(HubName("gpu.example.org", "abidjan"), Ed25519PrivateKey.generate())
    assert read_certificate(issue(DAKAR, request, authority=AUTHORITY, key=KEY, now=NOW)).name == DAKAR


def test_a_request_that_is_not_signed_by_its_own_key_is_refused() -> None:
    request = bytearray(make_request(DAKAR, Ed25519PrivateKey.generate()))
    request[-1] ^= 1
    for bad in (bytes(request), b"", b"nonsense"):
        with pytest.raises(HarchError) as caught:
            issue(DAKAR, bad, authority=AUTHORITY, key=KEY, now=NOW)
        assert caught.value.code == "E0201"


def test_a_certificate_of_another_authority_is_not_ours() -> None:
    assert not is_signed_by(certificate(key=Ed25519PrivateKey.generate()), AUTHORITY)
    other = make_authority("gpu.example.org", Ed25519PrivateKey.generate(), now=NOW)
    assert not is_signed_by(certificate(), other)
    assert not is_signed_by(b"nonsense", AUTHORITY)


@pytest.mark.parametrize("names", [[], ["dakar", "abidjan"]])
def test_a_certificate_that_names_no_hub_or_two_names_nobody(names: list[str]) -> None:
    key = Ed25519PrivateKey.generate()
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "dakar")])
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(NOW)
        .not_valid_after(NOW + timedelta(days=1))
    )
    if names:
        uris = [x509.UniformResourceIdentifier(HubName("d", name).uri) for name in names]
        builder = builder.add_extension(x509.SubjectAlternativeName(uris), critical=False)
    with pytest.raises(HarchError) as caught:
        read_certificate(builder.sign(key, None).public_bytes(Encoding.DER))
    assert caught.value.code == "E0110"


def test_the_authority_is_marked_as_one_that_can_sign_no_further_authority() -> None:
    parsed = x509.load_der_x509_certificate(AUTHORITY)
    constraints = parsed.extensions.get_extension_for_class(x509.BasicConstraints).value
    assert (constraints.ca, constraints.path_length) == (True, 0)
    assert authority_key(AUTHORITY) == KEY.public_key()
    leaf = x509.load_der_x509_certificate(certificate())
    assert not leaf.extensions.get_extension_for_class(x509.BasicConstraints).value.ca


def test_members_are_known_by_the_newest_record() -> None:
    known = roster(sign_member(member(serial=5), KEY))
    assert known.merge([sign_member(member(serial=5), KEY)]) == []
    assert known.merge([sign_member(member(serial=7, retired=True), KEY)]) == [member(serial=7, retired=True)]
    assert known.refusal("dakar") == "dakar has been retired"
    known.merge([sign_member(member(serial=6), KEY)])
    assert known.refusal("dakar") == "dakar has been retired", "an older record cannot bring it back"
    assert known.refusal("abidjan") == "abidjan is not known as a member"


def test_a_record_counts_by_its_signature_and_not_by_who_brings_it() -> None:
    good = sign_member(member(), KEY)
    forged = sign_member(member(), Ed25519PrivateKey.generate())
    edited = SignedMember(good.body.replace(b"dakar", b"dakax"), good.signature)
    foreign = sign_member(member(domain="other.example"), KEY)
    short_key = sign_member(msgspec.structs.replace(member(), state_key=b"short"), KEY)
    nonsense = SignedMember(b"\xc1", KEY.sign(b"\xc1"))
    for bad in (forged, edited, foreign, short_key, nonsense):
        with pytest.raises(HarchError) as caught:
            roster().merge([bad])
        assert caught.value.code == "E0111"


def test_a_state_key_from_a_record_checks_what_the_hub_has_signed() -> None:
    known = roster(sign_member(member(), KEY)).get("dakar")
    assert known is not None
    signer = Ed25519PrivateKey.from_private_bytes(b"dakar".ljust(32, b"-"))
    known.public_key.verify(signer.sign(b"state"), b"state")
