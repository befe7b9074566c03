"""May this task start here?

The agent's own check, made again although the hub has made it: unknown means no; and the settings of `harch agent
serve`.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from harch.base.errors import InvariantBroken
from harch.content.model import is_digest
from harch.execution.isolation.sandbox import SandboxMode, is_inside
from harch.execution.protocol import ContentUse, TaskSpec
from harch.execution.taskdir import is_safe_id
from harch.sovereignty.gates import AccessRequest, before_load
from harch.sovereignty.geography import SiteSafeguards, site_of
from harch.sovereignty.jurisdiction_file import jurisdictions_in_force

_DATA_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._ -]{0,126}[A-Za-z0-9])?")
_SECRET_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
COMMAND_BYTES_MAX = 1024 * 1024  # program, arguments and environment together; the kernel's own limit is near


NOTHING_DECLARED = SiteSafeguards()
REASON_CHARS_MAX = 1500


@dataclass(frozen=True, slots=True)
class Premises:
    """What the agent knows of itself. `shared` and `hidden` are real paths, free of links.

    `safeguards` are its own declarations, not its hub's: what was not declared is not there.
    """

    country: str
    node_ids: frozenset[str]  # empty: all nodes of the hub
    shared: tuple[str, ...]
    hidden: tuple[str, ...]
    safeguards: SiteSafeguards = NOTHING_DECLARED
    unconfined: str = ""  # why tasks would run without the sandbox that they must have


Check = Callable[[TaskSpec, Premises], str]  # empty, or why not


def refusal(task: TaskSpec, premises: Premises) -> str:
    """The first reason against it, with its code; empty if there is none."""
    return next((reason for check in CHECKS if (reason := check(task, premises))), "")


def check_residency(task: TaskSpec, premises: Premises) -> str:
    """A scheduler that sent it here by mistake broke an invariant; the task does not pay for that by running."""
    if not task.country or task.country != premises.country:
        broken = InvariantBroken(
            "residency",
            f"{task.key.workload_id} was sent to {task.country or '?'}, this agent is in {premises.country}",
        )
        return f"E0902 {broken}"
    if task.countries_allowed and premises.country not in task.countries_allowed:
        allowed = ", ".join(task.countries_allowed)
        broken = InvariantBroken(
            "residency", f"{task.key.workload_id} may run in {allowed}, this agent is in {premises.country}"
        )
        return f"E0902 {broken}"
    return ""


def check_tags(task: TaskSpec, premises: Premises) -> str:
    """Gate 3: may each piece of data be read where this agent stands, with what it declares of itself?"""
    if not task.data:
        return ""
    request = AccessRequest(id=task.key.workload_id, countries_allowed=task.countries_allowed, reads=task.data)
    own = site_of(task.node_id, premises.country, jurisdictions_in_force(), premises.safeguards)
    verdict = before_load(request, own)
    if verdict.allowed:
        return ""
    reasons = "; ".join(f"{reason.subject}: {reason.rule}: {reason.detail}" for reason in verdict.rejections)
    return f"E0907 {reasons}"[:REASON_CHARS_MAX]


def leaves_what_may_not_rest(task: TaskSpec, premises: Premises) -> bool:
    """By the agent's own declarations, whatever the hub says: what the task writes has to go when it ends."""
    if not task.data:
        return False
    request = AccessRequest(id=task.key.workload_id, countries_allowed=task.countries_allowed, reads=task.data)
    own = site_of(task.node_id, premises.country, jurisdictions_in_force(), premises.safeguards)
    return before_load(request, own).scrub_after


def check_sandbox(task: TaskSpec, premises: Premises) -> str:
    """An agent that must confine tasks and cannot does not even start; this is the second look."""
    return f"E0312 {premises.unconfined}" if premises.unconfined else ""


def check_names(task: TaskSpec, premises: Premises) -> str:
    key = task.key
    if not is_safe_id(key.workload_id) or key.attempt < 0 or key.rank < 0:
        return "E0201 the id of the workload cannot be a folder name"
    if not all(_SECRET_NAME.fullmatch(name) for name in task.secrets):
        return "E0201 the name of a secret cannot be a file name"
    if premises.node_ids and task.node_id not in premises.node_ids:
        return f"E0307 node {task.node_id} is not served by this agent"
    return ""


