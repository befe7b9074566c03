"""Where does HarchOS keep its state, and on which ports does it listen?"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from harch.base.errors import HarchError

PORT_BASE_DEFAULT = 7700
PORT_STRIDE_DEFAULT = 10  # up to ten hubs: APIs from 7701, telemetry 7711, peer links 7721, bulk 7731
SENTINEL_SWITCH = "HARCH_SENTINEL"  # `off` runs hubs without it
# Gang rendezvous ports, one range per hub, above everything else HarchOS listens on.
GANG_PORTS_OFFSET, GANG_PORTS_PER_HUB = 1000, 200


@dataclass(frozen=True, slots=True)
class Ports:
    """The ports of hub number `index` (0-based, in fleet order). Larger fleets need a larger stride."""

    base: int = PORT_BASE_DEFAULT
    stride: int = PORT_STRIDE_DEFAULT

    def api(self, index: int) -> int:
        return self.base + 1 + index

    def telemetry(self, index: int) -> int:
        return self.base + 1 + self.stride + index

    def peer(self, index: int) -> int:
        return self.base + 1 + 2 * self.stride + index

    def bulk(self, index: int) -> int:
        return self.base + 1 + 3 * self.stride + index

    def gang_range(self, index: int) -> tuple[int, int]:
        """First and last port that gangs of this hub may use to find each other."""
        first = self.base + GANG_PORTS_OFFSET + index * GANG_PORTS_PER_HUB
        return first, first + GANG_PORTS_PER_HUB - 1


@dataclass(frozen=True, slots=True)
class Home:
    """The state folder: one sub-folder per hub, and the admin key."""

    root: Path

    def hub(self, name: str) -> Path:
        return self.root / name

    @property
    def admin_key(self) -> Path:
        return self.root / "admin.key"


def home_from_env() -> Home:
    return Home(Path(os.environ.get("HARCH_HOME", ".harch")).absolute())


def ports_from_env(hub_count: int = PORT_STRIDE_DEFAULT) -> Ports:
    text = os.environ.get("HARCH_PORT_BASE", str(PORT_BASE_DEFAULT))
    if not text.isdecimal() or not 1024 <= int(text) <= 60000:
        raise HarchError(
            "E0201", f"HARCH_PORT_BASE is `{text}`", hint="use a number from 1024 to 60000, e.g. HARCH_PORT_BASE=8700"
        )
    return Ports(int(text), stride=max(PORT_STRIDE_DEFAULT, -(-hub_count // 10) * 10))
