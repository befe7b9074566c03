"""Are tags read as they were meant, refused when they make no sense, and loosened only under a signature?"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from harch.base.errors import HarchError, InvariantBroken
from harch.sovereignty.declassification import Declassification, canonical_bytes, retag, sign, verify
from harch.sovereignty.jurisdiction_file import shipped_jurisdictions
from harch.sovereignty.tags import (
    NOWHERE,
    Classification,
    DataKind,
    DataObject,
    Tag,
    is_within,
    loosens,
    meet,
    parse_tag,
)

REGISTRY = shipped_jurisdictions()
NOW = datetime(2026, 5, 1, tzinfo=UTC)


def tag(**fields: object) -> Tag:
    return parse_tag({"process_in": ["MA"], "rest_in": ["MA"], **fields}, REGISTRY)


def test_what_is_left_out_is_read_in_the_strictest_way() -> None:
    assert tag() == Tag(
        process_in=("MA",),
        rest_in=("MA",),
        transit_in=("MA",),
        may_cross_borders=False,
        frameworks=(),
        classification=Classification.RESTRICTED,
        encrypt_at_rest=True,
        encrypt_in_transit=True,
        key_in=("MA",),
    )


def test_a_tag_has_one_spelling() -> None:
    one = tag(process_in=["SN", "MA", "morocco"], may_cross_borders=True)
    other = tag(process_in=["ma", "Senegal"], may_cross_borders=True)
    assert one == other
    assert msgspec.json.encode(one) == msgspec.json.encode(other)
    assert msgspec.json.decode(msgspec.json.encode(one), type=Tag) == one
    assert one.transit_in == ("MA", "SN")


@pytest.mark.parametrize(
    ("fields", "code", "says"),
    [
        ({"process_in": ["MRO"]}, "E0901", "tag.process_in[0]: `MRO` is not a country"),
        ({"process_in": ["AU"]}, "E0901", "AFRICAN-UNION"),
        ({"rest_in": ["Morroco"]}, "E0901", "use `MA` for Morocco"),
        ({"frameworks": ["hipaa"]}, "E0905", "tag.frameworks[0]: `hipaa`"),
        ({"rest_in": []}, "E0904", "not be stored anywhere"),
        ({"process_in": ["MA", "SN"]}, "E0904", "names SN, where it may neither be stored nor sent"),
        ({"transit_in": ["MR"]}, "E0904", "names MR, but the data may not cross borders"),
        ({"key_in": ["FR"]}, "E0904", "names FR, where the data may not be stored"),
        ({"key_in": []}, "E0904", "name where its keys may be held"),
        ({"process_in": None}, "E0201", "tag.process_in: is missing"),
        ({"process_in": "MA"}, "E0201", "must be a list"),
        ({"process_in": [1]}, "E0201", "must be a list"),
        ({"may_cross_borders": "yes"}, "E0201", "must be true or false"),
        ({"classification": "secret"}, "E0201", "must be one of public, internal"),
        ({"country": "MA"}, "E0201", "tag.country: unknown field"),
    ],
)
def test_a_bad_tag_is_refused_with_place_and_fix(fields: dict[str, object], code: str, says: str) -> None:
    with pytest.raises(HarchError) as caught:
        tag(**fields)
    assert caught.value.code == code
    assert says in caught.value.message


def test_all_mistakes_of_a_tag_are_told_at_once() -> None:
    with pytest.raises(HarchError) as caught:
        tag(process_in=["XX"], frameworks=["x"], colour="red", classification=7)
    assert len(caught.value.meta["problems"]) == 4  # type: ignore[arg-type]


@pytest.mark.parametrize("raw", [None, 3, "MA", ["MA"], {}])
def test_what_is_no_tag_is_refused(raw: object) -> None:
    with pytest.raises(HarchError) as caught:
        parse_tag(raw, REGISTRY)
    assert caught.value.code == "E0201"


def test_keys_may_be_elsewhere_when_nothing_must_be_encrypted() -> None:
    assert tag(encrypt_at_rest=False, key_in=["FR"]).key_in == ("FR",)


def test_stored_tags_with_unknown_fields_or_bad_codes_are_refused() -> None:
    good = msgspec.to_builtins(tag())
    for wrong in ({**good, "more": 1}, {**good, "process_in": ["Maroc"]}, {**good, "classification": "x"}):
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert(wrong, Tag)
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"process_in": ["MA"]}, Tag)


def test_the_meet_takes_the_stricter_of_everything() -> None:
    one = tag(process_in=["MA", "SN"], may_cross_borders=True, frameworks=["gdpr"], classification="internal")
    other = tag(frameworks=["09-08"], classification="confidential", encrypt_at_rest=False)
    both = meet([one, other])
    assert both.process_in == ("MA",)
    assert both.frameworks == ("gdpr", "ma-law-09-08")
    assert both.classification is Classification.CONFIDENTIAL
    assert not both.may_cross_borders
    assert both.encrypt_at_rest
    assert is_within(both, one)
    assert is_within(both, other)


def test_the_meet_of_nothing_is_refused() -> None:
    with pytest.raises(InvariantBroken):
        meet([])


def test_a_first_tag_loosens_nothing_and_nowhere_is_the_strictest_place() -> None:
    assert not loosens(None, tag())
    assert loosens(NOWHERE, tag())
    assert not loosens(tag(), NOWHERE)
    assert loosens(tag(frameworks=["gdpr"]), NOWHERE)  # a framework that was demanded is demanded no more


# Declassification

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
AUTHORITIES = {"cndp-officer": KEY.public_key().public_bytes_raw()}
OBJECT = DataObject(id="d1", kind=DataKind.DATASET, name="census", tenant="t", tag=tag(), hubs=("dakhla",))
LOOSER = tag(classification="internal")


def statement(**changes: object) -> Declassification:
    plain = Declassification(
        object_id="d1",
        tag_revision=1,
        old=tag(),
        new=LOOSER,
        reason="aggregated, no person can be told apart",
        authority="cndp-officer",
        issued_at=NOW,
        valid_until=NOW + timedelta(days=1),
    )
    return sign(msgspec.structs.replace(plain, **changes), KEY.private_bytes_raw())


def test_a_signed_declassification_loosens_a_tag_once() -> None:
    looser = retag(OBJECT, LOOSER, authorities=AUTHORITIES, now=NOW, declassification=statement())
    assert looser.tag == LOOSER
    assert looser.tag_revision == 2
    tight_again = retag(looser, tag(), authorities={}, now=NOW)
    with pytest.raises(HarchError) as caught:
        retag(tight_again, LOOSER, authorities=AUTHORITIES, now=NOW, declassification=statement())
    assert caught.value.code == "E0909"


def test_loosening_without_a_declassification_is_refused_and_tightening_is_free() -> None:
    with pytest.raises(HarchError) as caught:
        retag(OBJECT, LOOSER, authorities=AUTHORITIES, now=NOW)
    assert caught.value.code == "E0908"
    tighter = tag(frameworks=["gdpr"])
    assert retag(OBJECT, tighter, authorities={}, now=NOW).tag == tighter


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"object_id": "d2"}, "subject"),
        ({"tag_revision": 2}, "subject"),
        ({"old": LOOSER}, "subject"),
        ({"new": tag(classification="public")}, "new_tag"),
        ({"authority": "somebody"}, "authority"),
        ({"reason": " "}, "reason"),
        ({"issued_at": NOW + timedelta(hours=1)}, "validity"),
        ({"valid_until": NOW - timedelta(hours=1)}, "validity"),
    ],
)
def test_a_declassification_holds_for_what_it_says_only(changes: dict[str, object], rule: str) -> None:
    rejection = verify(statement(**changes), OBJECT, LOOSER, AUTHORITIES, now=NOW)
    assert rejection is not None
    assert rejection.rule == f"declassification.{rule}"


def test_any_change_after_signing_breaks_the_signature() -> None:
    good = statement()
    assert verify(good, OBJECT, LOOSER, AUTHORITIES, now=NOW) is None
    for forged in (
        msgspec.structs.replace(good, reason="another"),
        msgspec.structs.replace(good, signature=b""),
        msgspec.structs.replace(good, signature=good.signature[:-1] + bytes([good.signature[-1] ^ 1])),
    ):
        rejection = verify(forged, OBJECT, LOOSER, AUTHORITIES, now=NOW)
        assert rejection is not None
        assert rejection.rule == "declassification.signature"
    assert verify(good, OBJECT, LOOSER, {"cndp-officer": b"no key"}, now=NOW) is not None


def test_a_declassification_survives_json_with_its_signature() -> None:
    read = msgspec.json.decode(msgspec.json.encode(statement()), type=Declassification)
    assert canonical_bytes(read) == canonical_bytes(statement())
    assert verify(read, OBJECT, LOOSER, AUTHORITIES, now=NOW) is None
