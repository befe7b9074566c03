"""Which nodes and requests does the benchmark use? The public trace files by name, and two fleets of 10,000 GPUs."""

from __future__ import annotations

from pathlib import Path

from harch.placement.policy.shapes import ANY_MODEL, NodeShape, ShapeRequest
from harch.simulate.placement import NodeList, read_nodes, read_requests

NODES_FILE = "openb_node_list_gpu_node.csv"
PUBLISHED_FILE = "fgd_expected_allo_discrete.csv"
LARGE_NODES_FILE = "alibaba2026_spot_node_info_df.csv"
TRACES = ("default", "cpu100", "gpushare40", "multigpu20", "gpuspec10")
HUBS = 20


def trace_file(trace: str) -> str:
    return f"openb_pod_list_{trace}.csv"


def large_nodes(data: Path) -> tuple[NodeList, list[ShapeRequest]]:
    """The 2026 node list with the requests of openb default: it names neither their models nor any memory."""
    openb = read_nodes(data / NODES_FILE)
    requests = read_requests(data / trace_file("default"), openb.models)
    trace = [request._replace(models=ANY_MODEL, memory_mib=0) for request in requests]
    return read_nodes(data / LARGE_NODES_FILE), trace


def synthetic_hubs(data: Path) -> tuple[NodeList, list[ShapeRequest]]:
    """20 hubs of 500 GPUs, three models; requests of openb default with their memory, without their models."""
    openb = read_nodes(data / NODES_FILE)
    trace = [
        request._replace(models=ANY_MODEL) for request in read_requests(data / trace_file("default"), openb.models)
    ]
    hub = [NodeShape(128_000, 1_048_576, 8, 0)] * 30 + [NodeShape(96_000, 524_288, 8, 1)] * 20
    hub += [NodeShape(64_000, 262_144, 4, 1)] * 10 + [NodeShape(48_000, 196_608, 2, 2)] * 30
    shapes = tuple(hub * HUBS)
    return NodeList(tuple(f"n{index}" for index in range(len(shapes))), shapes, ("h100", "a100", "card")), trace
