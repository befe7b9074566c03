"""Which job starts now, where, which waits until when, and which moves?

From the costs of the capacity ledger to one decision per job, within hard limits on carbon.
"""

# harch: pure

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from harch.carbon.planning.capacity import CapacityLedger, StartWindows
from harch.carbon.planning.decisions import CarbonDecision, DecisionKind, HubOption
from harch.carbon.planning.outlook import Floats
from harch.carbon.planning.work import FlexibleWork

# How long is it worth waiting? No longer than what power changes by can pay for.
#
# Where power is the same in every hour, work could only wait for room at a cleaner hub. Room that comes free is taken
# by
# whoever comes, so such a wait gains nothing for all together, and what waits may find a queue later. So a wait is
# credited with no more than power changes by, and each hour of it has a price.


# Of almost equally clean hours the earlier is better: clean GPU-hours that nobody takes now do not come back. It is far
# less than grid and own power differ by, so nobody starts before the sun rises because of it.
WAIT_G_PER_KWH_HOUR = 1.5
# What an hour of waiting risks: forecasts err, and work that has not come yet may stand before it in a queue.
RISK_G_PER_KWH_HOUR = 10.0


def waiting_costs_g(windows: StartWindows) -> Floats:
    """By start: what a wait weighs, in grams; endless from where on it risks more than it can gain."""
    wait_h = windows.step_h * np.arange(windows.cost_g.shape[1], dtype=np.float64)
    costs: Floats = WAIT_G_PER_KWH_HOUR * float(windows.kwh.min()) * wait_h
    costs[wait_h * RISK_G_PER_KWH_HOUR > windows.swing_g_per_kwh] = np.inf
    if is_flat(windows):
        costs[1:] = np.inf  # however short the steps
    return costs


def is_flat(windows: StartWindows) -> bool:
    """Power changes by less than an hour of waiting risks: there is nothing to wait for but room."""
    return windows.swing_g_per_kwh < RISK_G_PER_KWH_HOUR


def why_not(windows: StartWindows, *, room: bool) -> str:
    """The words for work that could wait, and need not."""
    words = []
    if windows.cost_g.shape[1] > 1 and is_flat(windows):
        words.append(
            "carbon intensity hardly changes in the hours ahead, less than the forecast error: waiting does not pay"
        )
    if not room:
        words.append("not enough free GPUs for all of it now: the queue decides")
    return "; ".join(words)


# How much carbon may be spent? Ceilings and budgets of jobs, tenants and months: hard limits, unlike all costs.
#
# A limit can make a job wait past its promise, or never run. That is what a hard limit means, and the reason says so.


@dataclass
class Budgets:
    """What is left this month, in grams: of each tenant that has a budget, and of all together."""

    tenant_g_left: Mapping[str, float] = field(default_factory=dict)
    all_g_left: float | None = None
    _spent: dict[str, float] = field(default_factory=dict)

    def bind(self, work: FlexibleWork) -> bool:
        """False: nothing limits this job's grams."""
        own = work.g_max is not None or work.g_per_kwh_max is not None
        return own or self.all_g_left is not None or work.tenant in self.tenant_g_left

    def left_g(self, work: FlexibleWork) -> float:
        """The tightest of the limits on this job's grams."""
        limits = [work.g_max if work.g_max is not None else np.inf]
        if work.tenant in self.tenant_g_left:
            limits.append(self.tenant_g_left[work.tenant] - self._spent.get(work.tenant, 0.0))
        if self.all_g_left is not None:
            limits.append(self.all_g_left - sum(self._spent.values()))
        return float(min(limits))

    def spend(self, work: FlexibleWork, grams: float) -> None:
        """What starts now is counted at once, so that a plan never gives the same grams twice."""
        self._spent[work.tenant] = self._spent.get(work.tenant, 0.0) + grams


def within_limits(work: FlexibleWork, windows: StartWindows, budgets: Budgets) -> NDArray[np.bool_]:
    """Which hubs and hours keep every limit."""
    allowed: NDArray[np.bool_] = windows.grams <= budgets.left_g(work)
    if work.g_per_kwh_max is not None:
        allowed &= windows.grams <= work.g_per_kwh_max * windows.kwh[:, None]
    return allowed


def limit_reason(work: FlexibleWork, windows: StartWindows, budgets: Budgets) -> str:
    """Why no suitable hub and hour, with the number that is nearest."""
    least, left = float(windows.grams.min()), budgets.left_g(work)
    if least > left:
        return f"needs at least {least:,.0f} g, but only {max(left, 0.0):,.0f} g remain of its carbon budget"
    lowest = float((windows.grams / windows.kwh[:, None]).min())
    return f"at best {lowest:.0f} g/kWh, above its ceiling of {work.g_per_kwh_max:.0f} g/kWh"


# Which job starts now, where, and which waits until when? From the book's costs to one decision per job.
#
# Jobs are taken one after the other, those with the least slack first, and each is entered in the book before the next
# is looked at. A gang is one job: it starts whole or not at all.


OPTIONS_MAX = 5
STEP_ERROR = 1e-9  # of a quotient that should be whole


def dispatch(jobs: Iterable[FlexibleWork], book: CapacityLedger, budgets: Budgets) -> tuple[CarbonDecision, ...]:
    """One decision per waiting job."""
    order = sorted(jobs, key=lambda work: (work.wait_h_max, -work.gpus * work.hours_left, work.id))
    return tuple(decide(work, book, budgets) for work in order)


