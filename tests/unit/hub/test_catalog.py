"""Does the catalog find what belongs to whom, and does it come back from disk as it was?"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from harch.base.errors import HarchError
from harch.hub.jobs import catalog as catalogs
from harch.hub.jobs.catalog import Catalog
from harch.hub.store import rows
from harch.hub.store.database import Database
from harch.hub.store.records import CatalogEntry
from harch.sovereignty.tags import NOWHERE, DataKind, DataObject

START = datetime(2026, 1, 1, tzinfo=UTC)


def entry(id: str, name: str, tenant: str = "t", *, made_by: str = "", minute: int = 0) -> CatalogEntry:
    data = DataObject(id=id, kind=DataKind.DATASET, name=name, tenant=tenant, tag=NOWHERE, hubs=("dakhla",))
    at = START + timedelta(minutes=minute)
    return CatalogEntry(object=data, created_at=at, updated_at=at, made_by=made_by)


def test_an_object_is_found_by_id_and_by_name_by_its_own_tenant_only() -> None:
    catalog = Catalog()
    catalog.put(entry("data_1", "census"))
    for ref in ("data_1", "census"):
        found = catalog.find(ref, tenant="t")
        assert found is not None
        assert found.object.id == "data_1"
        assert catalog.find(ref, tenant="other") is None
        with pytest.raises(HarchError, match="no data object"):
            catalog.get(ref, tenant="other")
        assert catalog.get(ref, tenant=None).object.id == "data_1"  # operators


def test_a_name_means_the_newest_product_unless_somebody_registered_it() -> None:
    catalog = Catalog()
    catalog.put(entry("data_1", "counts", made_by="wl_1"))
    catalog.put(entry("data_2", "counts", made_by="wl_2"))
    assert catalog.get("counts", tenant="t").object.id == "data_2"
    catalog.put(entry("data_3", "counts"))
    catalog.put(entry("data_4", "counts", made_by="wl_4"))
    assert catalog.get("counts", tenant="t").object.id == "data_3"
    assert [one.object.id for one in catalog.of("t")] == ["data_4", "data_3", "data_2", "data_1"]


def test_the_catalog_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogs, "OBJECTS_MAX", 1)
    catalog = Catalog()
    catalog.check_room()
    catalog.put(entry("data_1", "one"))
    with pytest.raises(HarchError) as caught:
        catalog.check_room()
    assert caught.value.code == "E0401"


def test_what_is_stored_is_restored_in_the_order_in_which_it_came(tmp_path: Path) -> None:
    database = Database(tmp_path / "hub.db")
    entries = [entry("data_9", "counts", made_by="wl_1"), entry("data_1", "counts", made_by="wl_2", minute=1)]
    database.write([rows.save_data(one) for one in entries])
    database.write([rows.save_data(entries[0])])  # again: the same row
    catalog = Catalog()
    catalog.restore(database.data_entries())
    assert list(catalog.entries.values()) == entries
    assert catalog.get("counts", tenant="t").object.id == "data_1"
    database.close()


def test_authorities_are_stored_replaced_and_dropped(tmp_path: Path) -> None:
    database = Database(tmp_path / "hub.db")
    database.write([rows.save_authority("cndp", b"k" * 32, START), rows.save_authority("dpo", b"d" * 32, START)])
    database.write([rows.save_authority("cndp", b"n" * 32, START), rows.drop_authority("dpo")])
    assert database.authorities() == {"cndp": b"n" * 32}
    database.close()
