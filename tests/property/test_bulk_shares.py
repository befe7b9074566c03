"""Is a link shared by weight, never exceeded, and never left idle while anybody could use it?"""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harch.federation.bulk.limits import UNLIMITED, WEIGHTS, Flow, TransferClass, shares

classes = st.sampled_from(list(TransferClass))
limits = st.one_of(st.just(UNLIMITED), st.floats(0, 1e9))


@st.composite
def flows(draw: st.DrawFn) -> list[Flow]:
    """Connections of up to five transfers; those of one transfer are of one class."""
    transfers = {bytes([number]): draw(classes) for number in range(draw(st.integers(1, 5)))}
    names = draw(st.lists(st.sampled_from(list(transfers)), min_size=1, max_size=12))
    return [Flow(name, transfers[name], draw(limits)) for name in names]


@given(flows(), st.floats(1, 1e10))
def test_a_link_is_filled_exactly_and_nobody_gets_more_than_it_can_use(some: list[Flow], bytes_per_s: float) -> None:
    given_ = shares(some, bytes_per_s)
    assert len(given_) == len(some)
    assert all(0 <= share <= flow.bytes_per_s_max for share, flow in zip(given_, some, strict=True))
    wanted = math.fsum(flow.bytes_per_s_max for flow in some)
    assert math.fsum(given_) == pytest.approx(min(wanted, bytes_per_s), rel=1e-6)


@given(flows(), st.floats(1, 1e10))
def test_whoever_gets_less_than_it_can_use_gets_its_weight_at_least(some: list[Flow], bytes_per_s: float) -> None:
    connections = {flow.transfer: sum(other.transfer == flow.transfer for other in some) for flow in some}
    weights = [WEIGHTS[flow.transfer_class] / connections[flow.transfer] for flow in some]
    for flow, weight, share in zip(some, weights, shares(some, bytes_per_s), strict=True):
        fair = bytes_per_s * weight / math.fsum(weights)
        assert share >= min(flow.bytes_per_s_max, fair) * (1 - 1e-9)


@given(classes, st.integers(1, 10), st.integers(1, 10), st.floats(1, 1e10))
def test_more_connections_bring_a_transfer_nothing(
    transfer_class: TransferClass, one: int, other: int, bytes_per_s: float
) -> None:
    some = [Flow(b"a", transfer_class)] * one + [Flow(b"b", transfer_class)] * other
    given_ = shares(some, bytes_per_s)
    assert math.fsum(given_[:one]) == pytest.approx(math.fsum(given_[one:]))
