"""Where images cannot run, is it said why, with what to install?"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from harch.base.errors import HarchError
from harch.content.image_reference import parse_image
from harch.execution.images.limits import ImageSettings
from harch.execution.images.manifest import Platform
from harch.execution.images.store import ImageStore
from harch.execution.images.support import ImageSupport, find_support
from harch.execution.images.tools import Hooks
from harch.execution.isolation.sandbox import HostLayout, Sandbox

HOST = HostLayout((), ())
WORKS = Sandbox("/usr/bin/bwrap", HOST, "/usr/bin/bwrap")
HOOKS = Hooks(lambda line: None, lambda detail: None, lambda: None)


def having(*programs: str) -> Callable[[str], str | None]:
    return lambda name: f"/usr/bin/{name}" if name in programs else None


@pytest.mark.parametrize(
    ("programs", "feature"),
    [
        (("bwrap", "skopeo", "umoci"), "bubblewrap+skopeo+umoci"),
        (("bwrap", "skopeo"), "none: umoci is not installed (apt-get install umoci)"),
        (("bwrap",), "none: skopeo and umoci are not installed (apt-get install skopeo umoci)"),
        (("skopeo", "umoci"), "none: bubblewrap is not installed (apt-get install bubblewrap)"),
        (
            ("skopeo", "umoci", "podman"),
            "none: bubblewrap is not installed (apt-get install bubblewrap); "
            "podman is, but HarchOS runs images with bubblewrap",
        ),
        (
            (),
            "none: bubblewrap, skopeo and umoci are not installed (apt-get install bubblewrap skopeo umoci)",
        ),
    ],
)
def test_an_agent_says_what_it_runs_images_with_or_what_is_missing(programs: tuple[str, ...], feature: str) -> None:
    sandbox = WORKS if "bwrap" in programs else Sandbox("", HOST, "bubblewrap (bwrap) is not installed")
    assert find_support(sandbox, having(*programs)).features() == {"images": feature}


def test_a_sandbox_that_is_switched_off_or_does_not_work_runs_no_images() -> None:
    all_there = having("bwrap", "skopeo", "umoci")
    for detail in ("switched off", "bubblewrap does not work here: no namespaces"):
        feature = find_support(Sandbox("", HOST, detail), all_there).features()["images"]
        assert feature == f"none: images run in a sandbox only, and here there is none: {detail}"


def test_programs_are_named_by_their_real_paths_because_the_sandbox_has_no_others(tmp_path: Path) -> None:
    (tmp_path / "real").touch()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert find_support(WORKS, lambda name: str(tmp_path / "link")).umoci == str((tmp_path / "real").resolve())


def test_an_agent_that_was_sent_an_image_all_the_same_refuses_it_in_the_same_words(tmp_path: Path) -> None:
    support = ImageSupport(refusal="umoci is not installed (apt-get install umoci)")
    store = ImageStore(tmp_path / "scratch", support, WORKS, Platform(), ImageSettings(), {})
    image = parse_image("registry.example/x:1")
    with pytest.raises(HarchError) as refused:
        store.prepare(image, hub=None, borrow=lambda name, make: tmp_path, hooks=HOOKS)  # type: ignore[arg-type]
    assert (refused.value.code, refused.value.message) == ("E1131", support.refusal)
