"""What all tests share: folders on memory where there is some, so that waiting for a disk is left to the benchmarks."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
