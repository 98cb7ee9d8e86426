"""What is read before the command starts, because only the increase from then on is the job's."""

from __future__ import annotations

from typing import Dict, NamedTuple

from joblens.collectors.cgroup_limits import Limits
from joblens.core.host import Host
from joblens.run.totals import Inherited, read_inherited


class Before(NamedTuple):
    inherited: Inherited
    limits: Dict[str, int]  # what the cgroups around it have counted


def read_before() -> Before:
    return Before(read_inherited(), Limits(Host()).first)
