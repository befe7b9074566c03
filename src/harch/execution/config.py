"""What must an agent be told? The settings of `harch agent serve`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from harch.execution.admission import NOTHING_DECLARED
from harch.execution.sandbox import SandboxMode
from harch.sovereignty.terrain import SiteSafeguards

PROCESS_SLOTS_DEFAULT = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentConfig:
    """`node_ids` empty: all nodes of the hub. `share`: folders that tasks may work in. `hide`: folders that no task
    may see, e.g. the hub's state; the agent's own is always hidden. `safeguards`: what is declared of these nodes."""

    hub_url: str
    api_key: str
    agent_id: str
    state_dir: Path
    country: str
    node_ids: tuple[str, ...] = ()
    process_slots: int = PROCESS_SLOTS_DEFAULT
    address: str = "127.0.0.1"
    gang_ports: tuple[int, int] = (29500, 29599)
    share: tuple[Path, ...] = ()
    hide: tuple[Path, ...] = ()
    stop_tasks_on_exit: bool = False
    sandbox: SandboxMode = "auto"
    safeguards: SiteSafeguards = NOTHING_DECLARED
