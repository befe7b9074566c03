"""Which job starts now, where, and which waits until when? From the book's costs to one decision per job.

Jobs are taken one after the other, those with the least slack first, and each is entered in the book before the next
is looked at. A gang is one job: it starts whole or not at all.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from harch.carbon.planning.book import Book, Windows
from harch.carbon.planning.decisions import Decision, Option, Verb
from harch.carbon.planning.limits import Budgets, limit_reason, within_limits
from harch.carbon.planning.waiting import is_flat, waiting_costs_g, why_not
from harch.carbon.planning.work import FlexibleWork

OPTIONS_MAX = 5


def dispatch(works: Iterable[FlexibleWork], book: Book, budgets: Budgets) -> tuple[Decision, ...]:
    """One decision per waiting job."""
    order = sorted(works, key=lambda work: (work.wait_h_max, -work.gpus * work.hours_left, work.id))
    return tuple(decide(work, book, budgets) for work in order)


def decide(work: FlexibleWork, book: Book, budgets: Budgets) -> Decision:
    """Weighs every allowed hub and every start that keeps the promise; enters the best in the book."""
    starts = starts_of(work, book)
    windows = book.windows(work, starts=starts, keeps=work.wait_h_max > 0)
    if windows is None:
        return Decision(
            work.id, Verb.REFUSE, None, 0, work.wait_h_max, reason=f"no allowed hub has GPUs of model {work.model}"
        )
    cost = windows.cost_g + windows.no_room_g
    waits_g = waiting_costs_g(windows)
    if budgets.bind(work):
        allowed = within_limits(work, windows, budgets)
        if not allowed.any():
            reason = limit_reason(work, windows, budgets)
            return Decision(work.id, Verb.REFUSE, None, 0, work.wait_h_max, reason=reason)
        cost[~allowed] = np.inf
        if not allowed[:, np.isfinite(waits_g)].any():
            waits_g[:] = 0.0  # what its limits leave is waited for, worth it or not
    cost += waits_g
    # The best start at each of the best hubs: one of them is chosen, and together they explain the choice.
    at = cost.argmin(axis=1)
    lowest, at_hours = cost[np.arange(len(at)), at].tolist(), at.tolist()
    rows = sorted(range(len(lowest)), key=lowest.__getitem__)[:OPTIONS_MAX]
    options = tuple(option(windows, row, at_hours[row]) for row in rows)
    row, chosen = rows[0], options[0]
    start, room = chosen.start_h, bool(windows.no_room_g[row, chosen.start_h] <= 0)
    book.enter(work, chosen.hub, start)
    if start == 0:
        budgets.spend(work, chosen.grams)
    at_home = windows.hubs.index(work.home) if work.home in windows.hubs else row
    return Decision(
        work.id,
        Verb.START if start == 0 else Verb.WAIT,
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


def starts_of(work: FlexibleWork, book: Book) -> int:
    """How many start hours keep the promise: now, and every full hour within its slack and the horizon."""
    return min(int(work.wait_h_max), book.hours - 1) + 1


def option(windows: Windows, row: int, start: int) -> Option:
    return Option(
        windows.hubs[row],
        start,
        float(windows.cost_g[row, start]),
        float(windows.grams[row, start]),
        float(windows.kwh[row]),
    )
