"""What is told when windows are over? Their features, window by window, in the order of their ends."""

from __future__ import annotations

from harch.pipelines.sense.devices import EnrichmentTable
from harch.pipelines.sense.features import FeatureBatch, FeatureMaker
from harch.pipelines.sense.state import StageState


def close_windows(
    state: StageState, maker: FeatureMaker, table: EnrichmentTable | None, policy_version: int, watermark_ns: int
) -> list[FeatureBatch]:
    """Closes every window that the watermark has passed and gives its panes free. Empty windows are not told."""
    found = []
    for pane in state.windows.close_until(watermark_ns):
        closed = state.windows.window(pane)
        if state.forecast is not None:
            state.forecast.pane_closed(pane, state.windows.pane(pane))
        if closed is not None:
            forecast = state.forecast.columns() if state.forecast else None
            device, metric, matrix = maker.rows(closed.cells, forecast, table)
            found.append(
                FeatureBatch(
                    pipeline=state.name.pipeline,
                    partition=state.name.partition,
                    window_start_ns=closed.start_ns,
                    window_end_ns=closed.end_ns,
                    seq=state.next_seq,
                    juris_mask=state.window_mask(pane),
                    policy_version=policy_version,
                    device=device,
                    metric=metric,
                    names=maker.names,
                    matrix=matrix,
                    device_version=state.devices.version,
                    enrichment_version=table.version if table else 0,
                )
            )
            state.next_seq += 1
        state.recycle(pane)
    state.windows.skip_to(watermark_ns)
    return found
