"""Slurm's trackable resources (TRES) and memory sizes: `cpu=4,mem=8G,node=1,gres/gpu:a100=2`, `4000Mc`.

Memory and burst buffers are in bytes, all others are counts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from joblens.core.errors import MalformedError
from joblens.record.job import Resources

_MIB = 1 << 20
_UNITS = "KMGTPE"
_AMOUNT = re.compile(r"([0-9]{1,20}(?:\.[0-9]{1,9})?)([KMGTPE]?)B?", re.IGNORECASE)
_MEMORY = re.compile(r"([0-9.]+[KMGTPE?]?)B?([nc]?)", re.IGNORECASE)
_NAME = re.compile(r"[^=,\s]+(?: [^=,\s]+)*")
_MOST = 1 << 63  # larger values are NO_VAL64 and INFINITE64: unknown


class Memory(NamedTuple):
    bytes: int
    per: str = ""  # "": the whole job, or "node", or "core"


def parse_memory(text: str, unit: int = _MIB) -> Memory | None:
    """`4000Mc` and `8Gn` are per core and per node; a bare number is in the given unit.

    Since 21.08 sacct writes the sum for the whole job, without a letter. A question mark as the unit means
    that Slurm has no letter for it.
    """
    text = text.strip()
    if text.upper() in {"", "N/A", "(NULL)", "NONE", "UNKNOWN"}:
        return None
    found = _MEMORY.fullmatch(text)
    if not found:
        raise MalformedError("memory", repr(text[:80]))
    if found[1].endswith("?"):
        return None
    amount = _amount(found[1], unit)
    return None if amount is None else Memory(amount, {"n": "node", "c": "core"}.get(found[2].lower(), ""))


def parse_tres(text: str) -> dict[str, int]:
    """Return amounts by name, without those that Slurm does not know."""
    found: dict[str, int] = {}
    if text.strip().upper() in {"", "N/A", "(NULL)"}:
        return found
    for part in text.strip().split(","):
        name, equals, value = part.rpartition("=")
        if not equals or not _NAME.fullmatch(name):
            raise MalformedError("TRES", repr(text[:80]))
        if value.endswith("?"):
            continue
        amount = _amount(value, _MIB if _is_memory(name) else 1)
        if amount is not None:
            found[name] = amount
    return found


def render_tres(tres: Mapping[str, int]) -> str:
    """Memory is written in the largest unit without a remainder, at least KiB, as Slurm has no bytes here."""
    return ",".join(
        f"{name}={_shown(amount) if _is_memory(name) else amount}" for name, amount in tres.items()
    )


def resources(text: str) -> Resources:
    """Missing memory means that the cluster does not allocate it, not that there is none."""
    tres = parse_tres(text)
    cpus = tres.get("cpu")
    return Resources(
        nodes=tres.get("node") or None,
        cores=float(cpus) if cpus else None,
        memory_bytes=tres.get("mem") or None,
        gpus=gpus(tres),
        tres=text.strip() if tres else "",
    )


def gpus(tres: Mapping[str, int]) -> int | None:
    """Return the total, which is given beside the kinds or is their sum."""
    if "gres/gpu" in tres:
        return tres["gres/gpu"]
    kinds = [amount for name, amount in tres.items() if name.startswith("gres/gpu:")]
    return sum(kinds) if kinds else None


def parse_gres_gpus(text: str) -> int | None:
    """Count GPUs in a request: `gres/gpu:a100:2`, `gres:gpu:2`, `gpu:2(S:0-1)`, `gpu`."""
    count = None
    for part in re.sub(r"\([^)]*\)", "", text).split(","):
        words = re.split(r"[:/=]", part.strip())
        words = words[1:] if words[0] in {"gres", "gres_per_node"} else words
        if words[:1] != ["gpu"]:
            continue
        last = words[-1]
        count = (count or 0) + (int(last) if last.isascii() and last.isdigit() and len(last) < 10 else 1)
    return count


def _is_memory(name: str) -> bool:
    return name == "mem" or name.startswith("bb/")


def _amount(text: str, unit: int) -> int | None:
    found = _AMOUNT.fullmatch(text)
    if not found:
        raise MalformedError("amount", repr(text[:80]))
    number, letter = found[1], found[2].upper()
    factor = 1 << 10 * (_UNITS.index(letter) + 1) if letter else unit
    amount = int(number) * factor if number.isdigit() else round(float(number) * factor)
    return amount if amount < _MOST else None


def _shown(amount: int) -> str:
    if not amount:
        return "0"
    power = min(((amount & -amount).bit_length() - 1) // 10, len(_UNITS))
    power = max(power, 1)
    return f"{-(-amount >> 10 * power)}{_UNITS[power - 1]}"
