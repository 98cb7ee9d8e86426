"""What disks and crashes do to files: bits flip, files are cut off, blocks are zeros."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

from joblens.record.fields import read
from joblens.store.lake.damage import Lost


def damage(data: bytes, chance: random.Random) -> bytes:
    """Mostly one bit."""
    changed = bytearray(data)
    kind, at = chance.choice(("flip", "flip", "flip", "cut", "zeros")), chance.randrange(len(data))
    if kind == "flip":
        changed[at] ^= 1 << chance.randrange(8)
    elif kind == "cut":
        del changed[at:]
    else:
        changed[at : at + 512] = bytes(len(changed[at : at + 512]))
    return bytes(changed)


def damage_file(path: Path, chance: random.Random) -> bool:
    """Under its name, and no other that it may have. False if it is as it was, or empty."""
    data = path.read_bytes()
    changed = damage(data, chance) if data else data
    made = path.with_name(path.name + ".damaged")
    made.write_bytes(changed)
    made.chmod(path.stat().st_mode & 0o777)
    os.rename(made, path)
    return changed != data


def load_gaps(home: Path) -> list[Lost]:
    """What a store says is lost in damaged files, each file once."""
    path = home / "gaps.jsonl"
    lines = path.read_bytes().splitlines() if path.exists() else []
    gaps = [read(json.loads(line), Lost) for line in lines]
    return list({(gap.set, gap.date, gap.file, gap.bytes): gap for gap in gaps}.values())
