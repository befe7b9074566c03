"""What does a stage remember? Windows, histories, sources and masks of one partition; how they are saved and loaded."""

# harch: pure

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from harch.pipelines.sense.checkpoint import SavedForecast, SenseCheckpoint, fingerprint_of, meaning_of, unusable
from harch.pipelines.sense.devices import DeviceTable
from harch.pipelines.sense.features import TrendForecast
from harch.pipelines.sense.gate import MASK_ALL, ResidencyGate
from harch.pipelines.sense.kernels import CELL_WIDTH, COUNT
from harch.pipelines.sense.settings import NS_PER_S, SenseSettings
from harch.pipelines.sense.sources import SourceBook
from harch.pipelines.sense.state_migration import carried, carry_problems
from harch.pipelines.sense.windows import WindowState


class StageIdentity(Struct, frozen=True):
    pipeline: str
    partition: int

    @property
    def source(self) -> int:
        """The source number under which the stage's own output travels."""
        name = f"{self.pipeline}/{self.partition}/sense"
        return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "little")


class StageState:
    """Everything that a checkpoint holds."""

    def __init__(self, name: StageIdentity, settings: SenseSettings, devices: DeviceTable) -> None:
        self.name = name
        self._settings = settings
        self.devices = devices
        self.windows = WindowState(settings)
        self.forecast = (
            TrendForecast(settings.forecast, settings.keys, self.windows.pane_ns) if settings.forecast else None
        )
        self.sources = SourceBook(
            sources_max=settings.limits.sources_max,
            idle_s=settings.source_idle_s,
            skew_ns=round(settings.windows.skew_s * NS_PER_S),
            start_wait_s=settings.start_wait_s,
        )
        self.pane_masks = [MASK_ALL] * settings.windows.slots
        self.history_mask = MASK_ALL  # of all that went into the histories of the forecast
        self.next_seq = 1

    def permit(self, mask: int, t_first_ns: int) -> None:
        """Events from `t_first_ns` on may have come in under this mask: what is made of them permits no more."""
        windows = self.windows
        first = max(windows.first_pane, t_first_ns // windows.pane_ns)
        last = windows.first_pane + self._settings.windows.panes_open
        for pane in range(first, last):
            self.pane_masks[pane % len(self.pane_masks)] &= mask
        if self.forecast is not None:
            self.history_mask &= mask

    def window_mask(self, newest_pane: int) -> int:
        mask = self.history_mask
        for pane in range(newest_pane - self._settings.windows.panes_per_window + 1, newest_pane + 1):
            mask &= self.pane_masks[pane % len(self.pane_masks)]
        return mask

    def recycle(self, newest_pane: int) -> None:
        """A window was emitted; its oldest pane starts anew."""
        self.windows.recycle(newest_pane)
        oldest = newest_pane - self._settings.windows.panes_per_window + 1
        self.pane_masks[oldest % len(self.pane_masks)] = MASK_ALL

    def renumber(self, gate: ResidencyGate, old_version: int) -> None:
        """The table of hubs has changed: the same hubs by their new bits. Panes without events keep permitting all."""
        masks = [*self.pane_masks, self.history_mask]
        masks = [mask if mask == MASK_ALL else gate.in_current_numbering(mask, old_version) for mask in masks]
        self.pane_masks, self.history_mask = masks[:-1], masks[-1]

    def save(
        self, *, watermark_ns: int, policy_version: int, counters: dict[str, int], quarantine: dict[str, int]
    ) -> SenseCheckpoint:
        """A copy, so that the stage may go on while it is encoded and stored."""
        flat = self.windows.cells.reshape(-1, CELL_WIDTH)
        places = np.flatnonzero(flat[:, COUNT])
        return SenseCheckpoint(
            pipeline=self.name.pipeline,
            partition=self.name.partition,
            fingerprint=fingerprint_of(self._settings),
            devices=self.devices.version,
            devices_hash=_hash_of(self.devices.ids),
            first_pane=self.windows.first_pane,
            watermark_ns=watermark_ns,
            sources=self.sources.saved(),
            next_seq=self.next_seq,
            policy_version=policy_version,
            pane_masks=list(self.pane_masks),
            history_mask=self.history_mask,
            cell_places=places.astype("<i8").tobytes(),
            cells=flat[places].astype("<f8").tobytes(),
            forecast=self._saved_forecast(),
            counters=counters,
            quarantine=quarantine,
            meaning=meaning_of(self._settings),
        )

    def load(self, saved: SenseCheckpoint, now_s: float) -> None:
        """Fills a new state. E0741 if the checkpoint is not of this stage, these settings or these devices."""
        if (saved.pipeline, saved.partition) != (self.name.pipeline, self.name.partition):
            raise unusable(f"belongs to `{saved.pipeline}`, partition {saved.partition}")
        saved = self._under_our_settings(saved)
        if _hash_of(self.devices.ids[: saved.devices]) != saved.devices_hash:
            raise unusable(f"its {saved.devices} devices are not the first of the table")
        flat = self.windows.cells.reshape(-1, CELL_WIDTH)
        places = _array(saved.cell_places, "<i8", None)
        cells = _array(saved.cells, "<f8", len(places) * CELL_WIDTH).reshape(-1, CELL_WIDTH)
        if len(saved.pane_masks) != len(self.pane_masks) or not _within(places, len(flat)) or saved.first_pane < -1:
            raise unusable("its windows do not fit")
        flat[places] = cells
        self.windows.first_pane = saved.first_pane
        self.sources.restore(saved.sources, saved.watermark_ns, now_s)
        self.pane_masks, self.history_mask = list(saved.pane_masks), saved.history_mask
        self.next_seq = saved.next_seq
        self._load_forecast(saved.forecast)

    def _under_our_settings(self, saved: SenseCheckpoint) -> SenseCheckpoint:
        """The checkpoint itself, or carried over from other settings."""
        if saved.fingerprint == fingerprint_of(self._settings):
            return saved
        old, new = saved.meaning, meaning_of(self._settings)
        if old is None:
            raise unusable("events, devices, metrics, windows or forecast of the pipeline have changed")
        if problems := carry_problems(old, new):
            raise unusable(f"saved with different settings: {'; '.join(problems)}")
        places = _array(saved.cell_places, "<i8", None)
        _array(saved.cells, "<f8", len(places) * CELL_WIDTH)
        if not _within(places, old.slots * old.keys) or len(saved.pane_masks) != old.slots:
            raise unusable("its windows do not fit")
        return carried(saved, old, new)

    def _saved_forecast(self) -> SavedForecast | None:
        if (forecast := self.forecast) is None:
            return None
        used = np.flatnonzero(~np.isnan(forecast.history).all(axis=0))
        return SavedForecast(
            step=forecast.step,
            filled=forecast.filled,
            history=forecast.history[:, used].astype("<f4").tobytes(),
            history_keys=used.astype("<i8").tobytes(),
            count=forecast.count.astype("<f8").tobytes(),
            sum=forecast.sum.astype("<f8").tobytes(),
        )

    def _load_forecast(self, saved: SavedForecast | None) -> None:
        if self.forecast is None or saved is None:
            return  # both or neither, by the fingerprint
        steps, keys = self.forecast.history.shape
        used = _array(saved.history_keys, "<i8", None)
        history = _array(saved.history, "<f4", steps * len(used))
        if not _within(used, keys) or not 0 <= saved.filled <= steps:
            raise unusable("its histories do not fit")
        self.forecast.history[:, used] = history.reshape(steps, len(used))
        self.forecast.step, self.forecast.filled = saved.step, saved.filled
        self.forecast.count[:] = _array(saved.count, "<f8", keys)
        self.forecast.sum[:] = _array(saved.sum, "<f8", keys)
        self.forecast.refresh()


def _hash_of(ids: tuple[str, ...]) -> str:
    return hashlib.sha256("\0".join(ids).encode()).hexdigest()[:16]


def _array(data: bytes, dtype: str, size: int | None) -> NDArray[Any]:
    if len(data) % np.dtype(dtype).itemsize:
        raise unusable("an array is truncated")
    found = np.frombuffer(data, dtype)
    if size is not None and len(found) != size:
        raise unusable(f"an array has {len(found)} entries in place of {size}")
    return found


def _within(places: NDArray[Any], size: int) -> bool:
    return not len(places) or (int(places.min()) >= 0 and int(places.max()) < size)
