"""The GPUs that the environment gives to a job, read before the command starts."""

from __future__ import annotations

from typing import Iterator, List, Mapping, Optional, Tuple

# By vendor, the first that is set. Inside a job that may open only its own cards, drivers number these from 0
# and so do these variables, while Slurm's numbers are the node's.
_VARIABLES = (
    ("cuda", ("CUDA_VISIBLE_DEVICES",)),
    ("amd", ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL")),
    ("intel", ("ZE_AFFINITY_MASK",)),
)
_SLURM = ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS")


def given_gpus(environment: Mapping[str, str]) -> Optional[Tuple[str, ...]]:
    """As UUID, index or VENDOR:INDEX. None where nothing is said: any may be used and none is held."""
    found: List[str] = []
    said = [(vendor, environment[name]) for vendor, name in _set_variables(environment)]
    for vendor, text in said:
        found += [f"{vendor}:{word}" if word.isdigit() else word for word in _words(text)]
    slurm = next((name for name in _SLURM if name in environment), "")
    if slurm and not said:
        return tuple(_words(environment[slurm]))
    return tuple(found) if said else None


def _set_variables(environment: Mapping[str, str]) -> Iterator[Tuple[str, str]]:
    # NVIDIA's numbers are the driver's if the user has said so; else CUDA takes the fastest as the first.
    by_bus = environment.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    for vendor, variables in _VARIABLES:
        for name in [name for name in variables if name in environment][:1]:
            yield "nvidia" if vendor == "cuda" and by_bus else vendor, name


def _words(text: str) -> Iterator[str]:
    """Up to the first that is none, as CUDA reads it. Level Zero names a part of a card as CARD.TILE."""
    for word in map(str.strip, text.split(",")):
        if word in ("", "-1", "NoDevFiles"):
            return
        card, dot, tile = word.partition(".")
        yield card if dot and card.isdigit() and tile.isdigit() else word
