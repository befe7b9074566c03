"""Which GPUs leave the fleet most useful for what comes next? The rollout-value and scarcity-price policy.

`shapes` and `history` need NumPy only. `engine` and `baselines` need the compiled kernels (the extra `kernels`):
importing them without Numba raises `KernelsMissing`, so ask `kernels_available()` first and fall back to best fit.
"""

from __future__ import annotations

from importlib.util import find_spec


class KernelsMissing(ImportError):
    """Numba is not installed, so the policy cannot run."""

    def __init__(self) -> None:
        super().__init__("the placement policy needs Numba: pip install 'harch[kernels]'")


def kernels_available() -> bool:
    """True when Numba can be imported. Cheap: it does not import it."""
    return find_spec("numba") is not None
