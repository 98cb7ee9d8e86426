"""`joblens agent` that leaves behind what a test can count: `counted_agent.py FOLDER [--newer] agent …`.

FOLDER/kept has every batch that ever got into the spool, as a further name of the same file. The name is made
before the one in the spool: if the agent is killed in between, its unfinished file is still there to tell.
Its clock goes on, also where a recording (--root) has none.
FOLDER/taken has a line for every tick, written before the tick's samples are taken: the rows of each set.
FOLDER/ticks has the times of them.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from typing import Any

from joblens.agent.push import Pusher
from joblens.cli import main
from joblens.core.host import Host
from joblens.core.model import Sample
from joblens.wire.batch import Batch


def keep_batches(folder: str) -> None:
    rename = os.rename

    def keep_and_rename(source: str, target: str) -> None:
        where, name = os.path.split(target)
        if name.endswith(".batch") and os.path.basename(where) == "spool":
            try:
                os.link(source, f"{folder}/kept/{name}")
            except FileExistsError:
                os._exit(99)  # a number was given twice
        rename(source, target)

    os.rename = keep_and_rename  # type: ignore[assignment]


def count_ticks(folder: str) -> None:
    take = Pusher.take
    # For as long as the process lives.
    file = open(f"{folder}/taken", "a", buffering=1)  # noqa: SIM115
    ticks = open(f"{folder}/ticks", "a", buffering=1)  # noqa: SIM115

    def count_and_take(self: Pusher, tick: int, samples: list[Sample]) -> None:
        rows: Counter[str] = Counter()
        for _, found in samples:
            rows[found.schema.set] += len(found.keys)
        file.write(json.dumps(rows) + "\n")
        ticks.write("".join(f"{moment}\n" for moment in sorted({moment for moment, _ in samples})))
        take(self, tick, samples)

    Pusher.take = count_and_take  # type: ignore[method-assign]


def be_newer() -> None:
    """A version to come, that tells more than this one."""
    encode = Batch.encode

    def encode_more(self: Batch, head: Any) -> bytes:
        more = {name: [[*it, "more", {"of": 1}] for it in head[name]] for name in ("sets", "jobs", "gaps")}
        return encode(self, head | more | {"agent": "99.0", "colour": {"sky": ["blue", None, 1.5]}})

    Batch.encode = encode_more  # type: ignore[method-assign]


if __name__ == "__main__":
    words = sys.argv[2:]
    keep_batches(sys.argv[1])
    count_ticks(sys.argv[1])
    Host.now_ns = lambda self: time.time_ns()  # type: ignore[method-assign]
    if words[0] == "--newer":
        be_newer()
        words = words[1:]
    sys.exit(main(words))
