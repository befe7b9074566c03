"""Which models does a worker serve, and what is wanted of them now? The stage, its queue, and what people ask for."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import msgspec

from harch.base.errors import HarchError
from harch.pipelines.sense.features import feature_schema
from harch.pipelines.sense.gate import Gate
from harch.pipelines.think.counters import VersionCounters
from harch.pipelines.think.rollout import Change, State
from harch.pipelines.think.service import ThinkService
from harch.pipelines.think.settings import ModelSettings, VersionSettings
from harch.pipelines.think.stage import ThinkStage
from harch.pipelines.workers.config import WorkerConfig
from harch.pipelines.workers.model_plan import WantedModels, plan_models
from harch.pipelines.workers.names import MODELS_KEY
from harch.pipelines.workers.policies import Policies
from harch.pipelines.workers.shell import Report, Shell
from harch.pipelines.workers.thinker import Thinker
from harch.sovereignty.tags import Tag

log = logging.getLogger(__name__)


class Models:
    """The stage with its service, and what is wanted of it."""

    def __init__(self, shell: Shell, *, again: str = "") -> None:
        config = shell.config
        if config.think is None:
            raise HarchError("E0750", "a worker that thinks has no models", hint="let the hub write its configuration")
        self._shell = shell
        self.gate = Gate(config.site.hub, config.policy)
        self.policies = Policies(config.policy)
        self.stage = ThinkStage(
            config.think,
            site=config.site,
            tag_of=lambda model, version: tag_of(config, model, version),
            folder=Path(config.model_folder),
            told=self._told,
        )
        self.thinker = Thinker(config.pipeline, feature_schema(config.sense), self.gate, shell.clock, again=again)
        self.service = ThinkService(self.stage, shell.clock, self.thinker.handed_over)
        self.thinker.use(self.service)
        self.revision = 0
        self.trouble = ""
        self._loop: asyncio.AbstractEventLoop | None = None

    async def load(self) -> None:
        """What is declared, then what was wanted since. Raises E0907, E0502 and others of the stage."""
        self._loop = asyncio.get_running_loop()
        await asyncio.to_thread(self.stage.load)
        await self.look()

    async def look(self) -> None:
        entry = await self._shell.state.get(MODELS_KEY)
        if entry is not None:
            wanted = msgspec.json.decode(entry.value, type=WantedModels)
            if wanted.revision > self.revision:
                await self._carry_out(wanted)
        for table in await self.policies.look(self._shell.state):
            self.gate.learn(table)

    async def _carry_out(self, wanted: WantedModels) -> None:
        """Loads beside the traffic. What cannot be loaded changes nothing, and is told."""
        self.trouble = ""
        for settings in wanted.models:
            if settings.name in self.stage.models:
                self.stage.model(settings.name).learn_rules(settings)
        for name, versions in wanted.versions.items():
            try:
                model = self.stage.model(name)
                by_name = {one.version: one for one in versions}
                for step in plan_models(versions, dict(model.rollout.states)):
                    if step.verb == "load":
                        await asyncio.to_thread(self.stage.load_version, name, by_name[step.version])
                    elif step.verb == "promote" and step.to is not None:
                        model.promote(step.version, step.to, reason=f"wanted, revision {wanted.revision}")
                    else:
                        model.retire(step.version, reason=f"not wanted, revision {wanted.revision}")
            except HarchError as error:
                self.trouble = f"model {name}: {error.message}"
                self._shell.alert("model", self.trouble)
        self.revision = wanted.revision

    def _told(self, model: str, change: Change) -> None:
        """Called by whichever thread scores or loads; the connection belongs to the loop."""
        log.info("model %s@%s is %s: %s", model, change.version, change.after, change.reason)
        if change.by_itself and self._loop is not None:
            detail = f"{model}@{change.version} is {change.after}: {change.reason}"
            self._loop.call_soon_threadsafe(self._shell.alert, "rollback", detail)

    def report(self) -> Report:
        counters = {"rows": self.thinker.rows, "messages": self.thinker.messages}
        counters |= {f"rows_dropped_{rule}": count for rule, count in self.thinker.dropped.items()}
        details = {"models_revision": str(self.revision)}
        for name, model in self.stage.models.items():
            for state, record in model.records():
                details[f"model.{name}@{record.ref.version}"] = str(state)
                if state is State.CANARY:
                    counters |= canary_counters(f"{name}@{record.ref.version}", record.watch.in_role)
        waiting = sum(self.stage.waiting(name) for name in self.stage.models)
        return Report(
            counters=counters,
            gauges={"rows_waiting": float(waiting)},
            done=float(self.thinker.rows),
            drained=float(self.thinker.messages),
            details=details,
            trouble=self.trouble,
        )


def canary_counters(version: str, done: VersionCounters) -> dict[str, int]:
    """What a canary did since it is one; `promotion` of the hub adds it up over all workers."""
    return {
        f"canary.{version}.rows": done.rows,
        f"canary.{version}.bad": done.rows_bad,
        f"canary.{version}.compared": done.rows_compared,
        f"canary.{version}.disagreed": done.rows_disagreed,
    }


def tag_of(config: WorkerConfig, model: ModelSettings, version: VersionSettings) -> Tag | None:
    """The tag of a version, else of its model; None, which permits nothing, if nobody has said."""
    found = config.model_tags.get(f"{model.name}@{version.version}")
    return found or config.model_tags.get(model.name)