def decide(work: FlexibleWork, book: CapacityLedger, budgets: Budgets) -> CarbonDecision:
    """Weighs every allowed hub and every start that keeps the promise; enters the best in the book."""
    starts = starts_of(work, book)
    windows = book.windows(work, starts=starts, keeps=work.wait_h_max > 0)
    if windows is None:
        return CarbonDecision(
            work.id,
            DecisionKind.REFUSE,
            None,
            0,
            work.wait_h_max,
            reason=f"no allowed hub has GPUs of model {work.model}",
        )
    cost = windows.cost_g + windows.no_room_g
    waits_g = waiting_costs_g(windows)
    if budgets.bind(work):
        allowed = within_limits(work, windows, budgets)
        if not allowed.any():
            reason = limit_reason(work, windows, budgets)
            return CarbonDecision(work.id, DecisionKind.REFUSE, None, 0, work.wait_h_max, reason=reason)
        cost[~allowed] = np.inf
        if not allowed[:, np.isfinite(waits_g)].any():
            waits_g[:] = 0.0  # what its limits leave is waited for, worth it or not
    cost += waits_g
    # The best start at each of the best hubs: one of them is chosen, and together they explain the choice.
    at = cost.argmin(axis=1)
    lowest, at_steps = cost[np.arange(len(at)), at].tolist(), at.tolist()
    rows = sorted(range(len(lowest)), key=lowest.__getitem__)[:OPTIONS_MAX]
    options = tuple(option(windows, row, at_steps[row]) for row in rows)
    row, chosen = rows[0], options[0]
    start, room = chosen.start_step, bool(windows.no_room_g[row, chosen.start_step] <= 0)
    book.enter(work, chosen.hub, start)
    if start == 0:
        budgets.spend(work, chosen.grams)
    at_home = windows.hubs.index(work.home) if work.home in windows.hubs else row
    return CarbonDecision(
        work.id,
        DecisionKind.START if start == 0 else DecisionKind.WAIT,
        chosen.hub,
        start,
        work.wait_h_max,
        chosen,
        option(windows, at_home, 0),
        options,
        room=room,
        queues=is_flat(windows),
        reason="" if start > 0 and room else why_not(windows, room=room),
    )


def starts_of(work: FlexibleWork, book: CapacityLedger) -> int:
    """How many starts keep the promise: now, and every full step within its slack and the horizon."""
    wait_steps = int(work.wait_h_max / book.outlook.step_h + STEP_ERROR)
    return min(wait_steps, book.steps - 1) + 1


def option(windows: StartWindows, row: int, start: int) -> HubOption:
    return HubOption(
        windows.hubs[row],
        start,
        float(windows.cost_g[row, start]),
        float(windows.grams[row, start]),
        float(windows.kwh[row]),
    )


# Should running work stop here and go on elsewhere, or later? Only if that saves clearly more than it costs.
#
# A move costs the work since the last checkpoint, GPUs that wait while it restarts, and the transfer. Work that cannot
# wait may only go on at once at another hub; deferrable work may also be suspended within what is left of its slack.


@dataclass(frozen=True, slots=True)
class MoveRules:
    """What a move costs, and when it pays."""

    again_h: float = 0.2  # GPU time that is done twice: half a checkpoint interval, and the restart
    kwh_per_gb: float = 0.03
    gain_times_cost: float = 4.0  # forecasts err: the gain must exceed its cost by this factor
    gain_share: float = 0.4  # and be this share of what staying would emit
    hours_left_min: float = 1.5
    moves_max: int = 64  # per plan; the next one is minutes away


def plan_moves(
    jobs: Iterable[FlexibleWork], book: CapacityLedger, budgets: Budgets, rules: MoveRules
) -> tuple[CarbonDecision, ...]:
    """One decision per movable job; the book holds all of them already, where they run."""
    decisions: list[CarbonDecision] = []
    moves = 0
    for work in sorted(jobs, key=lambda one: (-one.gpus * one.hours_left, one.id)):
        if not work.movable or work.running_at is None or work.hours_left < rules.hours_left_min:
            continue
        if moves >= rules.moves_max:
            break
        decision = decide_move(work, work.running_at, book, budgets, rules)
        moves += decision.verb is not DecisionKind.STAY
        decisions.append(decision)
    return tuple(decisions)


def decide_move(
    work: FlexibleWork, here: str, book: CapacityLedger, budgets: Budgets, rules: MoveRules
) -> CarbonDecision:
    book.enter(work, here, 0, sign=-1)
    starts = starts_of(work, book)
    windows = book.windows(work, starts=starts)
    if windows is None or here not in windows.hubs:  # its hub is no longer allowed: that is not for carbon to judge
        book.enter(work, here, 0)
        return CarbonDecision(work.id, DecisionKind.STAY, here, 0, work.wait_h_max, reason="its hub is not allowed")
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
        return CarbonDecision(work.id, DecisionKind.STAY, here, 0, work.wait_h_max, stay, stay)
    chosen = option(windows, row, start)
    book.enter(work, chosen.hub, start)
    verb = DecisionKind.MOVE if start == 0 else DecisionKind.SUSPEND
    return CarbonDecision(work.id, verb, chosen.hub, start, work.wait_h_max, chosen, stay, move_cost_g=cost_g)
