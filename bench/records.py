"""Time from the end of a job under a real Slurm to its record, with default settings."""

from __future__ import annotations

import json
import sys
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

from bench.children import ROOT, BenchError
from bench.interpreters import Interpreter
from bench.table import Section, at_most

if TYPE_CHECKING:
    from services.slurm.lab import Lab
    from services.slurm.watch import Watch

_JOBS = 8
_MOST_SECONDS = 20.0
_GIVE_UP = 300.0
_TITLE = "from the end of a job under Slurm to its record, with the default settings"
_AGENT = """
cluster = "{cluster}"
[push]
url = "http://{switch}:9478"
spool = "/run/joblens-spool"
token_file = "/run/joblens-token"
"""
_HUB = """
[hub]
listen = "{switch}:9478"
home = "{folder}/hub"
key_file = "{folder}/etc/joblens.key"
token_file = "{folder}/etc/page-token"
scheduler = "slurm"
[hub.sinks.lake]
home = "{folder}/store"
"""


def measure_records(pythons: list[Interpreter]) -> list[Section]:
    sys.path.insert(0, str(ROOT / "tests"))  # the cluster is that of the tests
    from services.slurm.lab import CLUSTER, Lab, why_no_lab
    from services.slurm.machines import SWITCH
    from services.slurm.watch import RESIDENT, Watch

    if why_not := why_no_lab():
        return [Section(_TITLE, [], [f"not measured: {why_not}"])]
    with ExitStack() as stack:
        lab = Lab(stack)
        watch = lab.watch = Watch(lab)
        known = {"cluster": CLUSTER, "switch": SWITCH, "folder": lab.folder}
        lab.path("etc/joblens.toml").write_text(_AGENT.format(**known))
        lab.path("etc/hub.toml").write_text(_HUB.format(**known))
        lab.start_slurm()
        with watch.running(RESIDENT):
            took = [_measure(lab, watch, number) for number in range(_JOBS)]
    lines = [
        at_most("record of a job on two nodes", "", "seconds", took, most=_MOST_SECONDS),
        at_most("the slowest of them", "", "seconds", [max(took)], most=_MOST_SECONDS),
    ]
    return [Section(_TITLE, lines)]


def _measure(lab: Lab, watch: Watch, number: int) -> float:
    """Compute from the times in accounting and store; jobs end at different times of a polling cycle."""
    print(f"bench: records, job {number + 1} of {_JOBS}", file=sys.stderr, flush=True)
    job = lab.submit("userA", f"sleep {2 + 3 * number % 8}", "-N2")
    end = time.monotonic() + _GIVE_UP
    while time.monotonic() < end:
        done = watch.joblens("job", job, "--json", check=False)
        record = json.loads(done.out) if done.code == 0 else {}
        if "written" in record:
            return float(record["written"] / 1e9 - record["job"]["end"])
        time.sleep(1.0)
    raise BenchError(f"job {job} has no record after {_GIVE_UP:g} s")
