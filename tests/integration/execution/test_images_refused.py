"""Where a node lacks the programs for images, does it say so, and does nothing of such work run?

No test here names an optional program, so none is on the PATH.
"""

from __future__ import annotations

from execution_fakes import task

from harch.workloads.lifecycle import ExitReason

REASON = "bubblewrap, skopeo and umoci are not installed (apt-get install bubblewrap skopeo umoci)"


async def test_an_agent_without_the_programs_says_what_to_install_and_runs_nothing_of_an_image(hub, run_agent):
    await run_agent()
    assert hub.hellos[0].features["images"] == f"none: {REASON}"
    end = await hub.run(task("sh", "-c", "echo outside", image="registry.example/train:1"))
    assert (end.reason, end.exit_code) == (ExitReason.NOT_STARTED, None)
    assert end.detail.startswith(f"E1131 {REASON}")