def check_command(task: TaskSpec, premises: Premises) -> str:
    values = [*task.command, *task.env, *task.env.values(), task.working_dir or ""]
    if any("\0" in text for text in values) or any("=" in name or not name for name in task.env):
        return "E0201 the command or its environment has characters that no process can be given"
    if sum(map(len, values)) > COMMAND_BYTES_MAX:
        return f"E0201 command and environment exceed {COMMAND_BYTES_MAX} bytes"
    return ""


def check_lease(task: TaskSpec, premises: Premises) -> str:
    """A deadline that never comes is not one."""
    if task.lease_until_s is not None and not math.isfinite(task.lease_until_s):
        return f"E0201 its lease lasts until {task.lease_until_s}, which is not a time"
    return ""


def check_working_dir(task: TaskSpec, premises: Premises) -> str:
    if task.working_dir is None:
        return ""
    real = os.path.realpath(task.working_dir)
    if not os.path.isabs(task.working_dir) or real == "/":
        return f"E0309 working_dir `{task.working_dir}` must be an absolute path below a shared folder"
    if not any(is_inside(real, folder) for folder in premises.shared):
        shared = ", ".join(premises.shared) or "no folder"
        return f"E0309 working_dir `{task.working_dir}` is not shared by this node, which shares {shared}"
    if any(is_inside(real, folder) for folder in premises.hidden):
        return f"E0309 working_dir `{task.working_dir}` belongs to HarchOS itself"
    if not os.path.isdir(real):
        return f"E0309 working_dir `{task.working_dir}` is not a folder on this node"
    return ""


def check_contents(task: TaskSpec, premises: Premises) -> str:
    """What has no tag is not fetched, and nothing is fetched to a place that it may not have."""
    tagged = {data.id for data in task.data}
    for content in task.contents:
        if content.data_id not in tagged:
            return f"E0907 {content.name}: nobody has said what its tag permits"
        if not is_digest(content.digest):
            return f"E0201 {content.name}: `{content.digest[:80]}` is not a digest"
    names = [content.name for content in task.contents if content.use is ContentUse.DATA]
    if len(set(names)) < len(names) or not all(_DATA_NAME.fullmatch(name) for name in names):
        return "E0201 the names of its data cannot be file names in one folder"
    for use in (ContentUse.CODE, ContentUse.IMAGE):
        if sum(content.use is use for content in task.contents) > 1:
            return f"E0201 it has more than one {use.value}"
    has_code = any(content.use is ContentUse.CODE for content in task.contents)
    if has_code and task.working_dir is not None:
        return "E0201 it works in a shared folder, `working_dir`, where its code would be mixed with other files"
    has_image = bool(task.image) or any(content.use is ContentUse.IMAGE for content in task.contents)
    if has_image and task.environment is not None:
        return "E0201 an image brings its own packages, so `image` excludes `environment`"
    return ""


# Residency and tags first: no later rule may even look at a task that must not be here.
CHECKS: tuple[Check, ...] = (
    check_residency,
    check_tags,
    check_sandbox,
    check_names,
    check_command,
    check_lease,
    check_working_dir,
    check_contents,
)


# What must an agent be configured with? The settings of `harch agent serve`.


PROCESS_SLOTS_DEFAULT = 64
GB = 10**9
CACHE_BYTES_DEFAULT = 50 * GB
KEPT_WORK_BYTES_DEFAULT = 20 * GB


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentConfig:
    """`node_ids` empty: all nodes of the hub. `share`: folders that tasks may work in. `hide`: folders that no task
    may see, e.g. the hub's state; the agent's own is always hidden. `safeguards`: what is declared of these nodes.
    `cache_bytes`: what fetched content, environments and images may take; `kept_work_bytes`: files of ended tasks."""

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
    cache_bytes: int = CACHE_BYTES_DEFAULT
    kept_work_bytes: int = KEPT_WORK_BYTES_DEFAULT
