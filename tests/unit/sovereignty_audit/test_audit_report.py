"""Where data was in a month: what counts, what does not, and that the page is safe and whole."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from harch.base.errors import HarchError
from harch.sovereignty.audit.chain import ADMITTED, DATA_ADDED, ENDED, LENT, PLACED, REFUSED, Draft, moved
from harch.sovereignty.audit.checkpoints import draft_of, introduce
from harch.sovereignty.audit.report import AuditReport, ReportBuilder, month_bounds, render_html
from harch.sovereignty.audit.verification import ChainVerifier
from unit.sovereignty_audit.chains import Chain

DATA = ("ds_census",)


def at(day: str) -> str:
    return f"2026-{day}T12:00:00.000Z"


def story() -> Chain:
    chain = Chain()
    about = {"authority": "tenant:stats", "policy_version": "national-7", "data": DATA, "countries": ("MA",)}
    chain.add(Draft(PLACED, "wl_old", "allowed", **about), at("09-01"))  # type: ignore[arg-type]
    chain.add(Draft(ENDED, "wl_old", "done", **about), at("09-02"))  # type: ignore[arg-type]
    chain.add(Draft(PLACED, "wl_long", "allowed", **about), at("10-31"))  # type: ignore[arg-type]
    chain.add(Draft(ENDED, "wl_long", "done", **about), at("11-02"))  # type: ignore[arg-type]
    chain.add(Draft(ADMITTED, "wl_new", "allowed", actor="key_1", **about), at("11-03"))  # type: ignore[arg-type]
    chain.add(Draft(PLACED, "wl_new", "allowed", **about), at("11-04"))  # type: ignore[arg-type]
    chain.add(Draft(PLACED, "wl_other", "allowed", countries=("MA",)), at("11-05"))
    chain.add(
        Draft(REFUSED, "wl_no", "refused", data=DATA, details={"reason": "<script>alert(1)</script>"}), at("11-06")
    )
    chain.add(
        moved(
            DATA,
            origin="dakhla",
            destination="tangier",
            countries=("MA", "MA"),
            actor="migration",
            authority="tenant:stats",
            policy_version="national-7",
            bytes_count=1_000,
        ),
        at("11-07"),
    )
    chain.add(Draft(ENDED, "wl_new", "done", **about), at("12-01"))  # type: ignore[arg-type]
    return chain


def quiet(hub: str) -> Chain:
    """A hub that had nothing to do with it."""
    return Chain(hub=hub)


def report_of(
    *chains: Chain,
    ref: str = "ds_census",
    month: str = "2026-11",
    lines: list[bytes] | None = None,
    made_at: str = "2026-12-02T00:00:00.000Z",
    **known: object,
) -> AuditReport:
    builder = ReportBuilder(ref, month, **known)  # type: ignore[arg-type]
    for chain in chains:
        verifier = ChainVerifier()
        for line in chain.lines() if lines is None else lines:
            entry = verifier.take(line)
            if entry is not None:
                builder.take(entry)
        builder.take_outcome(verifier.finish())
    return builder.build(made_at=made_at)


def test_a_month_holds_what_overlaps_it() -> None:
    report = report_of(story(), quiet("tangier"))
    assert [(one.workload, one.until) for one in report.processed] == [("wl_long", at("11-02")), ("wl_new", "")]
    assert report.countries == {"MA": 2}
    assert [(one.origin, one.destination, one.bytes_count) for one in report.moved] == [("dakhla", "tangier", 1_000)]
    assert [(one.subject, one.verdict) for one in report.decisions] == [("wl_new", "allowed"), ("wl_no", "refused")]
    assert "national-7" in report.policy_versions
    assert (report.complete, report.problems) == (True, [])


@pytest.mark.parametrize("ref", ["ds_censsus", "wl_nobody", ""])
def test_what_no_chain_mentions_is_an_error_and_no_all_clear(ref: str) -> None:
    with pytest.raises(HarchError) as unknown:
        report_of(story(), quiet("tangier"), ref=ref)
    assert unknown.value.code == "E0351"
    assert unknown.value.hint


def test_what_was_never_processed_in_a_month_is_reported_as_such() -> None:
    report = report_of(story(), quiet("tangier"), month="2026-08", made_at=at("12-02"))
    assert (report.processed, report.moved) == ([], [])
    september = report_of(story(), quiet("tangier"), ref="wl_new", month="2026-11")
    assert [one.workload for one in september.processed] == ["wl_new"]


def test_a_month_that_has_not_begun_is_refused() -> None:
    with pytest.raises(HarchError) as refused:
        report_of(story(), month="2027-01")
    assert (refused.value.code, "has not begun" in refused.value.message) == ("E0201", True)


def test_a_report_on_a_running_month_says_up_to_when_it_speaks() -> None:
    report = report_of(story(), quiet("tangier"), made_at=at("11-20"))
    assert (report.complete, report.until) == (True, at("11-20"))
    assert at("11-20") in render_html(report)


def test_a_month_before_the_hub_existed_is_not_complete() -> None:
    young = Chain()
    young.linked.clear()
    young.add(draft_of(introduce(young.hub, young.key, by=young.key)), at("11-15"))
    young.add(Draft(PLACED, "wl_1", "allowed", data=DATA, countries=("MA",)), at("11-16"))
    report = report_of(young, month="2026-10")
    assert not report.complete
    assert report.problems == [f"no chain goes back to 2026-10: the first begins at dakhla on {at('11-15')}"]
    assert report_of(young, month="2026-11").complete


def test_a_hub_that_a_chain_names_must_have_been_read() -> None:
    lent = Chain()
    lent.add(Draft(LENT, "wl_1", "allowed", data=DATA, countries=("SN",), details={"hub": "dakar"}), at("11-03"))
    alone = report_of(lent)
    assert (alone.complete, alone.problems) == (False, ["dakar: not read, but the chain of dakhla mentions it"])
    assert "dakar" in render_html(alone)
    assert (read := report_of(lent, quiet("dakar"))).complete
    assert "Complete: the chains of 2 hub(s)" in render_html(read)
    copied = Chain()
    copied.add(Draft(DATA_ADDED, "ds_census", "done", data=DATA, details={"hubs": ("dakhla", "dakar")}), at("11-03"))
    assert not report_of(copied).complete


def test_a_chain_that_does_not_know_what_its_hub_knows_makes_the_report_incomplete() -> None:
    report = report_of(quiet("dakhla"), name="census", known_at=["dakhla"])
    assert report.problems == ["dakhla: has `ds_census`, but its chain does not mention it"]
    assert "census (ds_census)" in render_html(report)


def test_refusals_of_what_never_got_an_id_are_found_by_name() -> None:
    chain = story()
    chain.add(Draft(REFUSED, "census", "refused", details={"reason": "no"}), at("11-09"))
    report = report_of(chain, quiet("tangier"), name="census")
    assert [one.subject for one in report.decisions] == ["wl_new", "wl_no", "census"]


def test_a_workload_can_be_asked_for_by_its_id() -> None:
    report = report_of(story(), ref="wl_other")
    assert [one.workload for one in report.processed] == ["wl_other"]
    assert report.moved == []


def test_a_report_from_a_tampered_chain_says_so() -> None:
    chain = story()
    lines = chain.lines()
    del lines[6]
    report = report_of(chain, lines=lines)
    assert not report.complete
    assert "removed" in report.chains[0].problem
    assert "not a proof" in render_html(report)


def test_a_hub_that_did_not_answer_makes_the_report_incomplete() -> None:
    builder = ReportBuilder("ds_census", "2026-11", known_at=["dakhla"])
    assert not builder.build(made_at=at("12-02")).complete
    builder.take_missing("dakar", "no hub answers")
    report = builder.build(made_at=at("12-02"))
    assert not report.complete
    assert "dakar" in render_html(report)
    unknown = ReportBuilder("ds_census", "2026-11")
    unknown.take_missing("dakar", "no hub answers")
    with pytest.raises(HarchError, match="dakar: not read: no hub answers"):
        unknown.build(made_at=at("12-02"))


@pytest.mark.parametrize("month", ["2026-13", "2026-1", "november", "2026-11-01", "0000-01", "9999-12", ""])
def test_what_is_not_a_month_is_refused(month: str) -> None:
    with pytest.raises(HarchError) as refused:
        month_bounds(month)
    assert refused.value.code == "E0201"


def test_december_ends_with_the_year() -> None:
    assert month_bounds("2026-12") == ("2026-12-01T00:00:00.000Z", "2027-01-01T00:00:00.000Z")


def test_the_page_loads_nothing_runs_nothing_and_is_well_formed() -> None:
    page = render_html(report_of(story()))
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert not re.search(r"(src|href)\s*=|url\(|@import|https?:", page)
    assert "Morocco" in page

    class Balanced(HTMLParser):
        def __init__(self) -> None:
            super().__init__()
            self.open: list[str] = []

        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            if tag != "meta":
                self.open.append(tag)

        def handle_endtag(self, tag: str) -> None:
            assert self.open.pop() == tag

    parser = Balanced()
    parser.feed(page)
    assert parser.open == []
