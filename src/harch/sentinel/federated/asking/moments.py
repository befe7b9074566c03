"""What is the variance of all, when each hub tells count, mean and variance of its own?"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def joint_variance(counts: Floats, means: Floats, variances: Floats) -> Floats:
    """Columns of hubs `[hub, step]`, counts 0 where a hub has nothing; NaN where no hub has anything.

    Squares of distances from the common mean are added, so nothing is lost where the mean is large.
    """
    there = counts > 0
    total = counts.sum(axis=0)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        mean = np.where(there, counts / total * means, 0.0).sum(axis=0)
        distances = np.where(there, counts * (variances + (means - mean) ** 2), 0.0)
        result: Floats = distances.sum(axis=0) / total
    return result
