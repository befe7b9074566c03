"""Which functions are there, what do they take and what do they give?"""

from __future__ import annotations

from dataclasses import dataclass

from harch.sentinel.promql.syntax.value_types import ValueType


@dataclass(frozen=True, slots=True)
class Signature:
    """A function's parameters. `optional`: how many may be left out at the end; -1: the last may be repeated."""

    name: str
    parameters: tuple[ValueType, ...]
    returns: ValueType
    optional: int = 0
    experimental: bool = False

    @property
    def arguments_min(self) -> int:
        return len(self.parameters) - abs(self.optional)

    @property
    def arguments_max(self) -> int | None:
        """None: any number, as for label_join."""
        return None if self.optional < 0 else len(self.parameters)

    def parameter(self, index: int) -> ValueType:
        return self.parameters[min(index, len(self.parameters) - 1)]


_SCALAR, _VECTOR, _MATRIX, _STRING = ValueType.SCALAR, ValueType.VECTOR, ValueType.MATRIX, ValueType.STRING
_LETTERS = {"s": _SCALAR, "v": _VECTOR, "m": _MATRIX, "t": _STRING}

# name(parameters) -> returns, in letters: s scalar, v instant vector, m range vector, t string.
# `?` closes parameters of which the last, `??` of which the last two may be left out; `*`: the last may be repeated
# any number of times or left out; `!` marks experimental ones.
_TABLE = """
abs(v)v absent(v)v absent_over_time(m)v acos(v)v acosh(v)v asin(v)v asinh(v)v atan(v)v atanh(v)v avg_over_time(m)v
ceil(v)v changes(m)v clamp(vss)v clamp_max(vs)v clamp_min(vs)v cos(v)v cosh(v)v count_over_time(m)v
day_of_month(v?)v day_of_week(v?)v day_of_year(v?)v days_in_month(v?)v deg(v)v delta(m)v deriv(m)v
double_exponential_smoothing(mss)v! exp(v)v first_over_time(m)v! floor(v)v
histogram_avg(v)v histogram_count(v)v histogram_fraction(ssv)v histogram_quantile(sv)v histogram_quantiles(vts*)v!
histogram_stddev(v)v histogram_stdvar(v)v histogram_sum(v)v hour(v?)v
idelta(m)v increase(m)v info(vv?)v! irate(m)v label_join(vttt*)v label_replace(vtttt)v last_over_time(m)v
ln(v)v log10(v)v log2(v)v mad_over_time(m)v! max_over_time(m)v min_over_time(m)v minute(v?)v month(v?)v
pi()s predict_linear(ms)v present_over_time(m)v quantile_over_time(sm)v rad(v)v rate(m)v resets(m)v round(vs?)v
scalar(v)s sgn(v)v sin(v)v sinh(v)v sort(v)v sort_by_label(vt*)v! sort_by_label_desc(vt*)v! sort_desc(v)v sqrt(v)v
start_timestamp(v)v! stddev_over_time(m)v stdvar_over_time(m)v sum_over_time(m)v tan(v)v tanh(v)v time()s timestamp(v)v
ts_of_first_over_time(m)v! ts_of_last_over_time(m)v! ts_of_max_over_time(m)v! ts_of_min_over_time(m)v! vector(s)v
year(v?)v max_of(ss)s! min_of(ss)s! start()s! end()s! range()s! step()s!
"""


def _signature(entry: str) -> Signature:
    name, rest = entry.split("(")
    inside, result = rest.split(")")
    letters = inside.rstrip("?*")
    return Signature(
        name=name,
        parameters=tuple(_LETTERS[letter] for letter in letters),
        returns=_LETTERS[result[0]],
        optional=-1 if inside.endswith("*") else inside.count("?"),
        experimental=result.endswith("!"),
    )


SIGNATURES = {signature.name: signature for signature in map(_signature, _TABLE.split())}
