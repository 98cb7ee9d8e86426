"""A site's own scripts as collectors of the agent, each with a health of its own."""

from __future__ import annotations

from typing import List, Optional, Tuple

from joblens.agent.sampler import Running, ticks
from joblens.collectors.external.collector import Script
from joblens.collectors.table import Collector
from joblens.core.config import Settings
from joblens.core.host import Host
from joblens.core.model import Rows


class RunningScript(Running):
    """It is looked at at every tick, for it ends when it ends."""

    def __init__(self, script: Script, every: int) -> None:
        super().__init__(Collector(script.set, lambda host: tuple, ""), every, {})  # it is never opened
        self.script = script

    def is_due(self, tick: int) -> bool:
        return True

    def _read(self, host: Host) -> Optional[Tuple[Rows, ...]]:
        return self.script.read()


def running_scripts(host: Host, settings: Settings) -> List[RunningScript]:
    return [
        RunningScript(Script(host, name, script), ticks(script.interval, settings))
        for name, script in settings.external.items()
    ]
