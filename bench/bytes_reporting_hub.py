"""`harch`, but whoever fetches content over the bulk channel writes down what that came to, as a line of JSON."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from harch.cli.main import main
from harch.federation.bulk.fetch import TransferReport, fetch
from harch.hub.content import bulk_channel

REPORTS = "transfers.jsonl"  # in HARCH_HOME


def reported(*arguments: Any, **named: Any) -> TransferReport:
    began_s = time.monotonic()
    report = fetch(*arguments, **named)
    line = json.dumps({**asdict(report), "began_s": began_s, "ended_s": time.monotonic()})
    with (Path(os.environ["HARCH_HOME"]) / REPORTS).open("a") as file:
        file.write(line + "\n")
    return report


if __name__ == "__main__":
    bulk_channel.fetch = reported
    main()
