"""Histograms whose buckets lead to traces, in both formats that readers accept."""

from __future__ import annotations

from prometheus_client.openmetrics.parser import text_string_to_metric_families

from harch.base.metrics import SERIES_MAX, ExemplarHistogram, Telemetry
from harch.sentinel.collect.exposition import read_page

TRACE = "0af7651916cd43dd8448eb211c80319c"


def telemetry() -> tuple[Telemetry, ExemplarHistogram]:
    waits = ExemplarHistogram("harch_wait_seconds", "How long.", (0.1, 1.0), ("stage",))
    told = Telemetry()
    told.add(waits)
    told.meter.create_counter("harch_things").add(3, {"kind": "a"})
    return told, waits


def test_buckets_are_cumulative_and_carry_their_newest_trace() -> None:
    told, waits = telemetry()
    waits.observe(0.05, ("sense",))
    waits.observe(0.5, ("sense",), trace_id="ff" * 16, at_s=1.0)
    waits.observe(0.6, ("sense",), trace_id=TRACE, at_s=2.0)
    waits.observe(9.0, ("sense",))
    page = told.openmetrics().decode()
    (family,) = [one for one in text_string_to_metric_families(page) if one.name == "harch_wait_seconds"]
    found = {sample.labels.get("le"): sample for sample in family.samples if sample.name.endswith("_bucket")}
    assert [found[bound].value for bound in ("0.1", "1.0", "+Inf")] == [1, 3, 4]
    assert found["1.0"].exemplar is not None
    assert found["1.0"].exemplar.labels == {"trace_id": TRACE}
    assert found["0.1"].exemplar is None


def test_sentinel_reads_the_traces_and_plain_readers_get_none() -> None:
    told, waits = telemetry()
    waits.observe(0.6, ("sense",), trace_id=TRACE, at_s=2.0)
    page = read_page(told.openmetrics().decode(), 5_000, openmetrics=True)
    (exemplar,) = [one for batch in page.samples for one in batch.exemplars]
    assert (dict(exemplar.labels), exemplar.value, exemplar.timestamp) == ({"trace_id": TRACE}, 0.6, 2_000)
    assert TRACE not in told.exposition().decode()


def test_the_number_of_series_has_a_limit() -> None:
    waits = ExemplarHistogram("harch_wait_seconds", "How long.", (0.1,), ("stage",))
    for number in range(SERIES_MAX + 5):
        waits.observe(1.0, (str(number),))
    (family,) = waits.collect()
    assert len({sample.labels["stage"] for sample in family.samples}) == SERIES_MAX
