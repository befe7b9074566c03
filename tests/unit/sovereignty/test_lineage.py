"""Do products inherit what binds their sources, and can everything that came of something be found?"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from harch.base.errors import HarchError
from harch.sovereignty.lineage import ancestors, derive_output, derive_tag, descendants, too_loose, where_is
from harch.sovereignty.tags import NOWHERE, DataKind, DataObject, Tag, is_within

Make = Callable[..., DataObject]


def catalog(*objects: DataObject) -> dict[str, DataObject]:
    return {data.id: data for data in objects}


def output(*reads: DataObject, id: str = "out", declared: Tag | None = None) -> DataObject:
    return derive_output(
        reads, id=id, kind=DataKind.MODEL, name="m", tenant="t", hub="tangier", size_bytes=7, declared=declared
    )


def test_a_product_carries_the_meet_of_what_was_read(moroccan: Tag, west_african: Tag, data: Make) -> None:
    model = output(data(moroccan, id="a"), data(west_african, id="b"))
    assert model.tag is not None
    assert is_within(model.tag, moroccan)
    assert is_within(model.tag, west_african)
    assert model.parents == ("a", "b")
    assert model.hubs == ("tangier",)


def test_a_maker_can_tighten_but_not_loosen(moroccan: Tag, west_african: Tag, data: Make) -> None:
    assert output(data(moroccan), declared=west_african).tag == derive_tag([moroccan, west_african])
    assert output(data(west_african), declared=moroccan).tag == derive_tag([moroccan, west_african])


def test_what_was_made_from_untagged_data_may_go_nowhere(west_african: Tag, data: Make) -> None:
    tag = output(data(west_african), data(None, id="x")).tag
    assert tag is not None
    assert (tag.process_in, tag.rest_in, tag.transit_in) == ((), (), ())
    assert derive_tag([None]) == NOWHERE


def test_a_product_of_nothing_needs_a_declared_tag(moroccan: Tag) -> None:
    with pytest.raises(HarchError) as caught:
        derive_tag([])
    assert caught.value.code == "E0904"
    assert derive_tag([], moroccan) == moroccan


def test_ancestors_descendants_and_copies_are_found(moroccan: Tag, data: Make) -> None:
    objects = catalog(
        data(moroccan, "dakhla", id="raw"),
        data(moroccan, "dakhla", "tangier", id="clean", parents=("raw",)),
        data(moroccan, "tangier", id="model", parents=("clean", "lost")),
        data(moroccan, "casablanca", id="other"),
    )
    assert ancestors(objects, "model") == ("clean", "lost", "raw")
    assert descendants(objects, "raw") == ("clean", "model")
    assert [(copy.object_id, copy.hub, copy.is_derived) for copy in where_is(objects, "raw")] == [
        ("raw", "dakhla", False),
        ("clean", "dakhla", True),
        ("clean", "tangier", True),
        ("model", "tangier", True),
    ]
    with pytest.raises(HarchError) as caught:
        where_is(objects, "ghost")
    assert caught.value.code == "E0906"


def test_a_cycle_in_a_damaged_catalog_ends(moroccan: Tag, data: Make) -> None:
    objects = catalog(data(moroccan, id="a", parents=("b",)), data(moroccan, id="b", parents=("a",)))
    assert ancestors(objects, "a") == ("b",)
    assert descendants(objects, "a") == ("b",)


def test_objects_that_permit_more_than_their_parents_are_named(moroccan: Tag, west_african: Tag, data: Make) -> None:
    objects = catalog(
        data(moroccan, id="raw"),
        data(west_african, id="loose", parents=("raw",)),
        data(moroccan, id="same", parents=("raw",)),
        data(msgspec.structs.replace(moroccan, frameworks=("gdpr", "ma-law-09-08")), id="tight", parents=("raw",)),
        data(moroccan, id="orphan", parents=("lost",)),
        data(None, id="untagged", parents=("raw",)),
    )
    assert too_loose(objects) == ("loose", "orphan")
