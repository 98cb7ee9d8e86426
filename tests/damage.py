"""What disks and crashes do to files: bits flip, files are cut off, blocks are zeros."""

from __future__ import annotations

import os
import random
from pathlib import Path


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
