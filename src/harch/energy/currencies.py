"""What is an amount in another currency? Only what a stated rate says; two currencies are never just added."""

# harch: pure

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from harch.base.errors import HarchError

_CODE = re.compile(r"[A-Z]{3}")


@dataclass(frozen=True, slots=True)
class ExchangeRates:
    """How many units of each currency one US dollar buys, and who says so. Empty: nothing can be converted."""

    per_usd: Mapping[str, float] = field(default_factory=dict)
    source: str = "none"

    def __post_init__(self) -> None:
        for code, rate in self.per_usd.items():
            if not is_currency(code) or not (math.isfinite(rate) and rate > 0):
                raise HarchError(
                    "E0241",
                    f"`{code}` at {rate:g} per USD is not an exchange rate",
                    hint="a rate is a number above 0 for an ISO 4217 code, e.g. `MAD = 9.9`",
                )

    def convert(self, amount: float, *, of: str, to: str) -> float:
        """Raises HarchError E0241 if a rate is missing: a guess would be worse than no figure."""
        if of == to:
            return amount
        return amount / self._rate(of) * self._rate(to)

    def _rate(self, code: str) -> float:
        if code == "USD":
            return 1.0
        if code not in self.per_usd:
            raise HarchError(
                "E0241",
                f"no exchange rate for {code} (rates: {self.source})",
                hint=f"state how many {code} one USD buys, or give all amounts in one currency",
            )
        return self.per_usd[code]


def is_currency(code: str) -> bool:
    """Whether it has the form of an ISO 4217 code."""
    return _CODE.fullmatch(code) is not None
