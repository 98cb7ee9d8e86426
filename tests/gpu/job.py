"""A job that uses one card of those that the driver's stand-in shows: `gpu.job STATE SECONDS CARD CARDS`, or
the second of the parts of one: `gpu.job STATE SECONDS mig`."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from gpu.standin import GIB, MIB, Driver, card, cards, halves


def one_of(elapsed: float, used: int, count: int) -> tuple[dict[str, Any], ...]:
    busy = card(
        used,
        busy="80 40",
        memory=f"{80 * GIB} {600 * MIB} {20 * GIB}",
        power=400_000,
        energy=round(1_000_000 + used + 400_000 * elapsed),  # mJ, at 400 W
        compute=f"{os.getpid()} {20 * GIB - 600 * MIB}",
    )
    return cards(count), busy


def second_part() -> tuple[dict[str, Any], ...]:
    return halves(), {"0.1.memory": f"{40 * GIB} 0 {5 * GIB}", "0.1.compute": f"{os.getpid()} {5 * GIB}"}


def main(state: str, seconds: float, *words: str) -> None:
    driver = Driver(Path(state))
    begin = time.monotonic()
    while (elapsed := time.monotonic() - begin) < seconds:
        shown = second_part() if words == ("mig",) else one_of(elapsed, *map(int, words))
        driver.says(*shown)
        time.sleep(0.1)


main(sys.argv[1], float(sys.argv[2]), *sys.argv[3:])
