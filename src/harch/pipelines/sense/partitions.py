"""Which partition is a device in, and how does one source feed several? One edge per partition behind one face.

A device is always in the same partition, so its windows are whole wherever they are computed. Each partition sees a
source of its own number, with a sequence of its own. Ready-made batches are not taken apart: all batches of one source
go to one partition.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from harch.pipelines.sense.edge import Edge, Permit, Prepared, source_number
from harch.pipelines.sense.quarantine import Quarantine
from harch.pipelines.sense.settings import SenseSettings
from harch.pipelines.wire.rows import Rows


def partition_of_device(device: int, partitions: int) -> int:
    """By the device's number, which never changes; neighbours go to different partitions."""
    return device % partitions


def partition_of_source(source: int, partitions: int) -> int:
    """Where the ready-made batches of a source go."""
    return source % partitions


class Edges:
    """A source with an edge per partition. Prepares and commits like a single `Edge`.

    `seqs` are the last numbers that were used, per partition, where a source goes on after a restart.
    """

    def __init__(
        self,
        name: str,
        settings: SenseSettings,
        permit: Permit,
        *,
        disorder_s: float,
        priority: int,
        seqs: Mapping[int, int] | None = None,
    ) -> None:
        self.source = source_number(name)
        self._edges = tuple(
            Edge(
                f"{name}/{partition}",
                settings,
                permit,
                disorder_s=disorder_s,
                priority=priority,
                seq=(seqs or {}).get(partition, 0),
            )
            for partition in range(settings.partitions)
        )
        self.partitions = {edge.source: partition for partition, edge in enumerate(self._edges)}

    @property
    def edges(self) -> tuple[Edge, ...]:
        return self._edges

    def permit(self, permit: Permit) -> None:
        """From the next batch on."""
        for edge in self._edges:
            edge.permit = permit

    def prepare(self, rows: Rows, now_ns: int) -> Prepared:
        belongs = rows.device % np.uint32(len(self._edges))
        told = replace(rows, **_picked(rows, np.zeros(0, np.int64)))  # what was rejected before, told once
        parts = [self._edges[0].prepare(told, now_ns)]
        for partition, edge in enumerate(self._edges):
            picks = np.flatnonzero(belongs == partition)
            part = replace(rows, rejected=(), rejected_by_reason={}, **_picked(rows, picks))
            parts.append(edge.prepare(part, now_ns))
        return Prepared(
            messages=tuple(message for part in parts for message in part.messages),
            events=sum(part.events for part in parts),
            newest_ns=max(part.newest_ns for part in parts),
            event_ids=(),
            aside=tuple(example for part in parts for example in part.aside),
            parts=tuple(parts[1:]),
        )

    def commit(self, prepared: Prepared, quarantine: Quarantine) -> None:
        for edge, part in zip(self._edges, prepared.parts, strict=True):
            edge.commit(replace(part, aside=()), quarantine)
        for example, count in prepared.aside:
            quarantine.add(example, count)

    def ends(self) -> list[bytes]:
        return [message for edge in self._edges for message in edge.ends()]


def _picked(rows: Rows, picks: NDArray[np.int64]) -> dict[str, object]:
    return {
        "times_ns": rows.times_ns[picks],
        "device": rows.device[picks],
        "metric": rows.metric[picks],
        "flag": rows.flag[picks],
        "values": rows.values[:, picks],
        "indexes": rows.indexes[picks],
        "event_ids": tuple(rows.event_ids[place] for place in picks) if rows.event_ids else (),
    }
