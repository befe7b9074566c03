"""What goes over the wire: clients of other versions read it, and what hubs narrow is encoded as what they narrow."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
import pytest
from msgspec import Struct

from harch.api.dialects.hubs import HubView
from harch.api.dialects.workload_out import FederationPage, WorkloadView
from harch.api.routes import health, keys
from harch.placement.explanation import Explanation
from harch.sdk import types
from harch.sovereignty.audit.checkpoints import SignedCheckpoint
from harch.wire import audit, explanations, hubs, workloads
from harch.wire import keys as wire_keys
from harch.wire.carbon import CarbonChoice
from harch.workloads.lifecycle import ExitReason, TaskEnd

AT = datetime(2026, 3, 1, 8, tzinfo=UTC)
NARROWED: list[tuple[type[Struct], type[Struct]]] = [
    (WorkloadView, workloads.Workload),
    (TaskEnd, workloads.TaskEnd),
    (FederationPage, workloads.FederatedPage),
    (types.FederationPage, workloads.FederatedPage),
    (HubView, hubs.Hub),
    (types.Hub, hubs.Hub),
    (health.Health, hubs.Health),
    (keys.KeyView, wire_keys.KeyView),
    (keys.Identity, wire_keys.Identity),
    (Explanation, explanations.Explanation),
    (SignedCheckpoint, audit.SignedCheckpoint),
]


@pytest.mark.parametrize(("narrow", "wide"), NARROWED, ids=lambda kind: f"{kind.__module__}.{kind.__name__}")
def test_a_narrowed_struct_has_the_fields_of_the_wire_in_their_order(narrow: type[Struct], wide: type[Struct]) -> None:
    assert narrow.__struct_fields__ == wide.__struct_fields__
    assert narrow.__struct_encode_fields__ == wide.__struct_encode_fields__
    assert narrow.__struct_config__.omit_defaults == wide.__struct_config__.omit_defaults
    assert narrow.__struct_config__.gc == wide.__struct_config__.gc


def test_a_client_reads_words_and_fields_that_a_newer_hub_has_added() -> None:
    answer = {
        "id": "wl_1",
        "name": "trainer",
        "status": "hibernating",
        "metadata": {"id": "wl_1", "name": "trainer", "created_at": AT, "colour": "red"},
        "task_ends": [{"rank": 0, "reason": "evaporated", "exit_code": 3, "where": "here"}],
    }
    workload = msgspec.json.decode(msgspec.json.encode(answer), type=types.Workload)
    assert (workload.status, workload.task_ends[0].reason, workload.is_final) == ("hibernating", "evaporated", False)


def test_a_client_has_defaults_for_what_an_older_hub_did_not_send() -> None:
    hub = msgspec.json.decode(b'{"id": "dakar", "name": "Dakar"}', type=types.Hub)
    assert (hub.capacity, hub.standing, hub.summary) == (types.HubCapacity(), "", None)


def test_what_a_hub_stores_is_encoded_as_ever() -> None:
    end = TaskEnd(rank=1, reason=ExitReason.EXITED, exit_code=0, ended_at=AT)
    stored = b'{"rank":1,"reason":"exited","exit_code":0,"signal":null,"detail":"","ended_at":"2026-03-01T08:00:00Z"}'
    assert msgspec.json.encode(end) == stored
    assert msgspec.json.decode(stored, type=TaskEnd) == end
    choice = CarbonChoice(action="wait", decided_at=AT, hub_id="dakhla", held=True)
    stored = b'{"action":"wait","decided_at":"2026-03-01T08:00:00Z","hub_id":"dakhla","held":true}'
    assert msgspec.json.encode(choice) == stored


def test_a_hub_refuses_a_word_that_is_not_one_of_its_own() -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(b'{"rank": 0, "reason": "evaporated"}', type=TaskEnd)
