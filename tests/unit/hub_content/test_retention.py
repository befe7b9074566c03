"""What need no longer be kept? The plan, over everything that is held."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from harch.hub.content.retention import UNKNOWN_KEPT, ContentHold, RetentionPlan, data_holder, plan_retention
from harch.hub.store.records import CatalogEntry
from harch.sovereignty.tags import DataKind, DataObject

NOW = datetime(2026, 1, 10, tzinfo=UTC)
DIGEST = "ab" * 32


def entry(data_id: str, *, home: str = "", expires_at: datetime | None = None, content: str = DIGEST) -> CatalogEntry:
    data = DataObject(id=data_id, kind=DataKind.CODE, name=data_id, tenant="t", tag=None)
    return CatalogEntry(object=data, created_at=NOW, updated_at=NOW, content=content, home=home, expires_at=expires_at)


def hold(data_id: str, *, since: datetime = NOW - timedelta(days=5)) -> ContentHold:
    return ContentHold("t", data_holder(data_id), DIGEST, since)


def plan(
    *entries: CatalogEntry,
    holds: tuple[ContentHold, ...] = (),
    readers: tuple[str, ...] = (),
    may_rest: bool = True,
) -> RetentionPlan:
    return plan_retention(
        entries={one.object.id: one for one in entries},
        holds=holds,
        has_readers=lambda data_id: data_id in readers,
        may_rest=lambda one: may_rest,
        borrowed_kept=timedelta(hours=24),
        now=NOW,
    )


def test_what_is_current_is_left_alone() -> None:
    kept = entry("a", expires_at=NOW + timedelta(seconds=1))
    assert plan(kept, entry("b"), holds=(hold("a"), hold("b"))) == RetentionPlan()


def test_data_whose_time_is_over_expires_and_is_released() -> None:
    over = entry("a", expires_at=NOW)
    assert plan(over, holds=(hold("a"),)) == RetentionPlan(expired=("a",), released=(hold("a"),))


def test_nothing_that_unfinished_work_reads_goes_whatever_its_age_or_tag() -> None:
    over = entry("a", expires_at=NOW - timedelta(days=1), home="")
    assert plan(over, holds=(hold("a"),), readers=("a",), may_rest=False) == RetentionPlan()


def test_what_may_not_rest_here_goes_as_soon_as_nothing_reads_it() -> None:
    assert plan(entry("a"), holds=(hold("a"),), may_rest=False) == RetentionPlan(released=(hold("a"),), departed=("a",))


def test_content_of_other_hubs_work_stays_for_a_while_and_its_results_until_their_own_end() -> None:
    recent, old = hold("a", since=NOW - timedelta(hours=23)), hold("a", since=NOW - timedelta(hours=24))
    borrowed = entry("a", home="dakar")
    assert plan(borrowed, holds=(recent,)) == RetentionPlan()
    assert plan(borrowed, holds=(old,)) == RetentionPlan(released=(old,), departed=("a",))
    result = entry("a", home="dakar", expires_at=NOW + timedelta(days=1))
    assert plan(result, holds=(old,)) == RetentionPlan()
    ended = entry("a", home="dakar", expires_at=NOW)
    assert plan(ended, holds=(old,)).released == (old,)
    assert plan(ended, holds=(old,)).expired == ()  # the catalog of its home decides about the object itself


def test_a_hold_without_an_object_is_released_but_not_at_once() -> None:
    fresh, stale = hold("x", since=NOW), hold("x", since=NOW - UNKNOWN_KEPT)
    assert plan(holds=(fresh,)) == RetentionPlan()
    assert plan(holds=(stale,)) == RetentionPlan(released=(stale,))


def test_holds_of_another_kind_end_by_their_own_time() -> None:
    snapshot = ContentHold("t", "snapshot:snap_1", DIGEST, NOW - timedelta(days=30))
    assert plan(holds=(snapshot,)) == RetentionPlan()


def test_data_that_consists_of_no_files_never_expires() -> None:
    assert plan(entry("a", content="", expires_at=NOW)) == RetentionPlan()
