"""Can this node run images? Only with skopeo, umoci and a bubblewrap that works; what is missing is named."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass

from harch.execution.isolation.sandbox import Sandbox

FEATURE = "images"
SUPPORTED = "bubblewrap+skopeo+umoci"
_PACKAGES = {"bwrap": "bubblewrap", "skopeo": "skopeo", "umoci": "umoci"}  # program -> package

Which = Callable[[str], str | None]


@dataclass(frozen=True, slots=True)
class ImageSupport:
    """`skopeo` and `umoci` are paths free of links. `refusal`: why no image can run here; empty if one can."""

    skopeo: str = ""
    umoci: str = ""
    refusal: str = ""

    def features(self) -> dict[str, str]:
        return {FEATURE: f"none: {self.refusal}" if self.refusal else SUPPORTED}


def find_support(sandbox: Sandbox, which: Which = shutil.which) -> ImageSupport:
    if missing := missing_packages(which):
        instead = ""
        if "bubblewrap" in missing and which("podman") is not None:
            instead = "; podman is, but HarchOS runs images with bubblewrap"
        return ImageSupport(refusal=f"{not_installed(missing)} (apt-get install {' '.join(missing)}){instead}")
    if not sandbox.program:
        return ImageSupport(refusal=f"images run in a sandbox only, and here there is none: {sandbox.detail}")
    skopeo, umoci = (os.path.realpath(which(name) or "") for name in ("skopeo", "umoci"))
    return ImageSupport(skopeo, umoci)


def missing_packages(which: Which = shutil.which) -> list[str]:
    return [package for program, package in _PACKAGES.items() if which(program) is None]


def not_installed(missing: list[str]) -> str:
    """`skopeo and umoci are not installed`."""
    *others, last = missing
    return f"{', '.join(others)} and {last} are not installed" if others else f"{last} is not installed"
