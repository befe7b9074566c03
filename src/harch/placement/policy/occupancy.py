"""Who holds what? Taking and giving back CPU, memory and devices of a node, refused when the sums would not balance."""

from __future__ import annotations

from harch.placement.policy.compiled import kernel
from harch.placement.policy.shapes import GPU_MILLI, Ints, NodeArrays


@kernel
def change(
    nodes: NodeArrays, node: int, cpu_milli: int, memory_mib: int, gpu_milli: int, devices: Ints, direction: int
) -> bool:
    """Takes or gives back; False, and nothing changed, when anything would fall below 0 or rise above what there is."""
    cpu_after = nodes.cpu_milli_free[node] + direction * cpu_milli
    memory_after = nodes.memory_mib_free[node] + direction * memory_mib
    if not (0 <= cpu_after <= nodes.cpu_milli[node] and 0 <= memory_after <= nodes.memory_mib[node]):
        return False
    for place in range(len(devices)):
        device = devices[place]
        if not 0 <= device < nodes.gpus[node]:
            return False
        if not 0 <= nodes.gpu_milli_free[node, device] + direction * gpu_milli <= GPU_MILLI:
            return False
        for earlier in range(place):
            if devices[earlier] == device:
                return False
    nodes.cpu_milli_free[node] = cpu_after
    nodes.memory_mib_free[node] = memory_after
    for place in range(len(devices)):
        nodes.gpu_milli_free[node, devices[place]] += direction * gpu_milli
    nodes.gpu_milli_free_sum[node] += direction * gpu_milli * len(devices)
    return True
