"""What all tests share: helper modules on the path, a list of what may be skipped, examples without deadlines."""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent))

pytest_plugins = ("expected_skips", "failure_report")

# What a shell starts in the background ignores Ctrl-C, and so would the processes that tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# `harch up` writes down how its federation is found, and every verb reads that: not from, nor into, a user's own files.
os.environ["XDG_CONFIG_HOME"] = tempfile.mkdtemp(prefix="harch-test-config-")
atexit.register(shutil.rmtree, os.environ["XDG_CONFIG_HOME"], ignore_errors=True)

# Hubs of tests keep no telemetry unless a test wants it: dozens of them start, and each store takes a second of CPU.
os.environ.setdefault("HARCH_SENTINEL", "off")

# Examples are judged by what they find and not by how long they take: other work on the machine is no failure.
settings.register_profile("harch", deadline=None)
settings.load_profile("harch")
