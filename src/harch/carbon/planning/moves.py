"""Should running work stop here and go on elsewhere, or later? Only if that saves clearly more than it costs.

A move costs the work since the last checkpoint, GPUs that wait while it restarts, and the transfer. Work that cannot
wait may only go on at once at another hub; deferrable work may also be suspended within what is left of its slack.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from harch.carbon.planning.book import Book
from harch.carbon.planning.decisions import Decision, Verb
from harch.carbon.planning.dispatch import option, starts_of
from harch.carbon.planning.limits import Budgets, within_limits
from harch.carbon.planning.work import FlexibleWork


@dataclass(frozen=True, slots=True)
class MoveRules:
    """What a move costs, and when it pays."""

    again_h: float = 0.2  # GPU time that is done twice: half a checkpoint interval, and the restart
    kwh_per_gb: float = 0.03
    gain_times_cost: float = 4.0  # forecasts err: the gain must exceed its cost by this factor
    gain_share: float = 0.4  # and be this share of what staying would emit
    hours_left_min: float = 1.5
    moves_max: int = 64  # per plan; the next one is minutes away


def plan_moves(works: Iterable[FlexibleWork], book: Book, budgets: Budgets, rules: MoveRules) -> tuple[Decision, ...]:
    """One decision per movable job; the book holds all of them already, where they run."""
    decisions: list[Decision] = []
    moves = 0
    for work in sorted(works, key=lambda one: (-one.gpus * one.hours_left, one.id)):
        if not work.movable or work.running_at is None or work.hours_left < rules.hours_left_min:
            continue
        if moves >= rules.moves_max:
            break
        decision = decide_move(work, work.running_at, book, budgets, rules)
        moves += decision.verb is not Verb.STAY
        decisions.append(decision)
    return tuple(decisions)


def decide_move(work: FlexibleWork, here: str, book: Book, budgets: Budgets, rules: MoveRules) -> Decision:
    book.enter(work, here, 0, sign=-1)
    starts = starts_of(work, book)
    windows = book.windows(work, starts=starts)
    if windows is None or here not in windows.hubs:  # its hub is no longer allowed: that is not for carbon to judge
        book.enter(work, here, 0)
        return Decision(work.id, Verb.STAY, here, 0, work.wait_h_max, reason="its hub is not among those allowed")
    row_here = windows.hubs.index(here)
    stay = option(windows, row_here, 0)
    again = rules.again_h / max(work.hours_left, rules.again_h)
    transfer_g = np.array(
        [
            0.0 if hub == here else work.checkpoint_gb * rules.kwh_per_gb * book.grid_g_per_kwh(hub)
            for hub in windows.hubs
        ]
    )
    overhead = again * windows.grams + transfer_g[:, None]
    # Where it is, it has its GPUs: room counts elsewhere and later only.
    total = np.where(windows.room & within_limits(work, windows, budgets), windows.cost_g + overhead, np.inf)
    total[row_here, 0] = np.inf
    row, start = (int(at) for at in np.unravel_index(int(np.argmin(total)), total.shape))
    cost_g = float(overhead[row, start])
    # In grams, without shadow prices: a move's cost is real, so its gain must be.
    gain_g = stay.grams - float(windows.grams[row, start])
    pays = np.isfinite(total[row, start]) and gain_g > max(
        rules.gain_times_cost * cost_g, rules.gain_share * stay.grams
    )
    if not pays:
        book.enter(work, here, 0)
        return Decision(work.id, Verb.STAY, here, 0, work.wait_h_max, stay, stay)
    chosen = option(windows, row, start)
    book.enter(work, chosen.hub, start)
    verb = Verb.MOVE if start == 0 else Verb.SUSPEND
    return Decision(work.id, verb, chosen.hub, start, work.wait_h_max, chosen, stay, move_cost_g=cost_g)
