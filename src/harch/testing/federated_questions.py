"""Questions over hubs with telemetry as `federated_telemetry.world` makes it, at random."""

from __future__ import annotations

import random
from collections.abc import Sequence


def question(chance: random.Random) -> str:
    """A query that hubs of one country can answer together: anything but what needs single samples of a range."""
    return _vector(chance, 3)


def question_abroad(chance: random.Random) -> str:
    """A query that is cut into parts that other countries answer, if their groups are large enough."""
    clause = chance.choice(("", "", " by (job)", " by (zone)"))
    sums = [_sum_abroad(chance, clause) for _ in range(2)]
    kind = chance.randrange(6)
    if kind <= 2:
        return sums[0]
    if kind == 3:
        return f"{sums[0]} {chance.choice(('/', '+', '-', '>'))} {sums[1]}"
    if kind == 4:
        return f"{chance.choice(('max', 'avg', 'min'))}_over_time(({sums[0]})[5m:1m])"
    return f"histogram_quantile(0.{chance.randrange(1, 10)}, sum by (le) (rate(b_bucket[5m])))"


def _sum_abroad(chance: random.Random, clause: str) -> str:
    matcher = chance.choice(("", "", '{job="train"}', '{zone=~"n.*"}'))
    inner = chance.choice((f"m{matcher}", f"rate(c_total{matcher}[5m])", f"avg_over_time(m{matcher}[3m] offset 1m)"))
    operator = chance.choice(("sum", "count", "avg", "stddev", "stdvar", "group"))
    return f"{operator}{clause} ({inner})" if operator != "sum" else f"sum{clause} ({inner} * 8)"


_MATCHERS = ("", "", "", '{job="train"}', '{model!="card"}', '{zone=~"n.*"}', '{model=~"a100|h100",job="serve"}')
_CLAUSES = ("", "", " by (job)", " by (model, zone)", " without (instance)", " by (zone)", " without (instance, model)")
_CLAUSES_ALIKE = ("", " by (job)", " by (zone, job)")
_RATES = ("rate", "increase", "irate", "delta", "deriv", "avg_over_time", "sum_over_time", "max_over_time")


def _selector(chance: random.Random, name: str) -> str:
    return name + chance.choice(_MATCHERS)


def _moment(chance: random.Random) -> str:
    return chance.choice(("", "", "", "", " offset 2m", " offset -1m", " @ 1500", " @ end()", " @ start() offset 30s"))


def _series(chance: random.Random) -> str:
    """Something that every hub computes alone."""
    kind = chance.randrange(9)
    gauge = _selector(chance, "m") + _moment(chance)
    if kind == 0:
        return gauge
    if kind in (1, 2):
        span = chance.choice(("2m", "5m", "90s"))
        return f"{chance.choice(_RATES)}({_selector(chance, 'c_total')}[{span}]{_moment(chance)})"
    if kind == 3:
        return f"{chance.choice(('abs', 'ceil', 'sqrt', 'sgn', 'timestamp'))}({gauge})"
    if kind == 4:
        return (
            f"({gauge} {chance.choice(('*', '/', '+', '-', '>', '<=', '> bool'))} {chance.choice(('2', '100', '0.3'))})"
        )
    if kind == 5:
        return f"max_over_time({_selector(chance, 'm')}[5m:{chance.choice(('', '1m', '45s'))}])"
    if kind == 6:
        return f"quantile_over_time(0.{chance.randrange(10)}, {_selector(chance, 'm')}[4m])"
    if kind == 7:
        return f"clamp_min({gauge}, {chance.choice(('0', '200'))})"
    return f"-{gauge}"


def _sums(chance: random.Random, clauses: Sequence[str] = _CLAUSES) -> str:
    """Something that hubs compute in parts."""
    kind = chance.randrange(8)
    clause = chance.choice(clauses)
    operator = chance.choice(("sum", "count", "avg", "group", "stddev", "stdvar", "min", "max"))
    if kind <= 4:
        return f"{operator}{clause} ({_series(chance)})"
    if kind == 5:
        return f"sum{clause} ({chance.choice(('sum', 'count'))} by (job, model, zone) ({_series(chance)}))"
    if kind == 6:
        return f"{operator}{clause} (sum by (job, zone, model) ({_series(chance)}))"
    return f"sum{clause} ({_series(chance)} * {chance.choice(('8', '0.001', '-3'))})"


def _vector(chance: random.Random, depth: int) -> str:
    kind = chance.randrange(18)
    if depth == 0 or kind <= 5:
        return _sums(chance)
    if kind == 6:
        alike = chance.choice(_CLAUSES_ALIKE)
        sides = [_sums(chance, (alike,)) for _ in range(2)]
        return f"{sides[0]} {chance.choice(('/', '+', '-', '*', '>', '== bool', 'and', 'or', 'unless'))} {sides[1]}"
    if kind == 7:
        inner = chance.choice(("b_bucket", 'b_bucket{job="train"}'))
        clause = chance.choice(("le", "le, job", "le, model, zone"))
        return f"histogram_quantile(0.{chance.randrange(1, 10)}, sum by ({clause}) (rate({inner}[5m])))"
    if kind == 8:
        function = chance.choice(("max", "avg", "min", "last", "stddev"))
        range_step = f"{chance.choice(('5m', '7m'))}:{chance.choice(('', '1m', '90s'))}"
        return f"{function}_over_time(({_vector(chance, depth - 1)})[{range_step}]{_moment(chance)})"
    if kind == 9:
        clause = chance.choice(_CLAUSES)
        return f"{chance.choice(('topk', 'bottomk'))}{clause} ({chance.randrange(1, 4)}, {_selector(chance, 'm')})"
    if kind == 10:
        return f"quantile{chance.choice(_CLAUSES)} (0.{chance.randrange(10)}, {_series(chance)})"
    if kind == 11:
        return f'count_values{chance.choice(("", " by (job)"))} ("v", floor({_selector(chance, "m")} / 300))'
    if kind == 12:
        absent = (
            'absent(m{job="none"})',
            'absent(m{zone="north"})',
            "absent_over_time(m{job='none'}[5m])",
            "absent(sum(m))",
        )
        return chance.choice(absent)
    if kind == 13:
        return f"{_sums(chance)} * scalar({_sums(chance, ('',))})"
    if kind == 14:
        return f"sum{chance.choice(_CLAUSES)} ({chance.choice(('h', 'rate(h[5m])'))})"
    if kind == 15:
        return f"histogram_quantile(0.9, {chance.choice(('sum', 'avg'))} by (job) (increase(h[4m])))"
    if kind == 16:
        return f"{_series(chance)} - on (instance) group_left () {_selector(chance, 'm')}"
    function = chance.choice(("abs", "clamp_max", "label_replace", "round", "sort_desc", "timestamp"))
    inner = _vector(chance, depth - 1)
    more = {"clamp_max": ", 500", "label_replace": ', "site", "$1-x", "job", "(.*)"', "round": ", 0.5"}.get(
        function, ""
    )
    return f"{function}({inner}{more})"
