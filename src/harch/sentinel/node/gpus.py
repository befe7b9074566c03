"""How are the GPUs? Load, memory, temperature, power and errors as the driver's library (NVML) tells them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, Protocol

from harch.sentinel.model.labels import Labels
from harch.sentinel.node.sensors import SensorReading, series

_MILLI = 1000.0


class Sensors(Protocol):
    """Reads some figures of the machine; leaves out what it cannot read."""

    def read(self) -> Iterator[SensorReading]: ...


class NvidiaGpus:
    """Every GPU that the NVIDIA driver shows. `nvml` is the module `pynvml`, or a double with its functions."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        nvml.nvmlInit()
        self._gpus = []
        for index in range(nvml.nvmlDeviceGetCount()):
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            name = _text(nvml.nvmlDeviceGetName(handle))
            pairs = (
                ("job", "harchos-gpu"),
                ("deviceName", name),
                ("deviceIndex", str(index)),
                ("uuid", _text(nvml.nvmlDeviceGetUUID(handle))),
            )
            self._gpus.append((handle, pairs))

    def read(self) -> Iterator[SensorReading]:
        for handle, pairs in self._gpus:
            for sensor in self._sensors():
                try:
                    measured = sensor(handle)
                except self._nvml.NVMLError:
                    continue  # not every card has every sensor
                for name, value in measured.items():
                    yield SensorReading(_of_gpu(name, pairs), value)

    def close(self) -> None:
        self._nvml.nvmlShutdown()

    def _sensors(self) -> Iterator[Callable[[Any], dict[str, float]]]:
        """One call of the driver each: a call costs a quarter of a millisecond."""
        nvml = self._nvml
        yield self._load
        yield self._memory
        yield lambda gpu: {"temperature_celsius": nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU)}
        yield lambda gpu: {"power_draw_watts": nvml.nvmlDeviceGetPowerUsage(gpu) / _MILLI}
        yield lambda gpu: {"power_limit_watts": nvml.nvmlDeviceGetEnforcedPowerLimit(gpu) / _MILLI}
        yield lambda gpu: {"energy_joules_total": nvml.nvmlDeviceGetTotalEnergyConsumption(gpu) / _MILLI}
        yield lambda gpu: {"sm_clock_hertz": nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM) * 1e6}
        yield lambda gpu: {"ecc_uncorrected_errors_total": self._uncorrected(gpu)}
        yield lambda gpu: {"throttled": self._throttled(gpu)}

    def _load(self, gpu: Any) -> dict[str, float]:
        rates = self._nvml.nvmlDeviceGetUtilizationRates(gpu)
        return {"utilization_percent": rates.gpu, "memory_utilization_percent": rates.memory}

    def _memory(self, gpu: Any) -> dict[str, float]:
        memory = self._nvml.nvmlDeviceGetMemoryInfo(gpu)
        return {"vram_used_bytes": memory.used, "vram_total_bytes": memory.total}

    def _uncorrected(self, gpu: Any) -> float:
        nvml = self._nvml
        kind, since = nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_AGGREGATE_ECC
        return float(nvml.nvmlDeviceGetTotalEccErrors(gpu, kind, since))

    def _throttled(self, gpu: Any) -> float:
        """1 while heat or a fault slows the GPU down; saving power while idle does not count."""
        nvml = self._nvml
        reasons = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu)
        bad = (
            nvml.nvmlClocksThrottleReasonHwSlowdown
            | nvml.nvmlClocksThrottleReasonSwThermalSlowdown
            | nvml.nvmlClocksThrottleReasonHwThermalSlowdown
            | nvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown
        )
        return 1.0 if reasons & bad else 0.0


def find_gpus() -> NvidiaGpus | None:
    """None where there is no NVIDIA driver, or no package to ask it (`pip install 'harch[gpu]'`)."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        return NvidiaGpus(pynvml)
    except pynvml.NVMLError:
        return None


@lru_cache(maxsize=4096)
def _of_gpu(name: str, pairs: tuple[tuple[str, str], ...]) -> Labels:
    return series(f"harchos_gpu_{name}", pairs)


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
