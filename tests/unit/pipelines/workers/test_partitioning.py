"""A message is cut by device: nothing is lost, nothing is in two places, and nobody widens where it may be."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from harch.base.rejection import Rejection
from harch.pipelines.sense.edge import Permit
from harch.pipelines.wire.columns import COMPACT, WIDE, Columns, decode_columns
from harch.pipelines.workers.outflow import partition_of, split
from unit.pipelines.workers.batches import batch

_PERMIT = Permit(0b011, 1)


@given(devices=st.lists(st.integers(0, 500), max_size=60), partitions=st.integers(1, 16))
def test_every_event_goes_to_the_partition_of_its_device_with_its_values(devices: list[int], partitions: int) -> None:
    pieces = split(batch(1, devices), COMPACT, partitions, _PERMIT)
    assert not isinstance(pieces, Rejection)
    found: Counter[tuple[int, float, float]] = Counter()
    for piece in pieces:
        columns = decode_columns(COMPACT, piece.header.n, piece.payload)
        assert isinstance(columns, Columns)
        for device, value, other in zip(columns.device, columns.values[0], columns.values[1], strict=True):
            assert int(device) % partitions == piece.partition
            found[(int(device), float(value), float(other))] += 1
    n = len(devices)
    assert found == Counter((device, float(place), float(n + place)) for place, device in enumerate(devices))
    assert [piece.partition for piece in pieces] == sorted({piece.partition for piece in pieces})


def test_the_partition_of_a_device_never_changes() -> None:
    """Its state is where its events go: another rule would lose the open windows of every device."""
    devices = np.arange(100, dtype=np.uint16)
    assert list(partition_of(devices, 7)) == [device % 7 for device in range(100)]


def test_a_sender_may_narrow_where_its_events_may_be_and_never_widen_it() -> None:
    for asked, granted in ((0b001, 0b001), (0b111, 0b011), (0b100, 0)):
        pieces = split(batch(1, [1], mask=asked), COMPACT, 1, _PERMIT)
        assert not isinstance(pieces, Rejection)
        assert pieces[0].header.juris_mask == granted


def test_what_is_no_batch_of_this_schema_is_refused_with_a_reason() -> None:
    for message, schema in ((b"", COMPACT), (batch(1, [1])[:-1], COMPACT), (batch(1, [1]), WIDE)):
        refused = split(message, schema, 4, _PERMIT)
        assert isinstance(refused, Rejection)
        assert refused.detail
