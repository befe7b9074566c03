"""A body in our own words is read without a translation, and means exactly what the translation makes of it."""

from __future__ import annotations

from random import Random

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from harch.api.dialects.fields import ClientFields, WorkloadBody
from harch.api.dialects.workload_in import read_workload, translate
from harch.api.errors import input_error
from harch.base.errors import HarchError
from harch.testing.samples import random_spec
from harch.workloads.spec import WorkloadSpec
from unit.api.fake_hub import FakeHub

HUB = FakeHub()
FIELDS = sorted(WorkloadBody.__struct_fields__)
# What clients put into fields, right or wrong there.
VALUES = [None, "", "x", "serving", "training", 0, 1, 2.5, -1, 10**30, True, [], ["a"], ["MA", "senegal", "MA"], {}]
VALUES += [{"a": "b"}, {"gpus": 1}, {"gpu_count": 2}, {"allowed_regions": ["MA"]}, {"aware": True}, "8 GPUs in MA"]


def outcome(read, raw: bytes) -> object:  # type: ignore[no-untyped-def]
    try:
        return read(raw)
    except HarchError as error:
        return error.code, error.message, error.hint, error.field


def translated(raw: bytes) -> tuple[WorkloadSpec, dict[str, str]]:
    try:
        body = msgspec.json.decode(raw, type=WorkloadBody)
    except msgspec.DecodeError as error:
        raise input_error(error) from None
    return translate(body, HUB)


def test_our_own_words_are_those_of_a_request_and_of_no_other_dialect() -> None:
    ours = set(WorkloadSpec.__struct_fields__)
    assert ours <= set(WorkloadBody.__struct_fields__)
    assert not ours & set(ClientFields.__struct_fields__)


@settings(max_examples=300, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    changes=st.dictionaries(st.sampled_from(FIELDS), st.sampled_from(VALUES), max_size=2),
)
@example(seed=1, changes={"countries_allowed": ["MA", "MA"]})
@example(seed=1, changes={"countries_allowed": ["XX"]})
@example(seed=1, changes={"labels": None, "tags": {"a": "b"}})
@example(seed=1, changes={"hub_id": "dakar"})
def test_every_body_means_what_its_translation_says(seed: int, changes: dict[str, object]) -> None:
    body = {**msgspec.to_builtins(random_spec(Random(seed), "job")), **changes}
    raw = msgspec.json.encode(body)
    assert outcome(lambda raw: read_workload(raw, HUB), raw) == outcome(translated, raw)


@pytest.mark.parametrize("raw", [b"", b"null", b"{", b"\xff", b'{"name":"\xff"}', b"[" * 10_000])
def test_what_is_no_body_is_refused_alike(raw: bytes) -> None:
    with pytest.raises(HarchError) as caught:
        read_workload(raw, HUB)
    assert caught.value.code in {"E0201", "E0202"}
