"""How the GPUs of a task are listed."""

from __future__ import annotations

import pytest

from harch.cli.views.gpu_ids import gpu_ranges


@pytest.mark.parametrize(
    ("gpu_ids", "text"),
    [
        ([], "no GPU"),
        (["n1-g3"], "g3"),
        (["n1-g0", "n1-g1", "n1-g2"], "g0-g2"),
        (["n1-g0", "n1-g2", "n1-g3"], "g0, g2-g3"),
        (["n1-g9", "n1-g10"], "g9-g10"),
        (["n2-g0", "GPU-5e1f"], "n2-g0, GPU-5e1f"),
        (["main", "main"], "main, main"),
    ],
)
def test_gpus_in_a_row_are_a_range_and_others_stand_alone(gpu_ids, text):
    assert gpu_ranges("n1", gpu_ids) == text
