"""Job data of batch systems, behind one interface."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joblens.core.errors import ConfigError

if TYPE_CHECKING:
    from joblens.schedulers.facts import Scheduler

NAMES = ("slurm", "flux", "pbs", "none")
_COMMANDS = {"slurm": "squeue", "flux": "flux", "pbs": "qstat"}


def open_scheduler(name: str = "") -> Scheduler | None:
    """Open it by name, by default the first one installed here; `none` is None."""
    import shutil  # takes 2 ms, and commands that only read records load this package too

    name = name or next((it for it, command in _COMMANDS.items() if shutil.which(command)), "none")
    if name == "slurm":
        from joblens.schedulers.slurm.client import Slurm

        return Slurm()
    if name == "flux":
        from joblens.schedulers.flux import Flux

        return Flux()
    if name == "pbs":
        from joblens.schedulers.pbs import Pbs

        return Pbs()
    if name == "none":
        return None
    raise ConfigError(f"unknown scheduler {name!r}; expected one of {', '.join(NAMES)}")
